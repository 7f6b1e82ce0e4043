"""``fresh_config_context`` in a run: the guard of the test under way, and the fixtures around it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import pytest

from pytest_gpuinvariants.events import Change, ConfigRead, Frame
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.guard import Guard, Owner, Owners
from pytest_gpuinvariants.integrations import singletons
from pytest_gpuinvariants.integrations.singletons import MISSING, Registry, Singleton, Snapshot, Treatment, same
from pytest_gpuinvariants.invariants import fresh_config_context as rule
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.recorders.config_reads import ConfigReads, census


def _options(arguments: dict[str, Any]) -> rule.Options:
    def patterns(name: str) -> tuple[str, ...]:
        value = arguments.get(name, ())
        return (value,) if isinstance(value, str) else tuple(value)

    names = ("allow_reads", "singletons", "may_leave")
    return rule.Options(bool(arguments.get("strict", False)), *(patterns(name) for name in names))


def _place_of(item: pytest.Item) -> Frame:
    file, line, _ = item.reportinfo()
    module = getattr(getattr(item, "module", None), "__name__", "")
    function = getattr(getattr(item, "obj", None), "__qualname__", item.name)
    return Frame(module, function, str(file), (line or 0) + 1)


@dataclass(eq=False)
class _Armed:
    """What is in force for one test."""

    guard: Guard
    registry: Registry
    reads: ConfigReads
    options: rule.Options
    record: TestRecord | None
    """None when the test's reports are made: it was interrupted."""
    told: dict[ConfigRead, int] = field(default_factory=dict)


class Fresh:
    """The run's part: the registry, what fixtures of wider scope hold, and the guard in force.

    A test is guarded from before its fixtures are set up until its own (function-scoped) fixtures are
    torn down.  What a fixture of wider scope does meanwhile is that fixture's: it is reported, and
    neither destroyed nor undone.
    """

    def __init__(self, full_stacks: bool = False) -> None:
        self.remarks: list[str] = []
        """What an interrupted test left."""
        self._full = full_stacks
        self._owners: Owners = {}
        self._tearing_down: dict[int, Snapshot] = {}
        self._armed: _Armed | None = None
        self._used: bool | None = None

    @cached_property
    def registry(self) -> Registry:
        """The built-in entries and those of installed packages."""
        return singletons.load()

    def begin(self, item: pytest.Item, arguments: dict[str, Any], record: TestRecord) -> None:
        """Guard a test, until its own teardown."""
        self.end()
        options, registry = _options(arguments), Registry(self.registry)
        fixtures: Iterable[str] = getattr(item, "fixturenames", ())
        guard = Guard(registry, options, _place_of(item), self._owners, frozenset(fixtures), self._full)
        self._armed = _Armed(guard, registry, ConfigReads(self._full), options, record)
        teardown = item.teardown

        def guarded_teardown() -> None:
            # pytest's last step for the item: its fixtures are gone, those of wider scope are not.
            del item.teardown
            try:
                teardown()
            finally:
                self.end()

        item.teardown = guarded_teardown  # type: ignore[method-assign]
        record.armed(rule.NAME)
        guard.enter()
        self._armed.reads.start()

    def register(self, entry: Singleton) -> None:
        """Guard one more entry, until the end of the test."""
        if self._armed is not None:
            self._armed.registry.add(entry)
            self._armed.guard.add(entry)

    def reads(self) -> str | None:
        """Enter the reads up to now in the record; why they could not be seen where that was asked for."""
        armed = self._armed
        if armed is None or armed.record is None:
            return None
        counts = dict(armed.reads.counts)
        armed.record.config_reads = census(counts)
        for read, count in counts.items():
            found = rule.check(read, armed.options)
            new = count - armed.told.get(read, 0)
            if found is not None and new:
                _enter(armed.record, replace(found, count=new))
        armed.told = counts
        return armed.reads.problem if armed.options.strict else None

    def end(self) -> None:
        """End the guard, if there is one, and enter what it found in the record."""
        armed = self._armed
        if armed is None:
            return
        packages = armed.guard.packages
        armed.guard.leave()
        armed.reads.stop()
        self.reads()
        self._armed = None
        found = [one for change in armed.guard.changes if (one := rule.check(change, armed.options)) is not None]
        record = armed.record
        if record is None:
            self.remarks += [f"an interrupted test: {one.line}" for one in found if not one.note]
            return
        for one in found:
            _enter(record, one)
        for problem in _unknown(armed.options, armed.registry):
            _enter(record, Finding(rule.NAME, "unknown", "singleton", problem, *armed.guard.place()))
        if "vllm" not in packages:
            guarded = f"only {' and '.join(['python', *packages])} {'were' if packages else 'was'} guarded"
            record.limits = f"vllm was not imported: {guarded}"

    @contextmanager
    def fresh_state(self, place: Frame, found: list[Finding]) -> Iterator[None]:
        """Empty caches and no singleton for a block; what it leaves is found, and undone.

        Reads of the configuration inside are not the test's.
        """
        armed = self._armed
        options = armed.options if armed is not None else rule.Options()
        registry = armed.registry if armed is not None else self.registry
        guard = Guard(registry, options, place, self._owners, full_stacks=self._full)
        if armed is not None:
            armed.reads.stop()
        guard.enter()
        try:
            yield
        finally:
            guard.leave()
            if armed is not None:
                armed.reads.start()
            left = (one for one in guard.changes if one.change in (Change.LEFT, Change.CHANGED))
            found += (one for change in left if (one := rule.check(change, options)) is not None and not one.note)

    def detach(self) -> None:
        """The test's reports are made, whatever is still to come."""
        if self._armed is not None:
            self._armed.record = None

    def _is_used(self, session: pytest.Session) -> bool:
        if self._used is None:
            self._used = any(item.get_closest_marker(rule.NAME) for item in session.items)
        return self._used

    @contextmanager
    def setting_up(self, fixture: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
        """Note what a fixture of wider scope than a test makes; it is that fixture's."""
        if fixture.scope == "function" or not self._is_used(request.session):
            yield
            return
        before = self.registry.snapshot()
        try:
            yield
        finally:
            self._absorb(before, fixture)
            fixture.addfinalizer(partial(self._tear_down, fixture))

    def _tear_down(self, fixture: pytest.FixtureDef[Any]) -> None:
        if self._armed is not None:
            self._armed.guard.uncover(fixture.argname)
        self._tearing_down[id(fixture)] = self.registry.snapshot()

    def torn_down(self, fixture: pytest.FixtureDef[Any]) -> None:
        """Note what a fixture of wider scope has undone."""
        before = self._tearing_down.pop(id(fixture), None)
        if before is not None:
            self._absorb(before, None)

    def _absorb(self, before: Snapshot, fixture: pytest.FixtureDef[Any] | None) -> None:
        after = self.registry.snapshot()
        guard = self._armed.guard if self._armed is not None else None
        for key in before | after:
            entry = self.registry[key[0]]
            new = after.get(key, MISSING if entry.parts else entry.absent)
            # What could not be seen before: a module that the fixture has imported, with its modes as they are.
            unseen = new if entry.treatment is Treatment.MODE and not entry.parts else entry.absent
            old = before.get(key, guard.expected.get(key, unseen) if guard is not None else unseen)
            if same(old, new) or (key in self._owners and fixture and same(self._owners[key].state, new)):
                continue
            owner = Owner(fixture.argname, str(fixture.scope), new) if fixture is not None else None
            if owner is not None:
                self._owners[key] = owner
            else:
                self._owners.pop(key, None)
            if guard is not None:
                guard.absorb(key, new, owner)


class Singletons:
    """What the fixture ``gpu_singletons`` gives."""

    def __init__(self, fresh: Fresh) -> None:
        self._fresh = fresh

    def register(self, entry: Singleton) -> None:
        """Guard this state too, in the test under way, from now on.

        Raises:
            ValueError: an entry of this name is registered already.
        """
        self._fresh.register(entry)


def _enter(record: TestRecord, found: Finding) -> None:
    if found.note:
        record.notes.append(found)
        return
    record.findings.append(found)
    record.unraised.append(found)


def _unknown(options: rule.Options, registry: Registry) -> Iterator[str]:
    """Patterns of a marker that can match nothing."""
    names = [entry.name for entry in registry]
    for argument in ("singletons", "may_leave"):
        for pattern in getattr(options, argument):
            if pattern.startswith("env.") or any(rule.matches(name, (pattern,)) for name in names):
                continue
            close = difflib.get_close_matches(pattern, names, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            yield f"argument {argument!r} is {pattern!r}, which matches no registered singleton{hint}"
