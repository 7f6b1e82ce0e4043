"""How operators are refused: what torch says meanwhile stops nothing."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import ClassVar

from pytest_gpuinvariants.integrations import refusing


class _Warning:
    """A library as that of a torch which warns of the first operator that is overridden."""

    overridden: ClassVar[list[str]] = []

    def __init__(self, namespace: str, kind: str) -> None:
        assert (namespace, kind) == ("aten", "IMPL")

    def impl(self, name: str, function: object, key: str) -> None:
        warnings.warn(f"overriding {name}", UserWarning, stacklevel=1)
        self.overridden.append(name)

    def _destroy(self) -> None:
        self.overridden.clear()


def test_warnings_that_are_errors_do_not_stop_it() -> None:
    """As in a run with ``-W error``: this happens inside the import of torch, which would fail."""
    torch = SimpleNamespace(library=SimpleNamespace(Library=_Warning))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        undo = refusing._cublas(torch, lambda kernel, family: None)  # type: ignore[arg-type,return-value]
    assert _Warning.overridden == list(refusing.CUBLAS)
    undo()
    assert _Warning.overridden == []
