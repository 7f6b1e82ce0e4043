"""``no_import_side_effects`` as a test writes it: on a test, or as a function to call in one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, overload

import pytest

from pytest_gpuinvariants import environment, markers, session
from pytest_gpuinvariants.allowances import Exemption
from pytest_gpuinvariants.decorators import Decorator, MarkerArgumentError, T, target_of
from pytest_gpuinvariants.events import ImportEffect
from pytest_gpuinvariants.findings import Finding, InvariantViolation, Tally
from pytest_gpuinvariants.hardware.machine import MachineKind
from pytest_gpuinvariants.invariants import no_import_side_effects as rule
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.recorders.import_effects import ImportNotVerifiedError, Request, record

_DEFAULT_TIMEOUT = 120.0


def _names(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()


def _kinds(arguments: Mapping[str, object]) -> frozenset[str]:
    return frozenset(_names(arguments["kinds"])) if "kinds" in arguments else rule.DEFAULT_KINDS


def _installed(module: str) -> bool:
    try:
        return find_spec(module.partition(".")[0]) is not None  # imports nothing: it is a top-level name
    except ValueError:
        return True  # in sys.modules, made by hand


def refusal(run: session.Run, arguments: Mapping[str, object]) -> str | None:
    """Why the imports can not be verified on this machine; None when they can."""
    for module in _names(arguments["modules"]):
        if not _installed(module):
            return f"not verified: {module.partition('.')[0]} is not installed"
    # Without a card nothing initialises CUDA, whatever the module would do where there is one.
    return run.unverifiable if "cuda-init" in _kinds(arguments) else None


def _simulated(run: session.Run) -> Mapping[str, object] | None:
    if run.machine.kind is not MachineKind.SIMULATED:
        return None
    from pytest_gpuinvariants.hardware.simulate.runtime import opened

    runtime = opened()
    assert runtime is not None
    return runtime.recipe


def _judge(effects: Iterable[ImportEffect], patterns: tuple[str, ...], record: TestRecord) -> tuple[Finding, ...]:
    """The findings that no pattern allows; what one allowed is counted in the test's record, as a zero is."""
    allowances = {
        pattern: record.covered_by(Exemption(f"{rule.NAME}(allow={pattern!r})", invariant=rule.NAME))
        for pattern in patterns
    }
    tally = Tally()
    for effect in effects:
        found = rule.check(effect)
        pattern = rule.allowed_by(effect, patterns)
        if pattern is None:
            tally.add(found)
        else:
            allowances[pattern].takes(found)
    return tally.violations


def check(run: session.Run, arguments: Mapping[str, object]) -> None:
    """Import the modules in a fresh process, and judge what that did.

    Raises:
        InvariantViolation: they have side effects.
        pytest.fail.Exception: one can not be imported, or its process hung or died: nothing is verified.
    """
    current = run.current or TestRecord()
    timeout = arguments.get("timeout", _DEFAULT_TIMEOUT)
    assert isinstance(timeout, int | float)
    request = Request(_names(arguments["modules"]), _kinds(arguments), timeout, _simulated(run))
    patterns = _names(arguments.get("allow", ()))
    current.inherited = list(environment.changed_since(run.variables))
    problem = None
    try:
        effects = record(request)
    except ImportNotVerifiedError as error:
        problem, effects = str(error), error.effects
    found = _judge(effects, patterns, current)
    current.findings += found
    if problem is not None:
        pytest.fail(f"not verified: {problem}", pytrace=False)
    current.armed(rule.NAME)
    if found:
        if current.thread != threading.get_native_id():
            current.unraised += found  # no exception would bring them to the test's report
        raise InvariantViolation(rule.NAME, found)


class NoImportSideEffects(Decorator):
    """See the marker ``no_import_side_effects``."""

    def __init__(self, args: tuple[object, ...] = (), **kwargs: object) -> None:
        super().__init__(markers.NO_IMPORT_SIDE_EFFECTS, args, **kwargs)

    @overload  # type: ignore[override]
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(
        self,
        modules: str | Collection[str],
        /,
        *,
        kinds: str | Collection[str] | None = None,
        allow: str | Collection[str] | None = None,
        timeout: float | None = None,
    ) -> NoImportSideEffects: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate, or take arguments first.

        Args:
            modules: the module to import, or several, which one fresh process imports in this order.
            kinds: the kinds of finding to report; all but ``native-thread`` when None.
            allow: patterns for what is allowed: a finding's subject, its path or command, or the
                ``module.qualname`` of a function on its stack.
            timeout: seconds until an import is given up; 120 when None.
        """
        target = target_of(args, kwargs)
        if target is not None:
            return self._apply(target)
        return NoImportSideEffects(args, **{name: value for name, value in kwargs.items() if value is not None})


no_import_side_effects = NoImportSideEffects()


def assert_no_import_side_effects(
    modules: str | Collection[str],
    *,
    kinds: str | Collection[str] | None = None,
    allow: str | Collection[str] | None = None,
    timeout: float | None = None,
) -> None:
    """Check the invariant here and now, with the test's environment, working directory and ``sys.path``.

    Args:
        modules: as for the marker, like the rest.
        kinds: kinds of finding.
        allow: patterns for what is allowed.
        timeout: seconds.

    Raises:
        MarkerArgumentError: an argument is not accepted.
        InvariantViolation: the modules have side effects.
        pytest.skip.Exception: nothing can be verified on this machine.
        pytest.fail.Exception: one can not be imported, or its process hung or died.
    """
    from pytest_gpuinvariants.regions import skip

    given = {"modules": modules, "kinds": kinds, "allow": allow, "timeout": timeout}
    arguments = {name: value for name, value in given.items() if value is not None}
    if problems := markers.NO_IMPORT_SIDE_EFFECTS.problems((), arguments):
        raise MarkerArgumentError(f"{rule.NAME}: {'; '.join(problems)}")
    run = session.current()
    if reason := refusal(run, arguments):
        skip(reason)
    check(run, arguments)
