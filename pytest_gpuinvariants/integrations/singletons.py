"""The registry of process-wide state: how each is seen, put back and destroyed, and where it is made.

An entry is read only when its module is imported; nothing here imports one.  Packages add entries
through the entry point group ``gpuinvariants.singletons`` (an iterable of :class:`Singleton`, or a
function that returns one), tests through the fixture ``gpu_singletons``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from packaging.requirements import Requirement

from pytest_gpuinvariants.versions import satisfied

ENTRY_POINTS = "gpuinvariants.singletons"


class Treatment(StrEnum):
    """What a guarded test does about a kind of state."""

    ABSENT = "absent"
    """Set aside before the test; what the test leaves is a finding, and is destroyed."""
    MODE = "mode"
    """Left as it is; another value at the end is a finding, and is put back."""
    CACHE = "cache"
    """Emptied before the test and after it; filling it is no finding."""
    RESTORED = "restored"
    """Left as it is, and put back without a word."""


class Missing:
    """A part that is not there, such as a variable that is not set."""

    def __repr__(self) -> str:
        return "unset"


MISSING = Missing()


@dataclass(frozen=True, kw_only=True)
class Singleton:
    """One piece of process-wide state.

    ``see`` gives the state, such that ``put`` can put it back; AttributeError means that the
    installed version has none.  ``absent`` is what is seen where there is none.  ``destroy`` releases
    what was seen.  ``created_by`` names functions (``module:qualname``) in which it comes into being.
    ``requires`` is the requirement (``vllm>=0.33``) on the versions that have it.  State that is not
    ``movable`` can not be set aside; a ``lazy`` mode may go from ``absent`` to its value once.  With
    ``parts``, ``see`` gives a dictionary of states by name, and ``put`` gets the name too.
    """

    name: str
    module: str
    see: Callable[[Any], Any]
    put: Callable[..., object]
    treatment: Treatment = Treatment.ABSENT
    absent: Any = None
    destroy: Callable[[Any], object] | None = None
    created_by: tuple[str, ...] = ()
    requires: str | None = None
    movable: bool = True
    lazy: bool = False
    parts: bool = False

    @cached_property
    def in_range(self) -> bool:
        """Whether the installed version is one that has it."""
        if self.requires is None:
            return True
        installed = satisfied(self.requires)
        # None: a source tree, of which only what is in every version is known to be there.
        return not Requirement(self.requires).specifier if installed is None else installed

    @property
    def loaded(self) -> Any:
        """Its module, None when that is not imported or not in range."""
        module = sys.modules.get(self.module)
        return module if module is not None and self.in_range else None

    def states(self) -> dict[str, Any]:
        """The state of each part, the part "" for the whole; empty when there is nothing to see."""
        module = self.loaded
        if module is None:
            return {}
        try:
            seen = self.see(module)
        except AttributeError:
            return {}
        return dict(seen) if self.parts else {"": seen}

    def put_back(self, part: str, state: Any) -> None:
        """Make the state of a part what was seen."""
        if self.parts:
            self.put(self.loaded, part, state)
        else:
            self.put(self.loaded, state)


Key = tuple[str, str]
"""An entry's name, and the part of it."""
Snapshot = dict[Key, Any]


class Registry:
    """The entries, in the order in which they are to be destroyed."""

    def __init__(self, entries: Iterable[Singleton]) -> None:
        self._entries: dict[str, Singleton] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Singleton) -> None:
        """Add an entry.

        Raises:
            ValueError: the name is taken.
        """
        if entry.name in self._entries:
            raise ValueError(f"a singleton named {entry.name!r} is registered already")
        self._entries[entry.name] = entry

    def remove(self, name: str) -> None:
        """Take an entry out."""
        del self._entries[name]

    def __iter__(self) -> Iterator[Singleton]:
        return iter(list(self._entries.values()))

    def __getitem__(self, name: str) -> Singleton:
        return self._entries[name]

    def snapshot(self) -> Snapshot:
        """All that can be seen now."""
        return {(entry.name, part): state for entry in self for part, state in entry.states().items()}


def builtin() -> list[Singleton]:
    """What is known of the standard library, NumPy, torch, FlashInfer and vLLM."""
    from pytest_gpuinvariants.integrations import (
        singletons_flashinfer,
        singletons_python,
        singletons_torch,
        singletons_vllm,
    )

    # What uses something stands before what it uses.
    return [
        *singletons_vllm.ENTRIES,
        *singletons_flashinfer.ENTRIES,
        *singletons_torch.ENTRIES,
        *singletons_python.ENTRIES,
    ]


def load() -> Registry:
    """The built-in entries and those of installed packages.

    Raises:
        ValueError: two entries have the same name, or an entry point gives something else.
    """
    registry = Registry(())
    for point in entry_points(group=ENTRY_POINTS):
        given = point.load()
        for entry in given() if callable(given) else given:
            if not isinstance(entry, Singleton):
                raise ValueError(f"entry point {point.name!r} of {ENTRY_POINTS} gives {entry!r}, which is no Singleton")
            registry.add(entry)
    for entry in builtin():
        registry.add(entry)
    return registry


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same.  Objects are compared by identity: equality may compute on a GPU."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return isinstance(one, bool | int | float | str | bytes | set) and bool(one == other)


def _holder(where: str) -> tuple[str, list[str], str]:
    module, _, path = where.partition(":")
    *outer, name = path.split(".")
    return module, outer, name


def _reach(module: Any, outer: list[str]) -> Any:
    for part in outer:
        module = getattr(module, part)
    return module


def variable(name: str, where: str, **options: Any) -> Singleton:
    """State that is an attribute: ``module:attribute`` or ``module:object.attribute``."""
    module, outer, attribute = _holder(where)
    return Singleton(
        name=name,
        module=module,
        see=lambda module: getattr(_reach(module, outer), attribute),
        put=lambda module, state: setattr(_reach(module, outer), attribute, state),
        **options,
    )


def container(name: str, where: str, kind: type[dict[Any, Any]] | type[set[Any]], **options: Any) -> Singleton:
    """State that is the content of a dictionary or set, which stays the object that it is."""
    module, outer, attribute = _holder(where)

    def put(module: Any, state: Any) -> None:
        held = getattr(_reach(module, outer), attribute)
        held.clear()
        held.update(state)

    return Singleton(
        name=name,
        module=module,
        see=lambda module: kind(getattr(_reach(module, outer), attribute)),
        put=put,
        absent=kind(),
        **options,
    )


def cache(name: str, where: str, **options: Any) -> Singleton:
    """What ``functools.cache`` keeps of a function.  It can only be emptied."""
    module, outer, attribute = _holder(where)

    def function(module: Any) -> Any:
        found = getattr(_reach(module, outer), attribute)
        return getattr(found, "__func__", found)

    def see(module: Any) -> None:
        function(module).cache_clear  # noqa: B018  (raises where there is no cache)

    return Singleton(
        name=name,
        module=module,
        see=see,
        put=lambda module, state: function(module).cache_clear(),
        treatment=Treatment.CACHE,
        **options,
    )
