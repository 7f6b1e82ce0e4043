"""The markers: names, arguments, help; and their validation at collection."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from pytest_gpuinvariants import settings
from pytest_gpuinvariants.hardware import gates
from pytest_gpuinvariants.invariants import no_import_side_effects


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


def _at_least_one(value: object) -> str | None:
    return None if _count(value) is None and value else "a number from 1 on"


def _major(value: object) -> str | None:
    # 90, the number of sm_90, would be a gate that never opens.
    right = _at_least_one(value) is None and isinstance(value, int) and value < 50
    return None if right else "a major number such as 9: SM 9.0 is requires_sm(9, 0)"


def _minor(value: object) -> str | None:
    right = value is None or (_count(value) is None and isinstance(value, int) and value < 10)
    return None if right else "a number from 0 to 9, or None for any"


def _memory(value: object) -> str | None:
    try:
        gates.read_memory(str(value))
    except ValueError as error:
        return str(error)
    return _text(value)


def _cuda(value: object) -> str | None:
    try:
        gates.read_versions(str(value))
    except InvalidSpecifier:
        return "a version range such as '>=12.8'"
    return _text(value)


def _requirement(value: object) -> str | None:
    try:
        wanted = Requirement(str(value))
    except InvalidRequirement:
        return "a package and its versions such as 'flashinfer-python>=0.7'"
    if wanted.extras or wanted.marker or wanted.url:
        return "a package and its versions, and nothing else"
    return _text(value)


def _texts(check: Callable[[str], bool], wants: str) -> Callable[[object], str | None]:
    def checked(value: object) -> str | None:
        values = [value] if isinstance(value, str) else list(value) if isinstance(value, Collection) else []
        right = values and all(isinstance(one, str) and check(one) for one in values)
        return None if right else wants

    return checked


_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WHERE = re.compile(f"{_MODULE.pattern}:{_MODULE.pattern}")


def _seconds(value: object) -> str | None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return None if right else "a number of seconds above 0"


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
    exclusive: tuple[str, ...] = ()
    """Boolean arguments of which one at most may be True."""

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
        if len([name for name in self.exclusive if values.get(name) is True]) > 1:
            found.append(f"arguments {' and '.join(map(repr, self.exclusive))} exclude each other")
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
KNOWN_FAULT = Marker(
    "known_fault",
    (
        Argument(
            "finding",
            "finding",
            _texts(lambda text: bool(text.strip()), "a finding's id, or several in a list"),
            required=True,
            positional=True,
        ),
        Argument("package", "package", _text, required=True),
        Argument("versions", "versions", _versions, required=True),
        Argument("reason", "reason", _text, required=True),
        Argument("called_from", "called_from=None", _text),
    ),
    "strict expected failure: while the package's version is in the range, the test must fail with this finding's "
    "id and nothing else; of several ids, with each.",
)
_OR_NEWER = Argument("or_newer", "or_newer=False", _boolean)
_HOST_ONLY = Argument("host_only", "host_only=False", _boolean)
_HOST_ONLY_HELP = (
    "host_only declares that the test launches no kernel of its own, so that it may run on a simulated or faked card."
)


def _named(name: str, capability: gates.Capability) -> Marker:
    number = f"{capability[0]}.{capability[1] or 'x'}"
    text = f"needs a GPU of compute capability {number} (or later, with or_newer); {_HOST_ONLY_HELP}"
    return Marker(name, (_OR_NEWER, _HOST_ONLY), text)


_NUMBER = Argument("n", "n", _at_least_one, required=True, positional=True)
_AMOUNT = Argument("amount", "amount", _memory, required=True, positional=True)
_VERSIONS = Argument("versions", "versions", _cuda, required=True, positional=True)
_PACKAGE = Argument("requirement", "requirement", _requirement, required=True, positional=True)
REQUIRES: tuple[Marker, ...] = (
    Marker(
        "requires_sm",
        (
            Argument("major", "major", _major, required=True, positional=True),
            Argument("minor", "minor=None", _minor, positional=True),
            _OR_NEWER,
            Argument("family", "family=False", _boolean),
            _HOST_ONLY,
        ),
        "needs a GPU of compute capability major.minor, of any minor without one; or later, with or_newer; or of the "
        f"family on which code for smXYf runs, with family; {_HOST_ONLY_HELP}",
        exclusive=("or_newer", "family"),
    ),
    *(_named(name, capability) for name, capability in gates.NAMED.items()),
    Marker(
        "requires_gpus",
        (_NUMBER, _HOST_ONLY),
        f"needs n visible GPUs or more; {_HOST_ONLY_HELP}",
    ),
    Marker(
        "requires_gpu_memory",
        (_AMOUNT, _HOST_ONLY),
        f"needs a GPU with so much memory, '40GiB'; {_HOST_ONLY_HELP}",
    ),
    Marker("requires_nvlink", (_HOST_ONLY,), f"needs GPUs that are all joined by NVLink; {_HOST_ONLY_HELP}"),
    Marker("requires_cuda", (_VERSIONS,), "needs a torch that is built for a CUDA of these versions, '>=12.8'."),
    Marker("requires_package", (_PACKAGE,), "needs an installed package, 'flashinfer-python>=0.7'."),
)
_PATTERNS = _texts(lambda text: bool(text.strip()), "a pattern such as 'vllm.*', or several in a list")
NO_IMPORT_SIDE_EFFECTS = Marker(
    no_import_side_effects.NAME,
    (
        Argument(
            "modules",
            "modules",
            _texts(lambda name: _MODULE.fullmatch(name) is not None, "a module's dotted name, or several in a list"),
            required=True,
            positional=True,
        ),
        Argument(
            "kinds",
            "kinds=...",
            _texts(no_import_side_effects.KINDS.__contains__, ", ".join(no_import_side_effects.KINDS)),
        ),
        Argument("allow", "allow=None", _PATTERNS),
        Argument("timeout", "timeout=120", _seconds),
    ),
    "the module's import, in a fresh process, must not initialise CUDA, change the environment, read vLLM's "
    "configuration, write files, start threads or processes, use the network or change global state.",
)


def _resolvers(value: object) -> str | None:
    given = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    right = given and all(callable(one) or (isinstance(one, str) and _WHERE.fullmatch(one)) for one in given)
    return None if right else "a function without arguments or 'module:qualname', or several in a list"


FRESH_CONFIG_CONTEXT = Marker(
    "fresh_config_context",
    (
        Argument("strict", "strict=False", _boolean),
        Argument("allow_reads", "allow_reads=()", _PATTERNS),
        Argument("singletons", "singletons=()", _PATTERNS),
        Argument("may_leave", "may_leave=()", _PATTERNS),
        Argument("resolvers", "resolvers=()", _resolvers),
    ),
    "the test inherits no process-wide state and leaves none: no ambient vLLM configuration, workspace, process group, "
    "changed mode or environment variable; strict forbids reads of the configuration outside of a "
    "context; resolvers must answer the same in one and outside.",
)
MARKERS: dict[str, Marker] = {
    marker.name: marker
    for marker in (NO_IMPLICIT_SYNC, FRESH_CONFIG_CONTEXT, NO_IMPORT_SIDE_EFFECTS, *REQUIRES, KNOWN_FAULT)
}


def bind(marker: Marker, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a valid use, by name."""
    positional = [argument.name for argument in marker.arguments if argument.positional]
    return {**dict(zip(positional, args, strict=False)), **kwargs}


def stated_gates(item: pytest.Item) -> list[tuple[str, dict[str, object]]]:
    """Name and arguments of each gate of a test, the closest first: all of them hold, none overrides another."""
    marks = (mark for mark in item.iter_markers() if mark.name in gates.GATES)
    return [(mark.name, bind(MARKERS[mark.name], mark.args, mark.kwargs)) for mark in marks]


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
