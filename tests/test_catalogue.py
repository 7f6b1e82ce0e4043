"""Public bug reports, each as the smallest faithful case: a bad form that is found, a fixed form that is clean.

The numbers are the reports': vLLM, FlashInfer and SGLang issues and pull requests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_gpuinvariants import InvariantViolation, allow_sync, no_implicit_sync

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("card")


@dataclass(frozen=True)
class Case:
    """A report: kinds that its bad form is found as, and both forms."""

    report: str
    kinds: frozenset[str]
    bad: Callable[[], object]
    fixed: Callable[[], object]


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


def _runtime() -> ctypes.CDLL:
    """The CUDA runtime as another library would open it, by name."""
    return ctypes.CDLL("libcudart.so.13")


def _blocking_copy() -> None:
    target, source = _ones(4), torch.ones(4).pin_memory()
    arguments = (ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(16), 1)
    assert _runtime().cudaMemcpy(*arguments) == 0


def _asynchronous_copy() -> None:
    target, source = _ones(4), torch.ones(4).pin_memory()
    arguments = (ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(16), 1)
    assert _runtime().cudaMemcpyAsync(*arguments, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)) == 0


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


def _capture(work: Callable[[torch.Tensor], object]) -> None:
    # Not torch.cuda.graph(): that synchronizes the device by itself, which is a finding of its own.
    graph, static = torch.cuda.CUDAGraph(), _ones(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        try:
            work(static)
        finally:
            graph.capture_end()


def _captured_item() -> None:
    with pytest.raises(RuntimeError, match="capture"):
        _capture(torch.Tensor.item)


def _pinned_gapped() -> torch.Tensor:
    return torch.ones(4, 4).pin_memory()[:, ::2]


SYNC, PAGEABLE, GAPPED, BLOCKING = "sync", "pageable-copy", "gapped-copy", "blocking-copy"
CASES = [
    Case(
        "vllm 52657: device query_start_loc goes .to('cpu') in the plan",
        frozenset({SYNC, PAGEABLE}),
        lambda: _ones(9).to("cpu"),
        lambda: torch.arange(9).to("cpu"),
    ),
    Case(
        "vllm 57352: the builder copies seq_lens to the host",
        frozenset({SYNC, PAGEABLE}),
        lambda: _ones(8).cpu(),
        lambda: torch.empty(8).pin_memory().copy_(_ones(8), non_blocking=True),
    ),
    Case(
        "vllm 16436: boolean-mask assignment hides a nonzero",
        frozenset({SYNC}),
        lambda: _ones(4)[_ones(4) > 0].mul_(2),
        lambda: torch.where(_ones(4) > 0, _ones(4) * 2, _ones(4)),
    ),
    Case(
        "vllm 41429: torch.tensor([1], device='cuda')",
        frozenset({SYNC, PAGEABLE}),
        lambda: torch.tensor([1], device="cuda"),
        lambda: torch.tensor([1], pin_memory=True).to("cuda", non_blocking=True),
    ),
    Case(
        "vllm 51458: torch.any(...).item()",
        frozenset({SYNC}),
        lambda: torch.any(_ones(4) > 0).item(),
        lambda: torch.any(_ones(4) > 0),
    ),
    Case(
        "vllm 51458: a missing non_blocking",
        frozenset({SYNC}),
        lambda: torch.ones(4).pin_memory().to("cuda"),
        lambda: torch.ones(4).pin_memory().to("cuda", non_blocking=True),
    ),
    Case(
        "vllm 53491: a pageable tensor copied with non_blocking",
        frozenset({PAGEABLE}),
        lambda: torch.empty(1 << 20).to("cuda", non_blocking=True),
        lambda: torch.empty(1 << 20).pin_memory().to("cuda", non_blocking=True),
    ),
    Case(
        "vllm 53491: a pinned tensor with gaps",
        frozenset({GAPPED}),
        lambda: _pinned_gapped().to("cuda", non_blocking=True),
        lambda: torch.ones(4, 2).pin_memory().to("cuda", non_blocking=True),
    ),
    Case(
        "vllm 53491: copied into a pinned tensor with gaps",
        frozenset({GAPPED}),
        lambda: _pinned_gapped().copy_(_ones(4, 2), non_blocking=True),
        lambda: torch.ones(4, 2).pin_memory().copy_(_ones(4, 2), non_blocking=True),
    ),
    Case(
        "vllm 48749: .item() inside torch.cuda.graph capture",
        frozenset({"capture-unsafe"}),
        _captured_item,
        lambda: _capture(lambda static: static.add_(1)),
    ),
    Case(
        "a stream is waited for",
        frozenset({SYNC}),
        lambda: torch.cuda.current_stream().synchronize(),
        lambda: torch.cuda.current_stream().query(),
    ),
    Case(
        "an event is waited for",
        frozenset({SYNC}),
        lambda: _event().synchronize(),
        lambda: torch.cuda.current_stream().wait_event(_event()),
    ),
    Case(
        "a library synchronizes the device, unseen by torch",
        frozenset({SYNC}),
        lambda: _runtime().cudaDeviceSynchronize(),
        lambda: _runtime().cudaStreamQuery(None),
    ),
    Case("a library makes a blocking copy, unseen by torch", frozenset({BLOCKING}), _blocking_copy, _asynchronous_copy),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.report)
def test_bad_form_is_found_at_its_line_and_fixed_form_is_clean(case: Case) -> None:
    with no_implicit_sync():
        case.fixed()
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync():
        case.bad()
    findings = caught.value.findings
    assert {found.kind for found in findings} == case.kinds
    for found in findings:
        assert found.stack[0].file == __file__
        assert found.thread.name == "MainThread"
        functions = [frame.function for frame in found.stack]
        assert functions[-1] == "test_bad_form_is_found_at_its_line_and_fixed_form_is_clean"


@pytest.mark.parametrize("planner", ["host metadata", "device metadata"])
def test_flashinfer_3338_copies_are_counted_for_each_plan(planner: str) -> None:
    """Flashinfer 3338, sglang 23500: how many blocking D2H copies a plan makes, by where its metadata lies."""
    device = "cuda" if planner == "device metadata" else "cpu"
    metadata = [torch.zeros(5, dtype=torch.int32).to(device) for _ in range(3)]

    def plan() -> list[torch.Tensor]:
        return [tensor.to("cpu") for tensor in metadata]

    plans = 4
    with no_implicit_sync() as region, allow_sync("counted") as allowance:
        for _ in range(plans):
            plan()
    assert region.tally.violations == ()
    counts = {found.kind: found.count for found in allowance.calls.violations}
    each = len(metadata) * plans
    assert counts == ({PAGEABLE: each, SYNC: each} if device == "cuda" else {})


def test_vllm_54817_an_allowance_around_a_planner_counts_what_it_hides() -> None:
    def planner() -> None:
        _ones(2).sum().item()
        torch.cuda.synchronize()

    with no_implicit_sync(), allow_sync("the planner") as allowance:
        planner()
    assert allowance.count == 2
    assert {found.stack[0].function.rpartition(".")[2] for found in allowance.calls.violations} == {"planner"}


def test_values_survive_both_directions() -> None:
    """The simulated card copies; without this, a clean region could be one that did nothing."""
    values = torch.arange(1 << 12, dtype=torch.int64).pin_memory()
    back = torch.empty_like(values).pin_memory()
    with no_implicit_sync():
        back.copy_(values.to("cuda", non_blocking=True), non_blocking=True)
    assert torch.equal(back, values)


def test_generated_code_is_told_apart_by_its_lines() -> None:
    """Code objects that are equal, made and dropped again and again: each call is still of its own line."""
    stream = torch.cuda.current_stream()
    lines, times = 20, 200
    with no_implicit_sync() as region, allow_sync("counted") as allowance:
        for index in range(lines * times):
            source = "\n" * (index % lines) + "wait()\n"
            exec(compile(source, f"<generated {index % lines}>", "exec"), {"wait": stream.synchronize})
    assert region.tally.violations == ()
    counts = {found.stack[0].line: found.count for found in allowance.calls.violations}
    assert counts == dict.fromkeys(range(1, lines + 1), times)
