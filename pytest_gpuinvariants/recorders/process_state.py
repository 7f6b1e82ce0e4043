"""Where process-wide state is made: the stacks of calls of its creation points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_gpuinvariants.events import Stack, Thread
from pytest_gpuinvariants.integrations import instrument
from pytest_gpuinvariants.integrations.after_import import after_import
from pytest_gpuinvariants.integrations.singletons import MISSING, Key, Registry, Singleton
from pytest_gpuinvariants.recorders import stacks

Place = tuple[Thread, Stack]
# What the caller reached an assignment or an import through: os.environ.update(), say.
_PLUMBING = ("os", "_collections_abc", "importlib", "importlib._bootstrap", "importlib._bootstrap_external")


def here(full: bool = False) -> Place:
    """The calling thread and its stack."""
    stack = stacks.capture(full)
    while len(stack) > 1 and stack[0].module in _PLUMBING:
        stack = stack[1:]
    return stacks.current_thread(), stack


def _importing() -> bool:
    """Whether a module is being imported on this thread, within the test."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__", "")).startswith(("_pytest.", "pluggy.")):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


class Creations:
    """Remembers, for each state, the call that was the last to find it as it is expected to be.

    When the state is another afterwards, that call made it so.
    """

    def __init__(self, registry: Registry, is_as_expected: Callable[[Key], bool], full_stacks: bool = False) -> None:
        self.places: dict[Key, Place] = {}
        self.by_import: set[Key] = set()
        """State that was last changed by a module while it was imported."""
        self._registry = registry
        self._is_as_expected = is_as_expected
        self._full = full_stacks
        self._stops: list[Callable[[], None]] = []

    def start(self) -> None:
        """Watch the creation points, those of modules imported later too."""
        for entry in self._registry:
            self.watch(entry)

    def watch(self, entry: Singleton) -> None:
        """Watch the creation points of an entry."""
        for point in entry.created_by:
            name = point.partition(":")[0]
            if instrument.find(point) is not None:
                self._watch(entry, point)
            elif name not in sys.modules:
                self._stops.append(after_import(name, lambda point=point: self._watch(entry, point)))  # type: ignore[misc]

    def stop(self) -> None:
        """Leave them as they were."""
        while self._stops:
            self._stops.pop()()

    def _watch(self, entry: Singleton, point: str) -> None:
        function = instrument.find(point)
        if function is None or not entry.in_range:
            return

        def around(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            part = str(args[1]) if entry.parts else ""
            self._note((entry.name, part))
            return call(*args, **kwargs)

        self._stops.append(instrument.watch(function, around))

    def _note(self, key: Key) -> None:
        if self._is_as_expected(key):
            self.places[key] = here(self._full)
        if key[1] and _importing():
            self.by_import.add(key)
        else:
            self.by_import.discard(key)

    def state(self, key: Key) -> Any:
        """What is seen now, ``MISSING`` where there is nothing."""
        return self._registry[key[0]].states().get(key[1], MISSING)
