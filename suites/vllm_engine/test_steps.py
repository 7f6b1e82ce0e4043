"""Steps of vLLM's whole engine: the host waits for the GPU where the design says, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_gpuinvariants import InvariantViolation, known_fault, no_implicit_sync, requires_package, session
from pytest_gpuinvariants.hardware.machine import MachineKind

from .engine import MAX_TOKENS, V1, V2, Engine, Runner, running

pytestmark = requires_package("vllm>=0.33")
# The second call counts: the first compiles kernels and makes lazy buffers.
never_waits = no_implicit_sync(children=True, warmup=1)


@dataclass(frozen=True)
class Sampling:
    """Parameters of a request, and more places where the V1 runner waits because of them, with the reasons."""

    label: str
    parameters: Mapping[str, Any]
    v1_waits: Mapping[str, str] = field(default_factory=dict)


_OUTPUT_TOKENS = {
    "vllm.v1.worker.gpu_input_batch.InputBatch.update_async_output_token_ids": (
        "penalties are made on the host, from the tokens of the step before"
    )
}
_PROMPT_LOGPROBS = {
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner._sync_device": "the prompt's log probabilities are handed out"
}
GREEDY = Sampling("greedy", {"temperature": 0})
SAMPLING = (
    GREEDY,
    Sampling("random", {"temperature": 0.7}),
    Sampling("seed", {"temperature": 0.7, "seed": 1}),
    Sampling("top-k", {"temperature": 0.7, "top_k": 5}),
    Sampling("top-p", {"temperature": 0.7, "top_p": 0.5}),
    Sampling("min-p", {"temperature": 0.7, "min_p": 0.5}),
    Sampling("presence-penalty", {"presence_penalty": 0.5}, _OUTPUT_TOKENS),
    Sampling("repetition-penalty", {"repetition_penalty": 1.5}, _OUTPUT_TOKENS),
    Sampling("logit-bias", {"logit_bias": {3: 1.0}}),
    Sampling("min-tokens", {"min_tokens": 2, "stop_token_ids": [5]}),
    Sampling("logprobs", {"logprobs": 2}),
)
PROMPT_LOGPROBS = Sampling("prompt-logprobs", {"prompt_logprobs": 2}, _PROMPT_LOGPROBS)
ALLOWED_TOKENS = Sampling("allowed-token-ids", {"allowed_token_ids": [3, 4]})


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with the model runner that the test names, in a process of its own."""
    runner: Runner = request.param
    with running(runner, tmp_path_factory.mktemp("model")) as engine:
        yield engine


def _on(v1: Any = V1, v2: Any = V2) -> pytest.MarkDecorator:
    # Always both, and in this order, by which pytest sorts the tests of one engine together.
    return pytest.mark.parametrize("engine", [v1, v2], indirect=True, ids=("v1", "v2"), scope="module")


def _check(engine: Engine, sampling: Sampling, *prompt_lengths: int) -> None:
    also = sampling.v1_waits if engine.runner is V1 else {}
    with engine.waiting(also) as (output, others):
        stepped = engine.run(prompt_lengths, **sampling.parameters)
    # That the engine was policed, and has made its steps.
    assert output.count >= MAX_TOKENS
    assert all(allowance.count for allowance in others)
    if engine.runner.finishes_without_kernels or _kernels_run():
        assert all(stepped.finished)


def _kernels_run() -> bool:
    return session.current().machine.kind is MachineKind.REAL


@_on()
@never_waits
@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda sampling: sampling.label)
def test_a_step_waits_by_design_only(engine: Engine, sampling: Sampling) -> None:
    """Two requests with the same parameters."""
    _check(engine, sampling, 3, 5)


@_on()
@never_waits
@pytest.mark.parametrize("lengths", [(1,), (100,), (100, 5), (3, 3, 3, 3)], ids=str)
def test_prompts_of_any_length(engine: Engine, lengths: tuple[int, ...]) -> None:
    """One of 100 tokens is computed in two steps of up to 64."""
    _check(engine, GREEDY, *lengths)


@_on()
@never_waits
def test_prompt_log_probabilities(engine: Engine) -> None:
    """They are made with the prompt, and handed out with the first token."""
    if engine.runner is V2 and not _kernels_run():
        pytest.skip("not verified: the V2 runner counts sampled tokens on the device, and kernels do not run")
    _check(engine, PROMPT_LOGPROBS, 3, 5)


@_on(
    v1=pytest.param(
        V1,
        marks=known_fault(
            "pageable-copy:cudaMemcpyAsync:H2D@vllm.v1.utils.copy_slice",
            package="vllm",
            versions=">=0.33.0,<0.34",
            called_from="vllm.v1.worker.gpu_input_batch.InputBatch._make_sampling_metadata",
            reason="allowed_token_ids_mask_cpu_tensor, alone of the tensors that copy_slice is given, is not pinned",
        ),
    )
)
@never_waits
def test_allowed_tokens(engine: Engine) -> None:
    """V1 copies a mask from the host whenever a request comes or goes."""
    _check(engine, ALLOWED_TOKENS, 3, 5)


@_on()
@no_implicit_sync(children=True)
def test_the_waits_are_found_without_their_exemptions(engine: Engine) -> None:
    """The engine is policed: what the other tests exempt is what there is."""
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync(children=True):
        engine.run([3, 5])
    findings = caught.value.findings
    assert {finding.stack[0].qualified for finding in findings} == {engine.runner.output, *engine.runner.waits}
    process = "EngineCore" if engine.runner is V1 else "SpawnProcess"
    assert all(finding.process.startswith(process) for finding in findings)
