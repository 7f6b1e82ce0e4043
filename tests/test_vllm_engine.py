"""A fault in the engine's process of a running vLLM, told in the test's report at its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinvariants import InvariantViolation, no_implicit_sync, requires_package
from suites.vllm_engine.engine import MAX_TOKENS, V1, Engine, running

PROCESSOR = "tests.reading_processor"
SOURCE = Path(__file__).with_name("reading_processor.py")
OUTPUT_TOKENS = {
    "vllm.v1.worker.gpu_input_batch.InputBatch.update_async_output_token_ids": "a logits processor may need the tokens"
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with running(V1, tmp_path, logits_processors=[f"{PROCESSOR}:Reading"]) as engine:
        engine.run([5])  # kernels are compiled
        yield engine


@requires_package("vllm>=0.33")
@no_implicit_sync(children=True)
def test_a_logits_processor_that_waits(engine: Engine) -> None:
    policed = no_implicit_sync(children=True)
    with pytest.raises(InvariantViolation) as caught, policed, engine.waiting(OUTPUT_TOKENS) as (output, _):
        engine.run([5])
    assert output.count == MAX_TOKENS
    lines = SOURCE.read_text().splitlines()
    assert {(found.id, lines[found.stack[0].line - 1].strip(), found.count) for found in caught.value.findings} == {
        (
            f"sync:cudaStreamSynchronize@{PROCESSOR}.Reading.apply",
            "if logits[0, 0].item() > 1e30:",
            MAX_TOKENS,
        ),
        (
            f"pageable-copy:cudaMemcpyAsync:H2D@{PROCESSOR}.Reading.apply",
            "return logits + mask.to(self.device, non_blocking=True)",
            MAX_TOKENS,
        ),
    }
    assert all(found.process.startswith("EngineCore (pid ") for found in caught.value.findings)
