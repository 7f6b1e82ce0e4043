"""The guard around one test: process-wide state before, and after."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pytest_gpuinvariants.events import Change, Frame, StateChange
from pytest_gpuinvariants.integrations.after_import import after_import
from pytest_gpuinvariants.integrations.singletons import MISSING, Key, Registry, Singleton, Snapshot, Treatment, same
from pytest_gpuinvariants.invariants.fresh_config_context import Options
from pytest_gpuinvariants.recorders.process_state import Creations, Place, here


@dataclass(frozen=True)
class Owner:
    """A fixture of wider scope than a test, and the state that it made."""

    fixture: str
    scope: str
    state: Any

    def __str__(self) -> str:
        return f"{self.scope} fixture {self.fixture!r}"


Owners = dict[Key, Owner]


def title(key: Key) -> str:
    """How a state is named in reports and in a marker's patterns."""
    return ".".join(filter(None, key))


class Guard:
    """Makes the state fresh at :meth:`enter`, and what it was at :meth:`leave`.

    Args:
        registry: the state that is known.
        options: what the test declares.
        test: the test's own place, for state that no creation point made.
        owners: state that fixtures of wider scope hold; shared by all tests of a run.
        fixtures: names of the fixtures that the test uses.
    """

    def __init__(
        self,
        registry: Registry,
        options: Options,
        test: Frame,
        owners: Owners,
        fixtures: Collection[str] = (),
        full_stacks: bool = False,
    ) -> None:
        self.expected: Snapshot = {}
        self.changes: list[StateChange] = []
        self._registry = registry
        self._options = options
        self._owners = owners
        self._fixtures = fixtures
        self._test = test
        self._aside: Snapshot = {}
        self._creations = Creations(registry, self._is_as_expected, full_stacks)
        self._stops: list[Callable[[], None]] = []

    @property
    def packages(self) -> list[str]:
        """Packages of which state is guarded: those that are imported."""
        loaded = (entry.module.partition(".")[0] for entry in self._registry if entry.loaded is not None)
        return sorted(set(loaded) & {"torch", "vllm", "flashinfer", "numpy"})

    def enter(self) -> None:
        """Set aside what is there, and empty the caches."""
        for entry in self._registry:
            self._begin(entry)
        for module in {entry.module for entry in self._registry} - sys.modules.keys():
            self._stops.append(after_import(module, lambda module=module: self._imported(module)))  # type: ignore[misc]
        self._creations.start()

    def add(self, entry: Singleton) -> None:
        """Guard an entry that is registered while the test runs."""
        self._begin(entry)
        self._creations.watch(entry)

    def _begin(self, entry: Singleton) -> None:
        for part, state in entry.states().items():
            key = (entry.name, part)
            self.expected[key] = state
            if entry.treatment is Treatment.CACHE:
                self._set_aside(entry, key, state)
            elif entry.treatment is Treatment.ABSENT and not same(state, entry.absent):
                owner = self._owners.get(key)
                if not entry.movable or (owner is not None and owner.fixture in self._fixtures):
                    whose = f"{owner} made it" if owner else "it was there before the test, and can not be set aside"
                    self._tell(key, Change.INHERITED, f"{title(key)}: {whose}")
                else:
                    self._set_aside(entry, key, state)
                    whose = f"{owner} made it" if owner else "it was there before the test"
                    self._tell(key, Change.ASIDE, f"{title(key)}: {whose}: set aside for the test")
            elif entry.treatment is Treatment.MODE and key in self._owners:
                self._tell(key, Change.KEPT, f"{title(key)}: {self._owners[key]} made it, and it is still in force")

    def _set_aside(self, entry: Singleton, key: Key, state: Any) -> None:
        self._aside[key] = state
        entry.put_back(key[1], entry.absent)
        self.expected[key] = entry.absent

    def _imported(self, module: str) -> None:
        """Take what a module has right after its import as its state before the test."""
        for entry in self._registry:
            if entry.module != module:
                continue
            for part, state in entry.states().items():
                key = (entry.name, part)
                made = entry.treatment is Treatment.ABSENT and not same(state, entry.absent)
                self.expected[key] = entry.absent if made else state
                if made:
                    self._creations.places[key] = here()

    def _is_as_expected(self, key: Key) -> bool:
        entry = self._registry[key[0]]
        return same(self._creations.state(key), self.expected.get(key, entry.absent))

    def _tell(self, key: Key, change: Change, detail: str, place: Place | None = None) -> None:
        thread, stack = place or self.place()
        self.changes.append(StateChange(name=title(key), change=change, detail=detail, thread=thread, stack=stack))

    def place(self) -> Place:
        """The test's own place."""
        return here()[0], (self._test,)

    def absorb(self, key: Key, state: Any, owner: Owner | None) -> None:
        """Take over what a fixture of wider scope did: it is the fixture's to undo.

        Args:
            key: the state.
            state: what it is now.
            owner: the fixture; None when it has just undone what it did.
        """
        self.expected[key] = state
        if owner is not None:
            self._aside.pop(key, None)  # the fixture's takes its place
        treatment = self._registry[key[0]].treatment
        if owner is None or treatment in (Treatment.CACHE, Treatment.RESTORED):
            return
        change = Change.INHERITED if treatment is Treatment.ABSENT else Change.KEPT
        detail = f"{title(key)}: {owner} made it while the test was set up or ran; it is left to the fixture"
        self._tell(key, change, detail, self._creations.places.get(key))

    def uncover(self, fixture: str) -> None:
        """Put back what was set aside of a fixture that is about to be torn down."""
        for key in [key for key in self._aside if key in self._owners and self._owners[key].fixture == fixture]:
            state = self._aside.pop(key)
            self._registry[key[0]].put_back(key[1], state)
            self.expected[key] = state

    def leave(self) -> None:
        """Find what the test left, destroy it, and make all state what it was."""
        self._creations.stop()
        while self._stops:
            self._stops.pop()()
        kept = [owner.state for key, owner in self._owners.items()] + list(self._aside.values())
        destroyed: dict[int, str] = {id(state): "" for state in kept if state is not None}
        for entry in self._registry:
            states = entry.states()
            keys = [(entry.name, part) for part in states] + [
                key for key in self.expected if key[0] == entry.name and key[1] not in states
            ]
            for key in dict.fromkeys(keys):
                try:
                    self._end(entry, key, states.get(key[1], MISSING), destroyed)
                except Exception as error:  # the rest is to be put back all the same
                    detail = f"{title(key)}: putting it back failed: {type(error).__name__}: {error}"
                    self._tell(key, Change.CHANGED, detail)

    def _end(self, entry: Singleton, key: Key, state: Any, destroyed: dict[int, str]) -> None:
        expected = self.expected.get(key, entry.absent)
        silent = entry.treatment in (Treatment.CACHE, Treatment.RESTORED)
        differs = not same(state, expected)
        if differs and ((entry.lazy and expected is entry.absent) or key in self._creations.by_import):
            return
        if differs and not silent:
            problem = ""
            if not self._options.may_stay(title(key)):
                problem = _destroy(entry, state, destroyed)
            self._tell_left(entry, key, state, expected, problem)
            if self._options.may_stay(title(key)):
                return
        if differs or key in self._aside or entry.treatment is Treatment.CACHE:
            entry.put_back(key[1], self._aside.get(key, expected))

    def _tell_left(self, entry: Singleton, key: Key, state: Any, expected: Any, problem: str) -> None:
        name = title(key)
        place = self._creations.places.get(key)
        unseen = "" if place or not entry.created_by else "; none of its known creation points was called"
        if entry.treatment is Treatment.ABSENT and same(expected, entry.absent):
            detail = f"{name}: the test made it and left it{unseen}{problem}"
            self._tell(key, Change.LEFT, detail, place)
        else:
            detail = f"{name}: the test left it changed: {_shown(expected)} before, {_shown(state)} after{unseen}"
            self._tell(key, Change.CHANGED, detail, place)


def _destroy(entry: Singleton, state: Any, destroyed: dict[int, str]) -> str:
    """Release a state once, under whatever names it is known; what went wrong, in words."""
    if entry.destroy is None or same(state, entry.absent) or id(state) in destroyed:
        return destroyed.get(id(state), "")
    try:
        entry.destroy(state)
        problem = ""
    except Exception as error:
        problem = f"; destroying it failed: {type(error).__name__}: {error}"
    destroyed[id(state)] = problem
    return problem


def _shown(state: Any) -> str:
    if isinstance(state, dict | list | set | tuple):
        return f"{len(state)} entries"
    text = repr(state)
    return text if len(text) <= 60 else f"{text[:57]}..."
