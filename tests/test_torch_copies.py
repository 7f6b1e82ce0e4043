"""While a region is armed, Tensor's copying methods have stand-ins that nobody should notice."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_gpuinvariants import no_implicit_sync, session

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def torch() -> Any:
    if session.current().monitor is None:
        pytest.skip("not verified: this machine has neither a GPU nor a simulated one")
    return pytest.importorskip("torch")


def test_they_look_and_fail_like_the_methods(torch: Any) -> None:
    before = {name: (method.__name__, method.__doc__) for name in _METHODS if (method := getattr(torch.Tensor, name))}
    plain = torch.Tensor.copy_
    with no_implicit_sync():
        assert torch.Tensor.copy_ is not plain
        assert before == {
            name: (getattr(torch.Tensor, name).__name__, getattr(torch.Tensor, name).__doc__) for name in _METHODS
        }
        with pytest.raises(TypeError):
            torch.ones(2).copy_()
        with pytest.raises(RuntimeError):
            torch.ones(2).copy_(torch.ones(3))
        bound = torch.ones(2).copy_
        assert bound(torch.zeros(2)).tolist() == [0.0, 0.0]
        assert torch.Tensor.to(torch.ones(2), dtype=torch.int32).dtype is torch.int32
        assert copy.deepcopy(torch.ones(2)).cpu().tolist() == [1.0, 1.0]
        values = torch.ones(2)
        values[0] = 3
        assert values.tolist() == [3.0, 1.0]
    assert torch.Tensor.copy_ is plain


_METHODS = ("copy_", "to", "cuda", "cpu", "__setitem__")


def test_a_method_that_was_wrapped_is_put_back(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = torch.Tensor.copy_, []

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", wrapped)
    with no_implicit_sync():
        torch.ones(2).copy_(torch.zeros(2))
    assert len(calls) == 1
    assert torch.Tensor.copy_ is wrapped


def test_function_modes_see_the_methods(torch: Any) -> None:
    seen: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with no_implicit_sync(), Mode():
        torch.ones(2).copy_(torch.zeros(2)).to(torch.float64)[0] = 1
    assert {"copy_", "to", "__setitem__"} <= set(seen)


@pytest.mark.parametrize("armed_first", [False, True], ids=["compiled-before", "compiled-inside"])
def test_compiled_code_keeps_its_graph(torch: Any, armed_first: bool) -> None:
    def work(x: Any, y: Any) -> Any:
        y[:] = x.to(torch.float32)
        return y.copy_(y).cpu() + 1

    def graphs() -> int:
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    torch._dynamo.reset()
    compiled = torch.compile(work, backend="eager", fullgraph=True)
    x, y = torch.ones(2, dtype=torch.float64), torch.zeros(2)
    before = graphs()
    for armed in (armed_first, not armed_first, True, False):
        if armed:
            with no_implicit_sync():
                assert compiled(x, y).tolist() == [2.0, 2.0]
        else:
            assert compiled(x, y).tolist() == [2.0, 2.0]
    assert graphs() == before + 1
