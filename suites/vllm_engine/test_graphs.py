"""Steps of an engine that vLLM compiles and captures into CUDA graphs, as it does unless it is told not to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gpuinvariants import InvariantViolation, no_implicit_sync, requires_package

from .engine import MAX_TOKENS, V1, Engine, running

pytestmark = requires_package("vllm>=0.33")


@pytest.fixture(
    scope="module",
    params=[{}, {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}],
    ids=["compiled", "full-graphs-only"],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A V1 engine in a process of its own: torch.compile with piecewise and full graphs, or full graphs alone."""
    with running(V1, tmp_path_factory.mktemp("model"), enforce_eager=False, **request.param) as engine:
        yield engine


@no_implicit_sync(children=True, warmup=1)
@pytest.mark.parametrize("lengths", [(3, 5), (1,), (100, 5)], ids=str)
def test_a_step_waits_by_design_only(engine: Engine, lengths: tuple[int, ...]) -> None:
    """Replays, and prompts longer than any graph."""
    with engine.waiting({}) as (output, others):
        stepped = engine.run(lengths, temperature=0)
    # That the engine was policed, and has made its steps.
    assert output.count >= MAX_TOKENS
    assert all(allowance.count for allowance in others)
    assert all(stepped.finished)


@no_implicit_sync(children=True)
def test_the_waits_are_found_without_their_exemptions(engine: Engine) -> None:
    """The engine is policed: what the other test exempts is what there is."""
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync(children=True):
        engine.run([3, 5], temperature=0)
    findings = caught.value.findings
    assert {finding.stack[0].qualified for finding in findings} == {engine.runner.output, *engine.runner.waits}
    assert all(finding.process.startswith("EngineCore") for finding in findings)
