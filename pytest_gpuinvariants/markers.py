"""The markers: names, arguments, help; and their validation at collection."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from pytest_gpuinvariants import settings


def _boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _text(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a non-empty string"


def _versions(value: object) -> str | None:
    try:
        SpecifierSet(str(value))
    except InvalidSpecifier:
        return "a version range such as '>=0.33.0,<0.34'"
    return _text(value)


def _one_of(*words: str) -> Callable[[object], str | None]:
    return lambda value: None if value in words else " or ".join(repr(word) for word in words)


def _count(value: object) -> str | None:
    return None if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else "a number from 0 on"


def _setting(name: str) -> Callable[[object], str | None]:
    option = next(option for option in settings.OPTIONS if option.name == name)

    def check(value: object) -> str | None:
        try:
            option.read(value)
        except ValueError as error:
            return str(error)
        return None

    return check


@dataclass(frozen=True)
class Argument:
    """One argument: ``check`` answers what it accepts when a value is not that, else None."""

    name: str
    shown: str
    check: Callable[[object], str | None]
    required: bool = False
    positional: bool = False


@dataclass(frozen=True)
class Marker:
    """One marker: what ``--markers`` prints, and the arguments that it accepts."""

    name: str
    arguments: tuple[Argument, ...]
    help: str

    @property
    def line(self) -> str:
        """The ``markers`` ini line: signature and one line of help."""
        return f"{self.name}({', '.join(argument.shown for argument in self.arguments)}): {self.help}"

    def problems(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[str]:
        """What is wrong with a use of this marker; each line names the argument and what is accepted."""
        accepted = ", ".join(argument.shown for argument in self.arguments)
        positional = [argument for argument in self.arguments if argument.positional]
        found: list[str] = []
        values = dict(kwargs)
        for index, value in enumerate(args):
            if index >= len(positional):
                found.append(f"unexpected positional argument {value!r}; accepted: {accepted}")
            elif positional[index].name in values:
                found.append(f"argument {positional[index].name!r} is given twice; accepted: {accepted}")
            else:
                values[positional[index].name] = value
        known = {argument.name: argument for argument in self.arguments}
        for name, value in values.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                found.append(f"unknown argument {name!r}{hint}; accepted: {accepted}")
            elif (wants := known[name].check(value)) is not None:
                found.append(f"argument {name!r} is {value!r}; accepted: {wants}")
        found += [
            f"argument {argument.name!r} is missing; accepted: {accepted}"
            for argument in self.arguments
            if argument.required and argument.name not in values
        ]
        return found


NO_IMPLICIT_SYNC = Marker(
    "no_implicit_sync",
    (
        Argument("kinds", "kinds=...", _setting("kinds")),
        Argument("pageable_threshold", "pageable_threshold=0", _setting("pageable_threshold")),
        Argument("mode", "mode='error'", _setting("mode")),
        Argument("warmup", "warmup=0", _count),
        Argument("threads", "threads='own'", _one_of("own", "all")),
        Argument("children", "children=False", _boolean),
    ),
    "the test must not make the host wait for the GPU, nor risk it: no synchronization, no blocking copy, "
    "no asynchronous copy of pageable or gapped memory.",
)
REQUIRES_SM90 = Marker(
    "requires_sm90",
    (
        Argument("or_newer", "or_newer=False", _boolean),
        Argument("host_only", "host_only=False", _boolean),
    ),
    "needs a GPU of compute capability 9.x (or later, with or_newer); host_only declares that no SM90 kernel is "
    "launched, so that the test may run on a simulated or faked card.",
)
KNOWN_FAULT = Marker(
    "known_fault",
    (
        Argument("finding", "finding", _text, required=True, positional=True),
        Argument("package", "package", _text, required=True),
        Argument("versions", "versions", _versions, required=True),
        Argument("reason", "reason", _text, required=True),
        Argument("called_from", "called_from=None", _text),
    ),
    "strict expected failure: while the package's version is in the range, the test must fail with this finding's "
    "id and nothing else.",
)
MARKERS: dict[str, Marker] = {marker.name: marker for marker in (NO_IMPLICIT_SYNC, REQUIRES_SM90, KNOWN_FAULT)}


def bind(marker: Marker, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a valid use, by name."""
    positional = [argument.name for argument in marker.arguments if argument.positional]
    return {**dict(zip(positional, args, strict=False)), **kwargs}


def arguments(item: pytest.Item, name: str) -> dict[str, object] | None:
    """The arguments of a test's markers of this name, the closest winning; None without one."""
    marks = list(item.iter_markers(name))
    if not marks:
        return None
    merged: dict[str, object] = {}
    for mark in reversed(marks):
        merged.update(bind(MARKERS[name], mark.args, mark.kwargs))
    return merged


def registered(config: pytest.Config) -> frozenset[str]:
    """Names of all markers that anyone has declared."""
    lines: Iterable[str] = config.getini("markers")
    return frozenset(line.partition(":")[0].partition("(")[0].strip() for line in lines)


def problems(item: pytest.Item, known: frozenset[str]) -> list[str]:
    """What is wrong with the plugin's markers on a test, misspelled names included."""
    found: list[str] = []
    for mark in item.iter_markers():
        if mark.name in MARKERS:
            found += [f"{mark.name}: {line}" for line in MARKERS[mark.name].problems(mark.args, mark.kwargs)]
        elif mark.name not in known:
            close = difflib.get_close_matches(mark.name, MARKERS, n=1, cutoff=0.8)
            if close:
                # Left alone, a misspelled invariant is a test that passes unchecked.
                found.append(f"unknown marker {mark.name!r}: did you mean {close[0]!r}?")
    return found
