"""Markers as objects: decorators and ``pytestmark`` entries that complete in an editor with their types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import pytest

from pytest_gpuinvariants import markers

P = ParamSpec("P")
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


class Gate(Decorator, Generic[P]):
    """See the markers ``requires_…``.  The arguments are those of a function that stands for the signature."""

    def __init__(
        self, arguments: Callable[P, None], name: str, args: tuple[object, ...] = (), **kwargs: object
    ) -> None:
        self._arguments = arguments
        super().__init__(markers.MARKERS[name], args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...  # type: ignore[overload-overlap]  # P takes no callable
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Gate[P]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate, or take arguments first."""
        target = target_of(args, kwargs)
        if target is not None:
            return self._apply(target)
        return Gate(self._arguments, self._definition.name, args, **kwargs)


def _capability(
    major: int, minor: int | None = None, *, or_newer: bool = False, family: bool = False, host_only: bool = False
) -> None:
    """State which compute capability is needed.

    Args:
        major: the major number.
        minor: the minor number; any without it.
        or_newer: accept any compute capability from there on, of later majors too.
        family: accept any on which code for that family-specific target (``sm_100f``) runs.
        host_only: no kernel is launched, so the test may run on a simulated card.
    """


def _named(*, or_newer: bool = False, host_only: bool = False) -> None:
    """Need the capability that the marker is named after.

    Args:
        or_newer: accept any compute capability from that one on, of later majors too.
        host_only: no kernel is launched, so the test may run on a simulated card.
    """


def _gpus(n: int, *, host_only: bool = False) -> None:
    """State how many GPUs CUDA must see.

    Args:
        n: that number, or more.
        host_only: no kernel is launched, so the test may run on simulated cards.
    """


def _memory(amount: str, *, host_only: bool = False) -> None:
    """State how much memory the current GPU must have.

    Args:
        amount: for example ``40GiB`` or ``80GB``; all of the card's memory counts, not what is free.
        host_only: no kernel is launched, so the test may run on a simulated card.
    """


def _nvlink(*, host_only: bool = False) -> None:
    """Need GPUs that are joined by NVLink, each to each.

    Args:
        host_only: no kernel is launched, so the test may run on simulated cards.
    """


def _cuda(versions: str) -> None:
    """State which CUDA torch must be built for.

    Args:
        versions: a range, for example ``>=12.8`` or ``>=12.8,<13.2``.
    """


def _package(requirement: str) -> None:
    """State which package must be installed.

    Args:
        requirement: the distribution and its versions, for example ``flashinfer-python>=0.7``.
    """


class FreshConfigContext(Decorator):
    """See the marker ``fresh_config_context``."""

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.FRESH_CONFIG_CONTEXT, args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(
        self,
        *,
        strict: bool = False,
        allow_reads: str | Iterable[str] = (),
        singletons: str | Iterable[str] = (),
        may_leave: str | Iterable[str] = (),
        resolvers: str | Callable[[], Any] | Collection[str | Callable[[], Any]] = (),
    ) -> FreshConfigContext: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate, or take arguments first.

        Args:
            strict: a read of vLLM's current configuration outside of a context is a finding.
            allow_reads: patterns for ``module.qualname`` of readers that may.
            singletons: patterns for names of state that the test may make or find; it is destroyed all the same.
            may_leave: patterns for names of state that the test may leave for what runs after it.
            resolvers: functions without arguments, or ``module:qualname``, which must answer the same inside and
                outside of the context of ``VllmConfig()``: see ``assert_context_independent``.
        """
        target = target_of(args, kwargs)
        return FreshConfigContext(args, **kwargs) if target is None else self._apply(target)


class KnownFault(Decorator):
    """See the marker ``known_fault``."""

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.KNOWN_FAULT, args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(
        self,
        finding: str | Collection[str],
        /,
        *,
        package: str,
        versions: str,
        reason: str,
        called_from: str | None = None,
    ) -> KnownFault: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Declare a fault of a released package.

        Args:
            finding: the id that the test must fail with, and no other; of several, each.
            package: the distribution at fault, for example ``vllm``.
            versions: its faulty versions, for example ``>=0.33.0,<0.34``.
            reason: what is wrong upstream.
            called_from: ``module.qualname`` of a frame that must be on the finding's stack.
        """
        target = target_of(args, kwargs)
        if target is not None:
            return self._apply(target)
        return KnownFault(args, **{name: value for name, value in kwargs.items() if value is not None})


requires_sm = Gate(_capability, "requires_sm")
requires_sm80 = Gate(_named, "requires_sm80")
requires_sm89 = Gate(_named, "requires_sm89")
requires_sm90 = Gate(_named, "requires_sm90")
requires_sm100 = Gate(_named, "requires_sm100")
requires_sm103 = Gate(_named, "requires_sm103")
requires_sm120 = Gate(_named, "requires_sm120")
requires_gpus = Gate(_gpus, "requires_gpus")
requires_gpu_memory = Gate(_memory, "requires_gpu_memory")
requires_nvlink = Gate(_nvlink, "requires_nvlink")
requires_cuda = Gate(_cuda, "requires_cuda")
requires_package = Gate(_package, "requires_package")
fresh_config_context = FreshConfigContext()
known_fault = KnownFault()
