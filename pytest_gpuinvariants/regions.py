"""``no_implicit_sync`` and ``allow_sync`` as a test writes them: on a test, or around a part of it."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

import pytest

from pytest_gpuinvariants import allowances, markers, session, settings
from pytest_gpuinvariants.allowances import Allowance, Exemption
from pytest_gpuinvariants.children import child
from pytest_gpuinvariants.children.parent import Report
from pytest_gpuinvariants.decorators import Decorator, MarkerArgumentError, T, target_of
from pytest_gpuinvariants.findings import InvariantViolation, unverified
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.invariants import no_implicit_sync as rule
from pytest_gpuinvariants.monitor import Region
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError
from pytest_gpuinvariants.scopes import Scope

_V = TypeVar("_V")


class _Entered(Generic[_V]):
    """What one object's ``with`` blocks have entered: tasks and threads may share the object."""

    def __init__(self) -> None:
        self._values: list[tuple[FrameType, _V]] = []
        self._lock = threading.Lock()

    def add(self, value: _V) -> None:
        """Remember a value for the ``with`` block of the caller's caller."""
        with self._lock:
            self._values.append((sys._getframe(2), value))

    def take(self) -> _V:
        """The value of the ``with`` block that the caller's caller leaves; of an ExitStack's, the latest."""
        frame = sys._getframe(2)
        with self._lock:
            mine = [index for index, (owner, _) in enumerate(self._values) if owner is frame]
            return self._values.pop(mine[-1] if mine else -1)[1]


def refuse(reason: str) -> None:
    """Enter in the test's record why something was not verified."""
    if session.is_running() and (record := session.current().current) is not None:
        record.refused = reason


def skip(reason: str) -> NoReturn:
    """Skip the test, at its own place in the file; its record keeps why, should the skip be caught."""
    refuse(reason)
    raise pytest.skip.Exception(reason, _use_item_location=True)


class InvariantWarning(UserWarning):
    """A violation, where the mode is ``warn``."""


@dataclass(eq=False)
class Policing:
    """``no_implicit_sync`` in force: a region here and, when asked for, one in the test's children."""

    run: session.Run
    region: Region
    mode: str
    child_region: int | None = None
    reach: ExitStack = field(default_factory=ExitStack)


def enter(run: session.Run, region: Region) -> None:
    """Arm a region, and enter its invariant in the test's record.

    Raises:
        pytest.skip.Exception: the recorder can not see the calls now, so nothing would be verified.
    """
    assert run.monitor is not None
    try:
        run.monitor.enter(region)
    except RecorderUnavailableError as error:
        skip(f"not verified: {error}")
    if run.current is not None:
        run.current.armed(region.invariant)


def arm(run: session.Run, arguments: dict[str, object], scope: Scope) -> Policing:
    """Arm ``no_implicit_sync`` with a marker's arguments.

    Raises:
        pytest.skip.Exception: the recorder can not see the calls now, so nothing would be verified.
    """
    chosen = settings.for_marker(run.config, run.settings, arguments, rule.NAME)
    options = rule.Options(chosen.kinds, chosen.pageable_threshold)
    policing = Policing(run, Region(rule.NAME, rule.wanted(options), rule.rule(options), scope), chosen.mode)
    with ExitStack() as undo:
        if arguments.get("children"):
            undo.enter_context(run.children.reached())
        enter(run, policing.region)
        policing.reach = undo.pop_all()
    vllm_sync.enter()
    if arguments.get("children"):
        policing.child_region = run.children.arm(options)
    return policing


def _leave(policing: Policing) -> Report:
    """Disarm; what children have to say."""
    assert policing.run.monitor is not None
    try:
        policing.run.monitor.leave(policing.region)
    finally:
        number = policing.child_region
        report = policing.run.children.disarm(number) if number is not None else Report((), ())
    return report


def settle(policing: Policing, leaving: bool) -> None:
    """Disarm, and enter what was found in the test's record.

    Args:
        policing: what :func:`arm` returned.
        leaving: another exception is on its way, which is not to be replaced.

    Raises:
        InvariantViolation: there were violations, the mode is ``error``, and no exception is on its way.
        pytest.skip.Exception: there were none, but a call or a child could not be policed.
    """
    run, region = policing.run, policing.region
    assert run.monitor is not None
    vllm_sync.leave()
    with policing.reach:  # ends whatever fails: the channel must not stay open for later tests
        report = _leave(policing)
    found = [*region.tally.violations, *region.tally.notes]
    found += (one for child in report.findings if (one := run.exempt(child)) is not None)
    violations = tuple(one for one in found if not (one.note or one.doubt))
    doubts = [*region.tally.doubts, *(one for one in found if one.doubt)]
    record = run.current
    if record is not None and record.warming_up:
        record.warmup += violations
        return
    if record is not None:
        record.findings += violations
        record.notes += [one for one in found if one.note]
        record.warned |= bool(violations) and policing.mode == "warn"
    if violations:
        violation = InvariantViolation(rule.NAME, violations, region.tally.overflow)
        if policing.mode == "warn":
            warnings.warn(InvariantWarning(str(violation)), stacklevel=3)
            return
        if record is not None and (leaving or record.thread != threading.get_native_id()):
            record.unraised += violations  # no exception would bring them to the test's report
        if not leaving:
            raise violation
        return
    reasons = [unverified(doubts)] if doubts else []
    reasons += [f"a child process could not be policed: {'; '.join(report.errors)}"] if report.errors else []
    if reasons:
        (refuse if leaving else skip)(f"not verified: {'; '.join(reasons)}")


class NoImplicitSync(Decorator):
    """See the marker ``no_implicit_sync``.  As a context manager it polices the block.

    The block covers its thread and the threads that are started inside it; in a generator or
    coroutine, what runs while that one does.
    """

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.NO_IMPLICIT_SYNC, args, **kwargs)
        self._entered = _Entered[Policing]()

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(
        self,
        *,
        kinds: str | Iterable[str] | None = None,
        pageable_threshold: int | None = None,
        mode: Literal["error", "warn"] | None = None,
        warmup: int | None = None,
        threads: Literal["own", "all"] | None = None,
        children: bool | None = None,
    ) -> NoImplicitSync: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate, or take arguments first.

        Args:
            kinds: the kinds of finding to report; all but ``allocation`` when None.
            pageable_threshold: pageable copies below this many bytes are only a note.
            mode: ``error`` fails the test, ``warn`` warns.
            warmup: how often a marked test is called before the rule is armed.
            threads: ``own`` polices the test's thread and those started inside, ``all`` every thread.
            children: police processes that the test starts, too.
        """
        target = target_of(args, kwargs)
        if target is not None:
            return self._apply(target)
        return NoImplicitSync(args, **{name: value for name, value in kwargs.items() if value is not None})

    def __enter__(self) -> Region:
        """Arm the rule.

        Raises:
            MarkerArgumentError: an argument is not accepted.
            pytest.skip.Exception: nothing can be verified on this machine.
        """
        arguments = dict(self.kwargs)
        if problems := self._definition.problems(self.args, arguments):
            raise MarkerArgumentError(f"{self.name}: {'; '.join(problems)}")
        if "warmup" in arguments:
            raise MarkerArgumentError("no_implicit_sync: 'warmup' is for a whole test: a region is entered warm")
        run = session.current()
        if reason := run.unverifiable:
            skip(reason)
        policing = arm(run, arguments, Scope.here(arguments.get("threads") == "all"))
        self._entered.add(policing)
        return policing.region

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disarm the rule.

        Raises:
            InvariantViolation: there were findings, and no other exception is on its way.
        """
        settle(self._entered.take(), leaving=error is not None)


class AllowSync:
    """A named exemption from ``no_implicit_sync``: ``with allow_sync("reading the sampled token"):``.

    It covers its thread, and with ``children=True`` all children that the regions around it police.
    Also decorates a function.  The calls that it covered are counted in the report and in
    ``allowance.count``, which a test may assert.
    """

    def __init__(
        self,
        reason: str,
        *,
        where: str | None = None,
        api: str | None = None,
        kind: str | None = None,
        max_count: int | None = None,
    ) -> None:
        """Declare the exemption.

        Args:
            reason: why, for the report.
            where: pattern for ``module.qualname`` of a function on the call's stack.
            api: pattern for the CUDA call, for example ``cudaStreamSynchronize``.
            kind: a kind of finding.
            max_count: calls beyond this number are findings.
        """
        try:
            self.exemption = allowances.check(Exemption(reason, where, api, kind, max_count))
        except allowances.ExemptionError as error:
            raise MarkerArgumentError(f"allow_sync: {error}") from error
        self._entered = _Entered[tuple[Allowance, ExitStack]]()

    def __enter__(self) -> Allowance:
        """Begin the exemption.  In a process without a run of its own, such as a test's child, nothing is counted."""
        allowance = Allowance(self.exemption, Scope.here())
        inside = ExitStack()
        run = session.current() if session.is_running() else None
        if run is None:
            inside.enter_context(child.exempting(allowance))
        else:
            if run.monitor is not None:
                run.monitor.enter(allowance)
                inside.callback(run.monitor.leave, allowance)
            inside.enter_context(run.children.allowed(allowance))
            if run.current is not None and not run.current.warming_up:
                run.current.covered_by(self.exemption)  # so that one that covers nothing is reported
        self._entered.add((allowance, inside))
        return allowance

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the exemption."""
        allowance, inside = self._entered.take()
        inside.close()
        if session.is_running():
            record = session.current().current
            if record is not None and not record.warming_up:
                record.covered_by(self.exemption).absorb(allowance)

    def __call__(self, function: T) -> T:
        """Decorate a function, a coroutine function or a generator function: what it does is exempt."""
        if inspect.isasyncgenfunction(function):
            raise MarkerArgumentError("allow_sync: an asynchronous generator can not be decorated: use 'with' in it")
        allowed: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def allowed(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def allowed(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return (yield from function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def allowed(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        decorated: T = allowed
        return decorated


no_implicit_sync = NoImplicitSync()
allow_sync = AllowSync
