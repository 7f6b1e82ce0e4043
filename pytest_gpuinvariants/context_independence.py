"""The differential check of a resolver: in and out of a configuration context, the one first and the other first."""

from __future__ import annotations

import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_gpuinvariants import regions, session
from pytest_gpuinvariants.decorators import MarkerArgumentError
from pytest_gpuinvariants.events import Answer, Frame, Resolutions
from pytest_gpuinvariants.findings import Finding, InvariantViolation
from pytest_gpuinvariants.invariants import context_independence as rule
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.recorders import stacks
from pytest_gpuinvariants.recorders.config_reads import ConfigReads

Resolver = Callable[[], Any]
_Condition = Callable[[], AbstractContextManager[object]]


@dataclass(eq=False)
class _Answers:
    """The answers up to now: equal ones get one number, an exception is one too."""

    same: Callable[[Any, Any], bool]
    known: list[object] = field(default_factory=list)

    def ask(self, resolver: Resolver, under: bool, reads: ConfigReads) -> Answer:
        asked = reads.calls
        answer: object
        reads.start()
        try:
            answer = resolver()
        except Exception as error:  # an answer like any other, unless there is no other
            answer = error
        finally:
            reads.stop()
        shown = f"{type(answer).__name__}({answer})" if isinstance(answer, Exception) else repr(answer)
        value = next((index for index, one in enumerate(self.known) if self._equal(one, answer)), len(self.known))
        if value == len(self.known):
            self.known.append(answer)
        return Answer(under=under, value=value, shown=shown, asked=reads.calls - asked)

    def _equal(self, one: object, other: object) -> bool:
        if isinstance(one, Exception) or isinstance(other, Exception):
            return type(one) is type(other) and str(one) == str(other)
        return bool(self.same(one, other))


def _name_of(resolver: Resolver) -> str:
    function: Any = resolver
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _context(config: object) -> _Condition:
    """A context of a configuration: vLLM's, or what a function gives."""
    if callable(config):
        return config
    vllm: Any = sys.modules.get("vllm.config") or pytest.importorskip("vllm.config", reason="not verified: no vLLM")
    given = vllm.VllmConfig() if config is None else config
    return lambda: vllm.set_current_vllm_config(given)


@contextmanager
def _variables(values: Mapping[str, str | None]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        yield


def _imported(module: str) -> AbstractContextManager[object]:
    importlib.import_module(module)
    return nullcontext()


def _compare(
    run: session.Run, resolver: Resolver, what: tuple[str, str], condition: _Condition, answers: _Answers, here: Frame
) -> tuple[Finding, ...]:
    """Ask with and without a condition, in both orders (an import can only come second)."""
    reads = ConfigReads(run.settings.full_stacks)
    orders: list[tuple[Answer, Answer]] = []
    left: list[Finding] = []
    for first in (False,) if what[0] == "import" else (True, False):
        clear = getattr(resolver, "cache_clear", None)
        if clear is not None:
            clear()
        with run.fresh.fresh_state(here, left):
            pair = []
            for under in (first, not first):
                with condition() if under else nullcontext():
                    pair.append(answers.ask(resolver, under, reads))
        orders.append((pair[0], pair[1]))
    if reads.problem is not None:
        regions.skip(f"not verified: {reads.problem}")
    event = Resolutions(
        resolver=_name_of(resolver),
        condition=what[0],
        name=what[1],
        orders=tuple(orders),
        reads=tuple(sorted(reads.counts.items(), key=lambda item: -item[1])),
        thread=stacks.current_thread(),
        stack=(here,),
    )
    found = rule.check(event)
    return (*left, found) if found is not None else tuple(left)


def assert_context_independent(
    resolver: Resolver,
    config: object = None,
    *,
    environment: Mapping[str, str | None] | None = None,
    imports: str | Iterable[str] = (),
    same: Callable[[Any, Any], bool] = operator.eq,
) -> Any:
    """Hold a resolver to one answer, inside and outside of a configuration context, whoever asks first.

    It is called inside, then outside; and in fresh caches outside, then inside.  What is fresh is what
    the registry of process-wide state knows (see ``gpu_singletons``), and the resolver's own
    ``functools.cache``.

    Args:
        resolver: called without arguments; give others with ``functools.partial``.
        config: the configuration, None for ``VllmConfig()``; or a function that gives a context manager which sets one.
        environment: variables (None: removed) under which the answer must be the same, too.
        imports: modules, not imported yet, after whose import the answer must be the same, too.
        same: whether two answers are the same.

    Returns:
        The answer.

    Raises:
        MarkerArgumentError: the resolver is no function.
        InvariantViolation: the answers differ, or the resolver left process-wide state.
        pytest.skip.Exception: vLLM is not installed, or a module of ``imports`` is imported already.
        Exception: the resolver's own, when it answers with nothing else.
    """
    if not callable(resolver):
        raise MarkerArgumentError(f"assert_context_independent: 'resolver' is {resolver!r}; accepted: a function")
    run = session.current()
    record = run.current or TestRecord()
    here = next(iter(stacks.capture()), Frame("?", "?", "?", 0))
    modules = (imports,) if isinstance(imports, str) else tuple(imports)
    conditions: list[tuple[str, str, _Condition]] = [("context", "in the configuration context", _context(config))]
    if environment:
        shown = ", ".join(
            f"{name}={value}" if value is not None else f"no {name}" for name, value in environment.items()
        )
        conditions.append(("environment", f"with {shown}", partial(_variables, environment)))
    early = [name for name in modules if name in sys.modules]
    conditions += [
        ("import", f"after the import of {name}", partial(_imported, name)) for name in modules if name not in early
    ]
    answers = _Answers(same)
    found: list[Finding] = []
    for kind, name, condition in conditions:
        found += _compare(run, resolver, (kind, name), condition, answers, here)
    record.armed(rule.NAME)
    record.findings += found
    if found:
        if record.thread != threading.get_native_id():
            record.unraised += found  # no exception would bring them to the test's report
        raise InvariantViolation(rule.NAME, tuple(found))
    if early:
        regions.skip(f"not verified: {', '.join(early)} is imported already: what comes before it can not be asked")
    answer = answers.known[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


def check_all(resolvers: object) -> None:
    """Check the resolvers of a marker: functions or ``module:qualname``, one or several.

    Raises:
        InvariantViolation: of the first that depends on the context.
        pytest.fail.Exception: there is no such function.
    """
    given = resolvers if isinstance(resolvers, list | tuple | set | frozenset) else (resolvers,)
    for resolver in given:
        assert_context_independent(_found(resolver) if isinstance(resolver, str) else resolver)


def _found(where: str) -> Resolver:
    module, _, path = where.partition(":")
    try:
        found: Any = operator.attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"fresh_config_context: no resolver {where!r}: {error}", pytrace=False)
    return found  # type: ignore[no-any-return]
