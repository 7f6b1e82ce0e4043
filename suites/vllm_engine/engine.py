"""A vLLM engine with one small layer and made-up weights, in a process of its own that a test steps."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants import allow_sync
from pytest_gpuinvariants.allowances import Allowance

MAX_TOKENS = 4
"""Tokens that each request asks for."""
_MAX_STEPS = 12
_BATCHES_AHEAD = 3
_LIMIT_S = 600

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # else it is compiled first, for a minute and a half
}
_ARGUMENTS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
}
"""Of vLLM's ``LLM``: no compilation, no graphs, and little memory."""


@dataclass(frozen=True)
class Runner:
    """One of vLLM's model runners, and where it waits for the GPU by design."""

    label: str
    variables: Mapping[str, str]
    output: str
    """The function that waits for a step's tokens, as ``module.qualname``."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """Others, and why each waits."""
    finishes_without_kernels: bool = False
    """Whether a request ends on a simulated card: V1 takes the number of sampled tokens from a shape."""


V1 = Runner(
    "v1",
    {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "vllm.v1.worker.gpu_model_runner.AsyncGPUModelRunnerOutput.get_output",
    {
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner.synchronize_input_prep": (
            "pinned staging buffers are written again, so the last step's copies must be over"
        )
    },
    finishes_without_kernels=True,
)
# Its engine core is in the process that steps it: where no kernel counts the sampled tokens it would step for ever.
V2 = Runner(
    "v2",
    {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    "vllm.v1.worker.gpu.async_utils.AsyncOutput.get_output",
)


@dataclass(frozen=True)
class Stepped:
    """What an engine did with some requests."""

    steps: int
    finished: tuple[bool, ...]
    """Of each request."""


@dataclass
class Engine:
    """The test's end of an engine's process."""

    runner: Runner
    _pipe: Connection

    def run(self, prompt_lengths: Sequence[int], **sampling: Any) -> Stepped:
        """Step until all requests have ended, or the most steps that they can need.

        Args:
            prompt_lengths: tokens in each request's prompt.
            sampling: arguments of vLLM's ``SamplingParams``.
        """
        self._pipe.send((prompt_lengths, sampling))
        stepped: Stepped = self._answer()
        return stepped

    @contextmanager
    def waiting(self, also: Mapping[str, str]) -> Iterator[tuple[Allowance, tuple[Allowance, ...]]]:
        """Exempt the wait for tokens, and the runner's others with those of ``also``: functions, and reasons."""
        with ExitStack() as stack:
            yield (
                stack.enter_context(allow_sync("tokens are handed out", where=self.runner.output, kind="sync")),
                tuple(
                    stack.enter_context(allow_sync(reason, where=place, kind="sync"))
                    for place, reason in {**self.runner.waits, **also}.items()
                ),
            )

    def ready(self) -> None:
        """Wait until the engine is there."""
        self._answer()

    def _answer(self) -> Any:
        if not self._pipe.poll(_LIMIT_S):
            pytest.fail(f"the engine's process has not answered for {_LIMIT_S} s", pytrace=False)
        try:
            answer = self._pipe.recv()
        except EOFError:
            pytest.fail("the engine's process has died", pytrace=False)
        if isinstance(answer, str):
            pytest.fail(f"the engine's process failed:\n{answer}", pytrace=False)
        return answer


@contextmanager
def running(runner: Runner, folder: Path, **arguments: Any) -> Iterator[Engine]:
    """An engine, while the block lasts.

    Args:
        runner: the model runner.
        folder: an empty one, for the model's configuration.
        arguments: more for vLLM's ``LLM``, or others than this module's.
    """
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, folder, runner.variables, arguments)
    )
    process.start()
    theirs.close()  # so that the end of a dead process is seen
    try:
        engine = Engine(runner, ours)
        engine.ready()
        yield engine
    finally:
        with contextlib.suppress(OSError):
            ours.send(None)
        process.join(60)
        if process.exitcode is None:
            process.terminate()
            process.join()


def _serve(pipe: Connection, folder: Path, variables: Mapping[str, str], arguments: Mapping[str, Any]) -> None:
    os.environ.update({**_VARIABLES, **variables})
    try:
        from vllm import LLM

        engine = LLM(**{**_ARGUMENTS, "model": str(folder), **arguments}).llm_engine
        pipe.send(None)
        for run, (lengths, sampling) in enumerate(iter(pipe.recv, None)):
            pipe.send(_step(engine, run, lengths, sampling))
    except BaseException:
        pipe.send(traceback.format_exc())
        raise


def _step(engine: Any, run: int, prompt_lengths: Sequence[int], sampling: Mapping[str, Any]) -> Stepped:
    from vllm import SamplingParams

    names = [f"{run}-{number}" for number in range(len(prompt_lengths))]
    for name, length in zip(names, prompt_lengths, strict=True):
        prompt = {"prompt_token_ids": [3 + place % 100 for place in range(length)]}
        parameters = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, detokenize=False, **sampling)
        engine.add_request(name, prompt, parameters)
    finished: set[str] = set()
    steps = 0
    while engine.has_unfinished_requests() and steps < _MAX_STEPS:
        finished.update(output.request_id for output in engine.step() if output.finished)
        steps += 1
    engine.abort_request([name for name in names if name not in finished])
    # An engine core in a process of its own still has a batch to run, an empty one that clears what has
    # finished; its loop steps once between two calls.  And the next run is to compute its prompts again.
    for _ in range(_BATCHES_AHEAD + 1):
        engine.reset_prefix_cache()
    return Stepped(steps, tuple(name in finished for name in names))
