"""Markers as objects: decorators and ``pytestmark`` entries that complete in an editor with their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import pytest

from pytest_gpuinvariants import markers

T = TypeVar("T", bound=Callable[..., Any] | type)
"""What a marker decorates: a function or a class, which it returns unchanged."""


class MarkerArgumentError(TypeError):
    """A region was opened with an argument that its marker does not accept."""


class Decorator(pytest.MarkDecorator):
    """A marker as an object: decorates functions and classes, and stands in ``pytestmark`` and ``marks=``.

    ``@pytest.mark.<name>`` is the same marker; this one completes in an editor with its types.
    """

    def __init__(self, marker: markers.Marker, args: tuple[object, ...] = (), **kwargs: object) -> None:
        self._definition = marker
        super().__init__(pytest.Mark(marker.name, args, kwargs, _ispytest=True), _ispytest=True)

    @property
    def mark(self) -> pytest.Mark:
        """The mark.  Asking pytest for one of its name makes it warn where the plugin is not loaded."""
        getattr(pytest.mark, self._definition.name)
        return self._mark

    @mark.setter
    def mark(self, value: pytest.Mark) -> None:
        self._mark = value

    def _apply(self, target: T) -> T:
        marked: T = super().__call__(target)
        return marked

    def __repr__(self) -> str:
        mark = self._mark
        given = [repr(value) for value in mark.args] + [f"{name}={value!r}" for name, value in mark.kwargs.items()]
        return f"{mark.name}({', '.join(given)})"


def target_of(args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """The decorated object, when a call is a decoration."""
    return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else None


class RequiresSm90(Decorator):
    """See the marker ``requires_sm90``."""

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.REQUIRES_SM90, args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(self, *, or_newer: bool = False, host_only: bool = False) -> RequiresSm90: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate, or take arguments first.

        Args:
            or_newer: accept any compute capability from 9.0 on, not only 9.x.
            host_only: no SM90 kernel is launched, so the test may run on a simulated card.
        """
        target = target_of(args, kwargs)
        return RequiresSm90(args, **kwargs) if target is None else self._apply(target)


class KnownFault(Decorator):
    """See the marker ``known_fault``."""

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.KNOWN_FAULT, args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(
        self, finding: str, /, *, package: str, versions: str, reason: str, called_from: str | None = None
    ) -> KnownFault: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Declare a fault of a released package.

        Args:
            finding: the id that the test must fail with, and no other.
            package: the distribution at fault, for example ``vllm``.
            versions: its faulty versions, for example ``>=0.33.0,<0.34``.
            reason: what is wrong upstream.
            called_from: ``module.qualname`` of a frame that must be on the finding's stack.
        """
        target = target_of(args, kwargs)
        if target is not None:
            return self._apply(target)
        return KnownFault(args, **{name: value for name, value in kwargs.items() if value is not None})


requires_sm90 = RequiresSm90()
known_fault = KnownFault()
