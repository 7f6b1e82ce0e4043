"""torch.compile beside an armed region: neither graph breaks nor recompilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuinvariants import InvariantViolation, no_implicit_sync

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fresh_compiler(card: None) -> None:
    torch._dynamo.reset()


def move(values: torch.Tensor) -> torch.Tensor:
    return values.to("cuda", non_blocking=True) + 1


def overwrite(values: torch.Tensor) -> torch.Tensor:
    return values.copy_(torch.zeros(3)).cpu() + 1


@pytest.mark.parametrize("function", [move, overwrite])
def test_a_whole_graph_is_compiled_inside_a_region(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    pinned = torch.ones(3).pin_memory()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    with no_implicit_sync():
        compiled(pinned)


def test_a_region_makes_nothing_compile_again() -> None:
    compilations: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    compiled = torch.compile(move, backend=backend, fullgraph=True)
    pinned = torch.ones(3).pin_memory()
    compiled(pinned)
    with no_implicit_sync():
        compiled(pinned)
    compiled(pinned)
    assert len(compilations) == 1


def test_a_compiled_function_is_policed() -> None:
    compiled = torch.compile(move, backend="eager", fullgraph=True)
    pageable = torch.ones(3)
    compiled(pageable)
    with pytest.raises(InvariantViolation, match="from pageable memory"), no_implicit_sync():
        compiled(pageable)


def test_a_function_compiled_by_inductor_is_policed() -> None:
    """Its kernels are Triton's, loaded from files."""

    def scale(values: torch.Tensor) -> torch.Tensor:
        return (values * 2 + 1).sum()

    scaled = torch.compile(scale, fullgraph=True)
    values = torch.ones(64, device="cuda")
    scaled(values)
    with no_implicit_sync():
        total = scaled(values)
    with pytest.raises(InvariantViolation, match="cudaStreamSynchronize"), no_implicit_sync():
        total.item()
