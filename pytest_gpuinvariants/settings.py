"""Options of a run: command line > marker > ini > environment > default, resolved once.

One table names every option in all its places.  A marker argument of the same name stands between
the command line and the ini file for the test that it marks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from pytest_gpuinvariants import allowances
from pytest_gpuinvariants.hardware.machine import check_choice
from pytest_gpuinvariants.invariants.no_implicit_sync import DEFAULT_KINDS, KINDS


class SettingError(ValueError):
    """An option has a value that it does not accept; the message names the option and where it was set."""


def _read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is not a boolean (true, false, 1, 0, yes, no, on, off)")


def _read_bytes(value: object) -> int:
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise ValueError(f"{value!r} is not a number of bytes (0 or more)")
    return int(str(value))


def _read_seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{value!r} is not a number of seconds above 0")
    return seconds


def _read_kinds(value: object) -> frozenset[str]:
    if isinstance(value, str):
        names = value.replace(",", " ").split()
    elif isinstance(value, Iterable):
        names = [str(name) for name in value]
    else:
        raise ValueError(f"{value!r} is neither a kind nor a collection of kinds")
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        what = f"unknown kind {unknown[0]!r}" if unknown else "no kind given"
        raise ValueError(f"{what}; kinds: {', '.join(KINDS)}")
    return frozenset(names)


def _read_mode(value: object) -> str:
    if value not in ("error", "warn"):
        raise ValueError(f"{value!r} is not error or warn")
    return str(value)


def _read_required(value: object) -> str:
    if value not in ("any", "real", "no"):
        raise ValueError(f"{value!r} is not any, real or no")
    return str(value)


def _read_choice(value: object) -> str:
    return check_choice(str(value).strip())


@dataclass(frozen=True)
class Option:
    """One option: its name in :class:`Settings`, in each place, and how its value is read.

    ``read`` takes the text of the command line, ini file or environment, or a marker's value, and
    raises ValueError with what it accepts.  ``shared`` is another tool's environment variable of the
    same meaning, which comes last.
    """

    name: str
    flag: str
    default: Any
    read: Callable[[object], Any]
    metavar: str
    help: str
    marker: bool = False
    shared: str | None = None

    @property
    def dest(self) -> str:
        """Attribute of ``config.option``, and the ini key."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """Environment variable."""
        return f"PYTEST_{self.dest.upper()}"


OPTIONS: tuple[Option, ...] = (
    Option(
        "gpu",
        "--gpu",
        "auto",
        _read_choice,
        "CHOICE",
        "the GPU of the run: auto (a real one, else a simulated H100), real (an error without one), or "
        "simulate:PROFILE (h100, h200, b200, gb300, a100, l4; simulate:h100x2 has two devices)",
    ),
    Option(
        "kinds",
        "--gpu-sync-kinds",
        DEFAULT_KINDS,
        _read_kinds,
        "KINDS",
        f"kinds of finding that no_implicit_sync reports, separated by commas: {', '.join(KINDS)} "
        "(default: all but allocation)",
        marker=True,
    ),
    Option(
        "pageable_threshold",
        "--gpu-pageable-threshold",
        0,
        _read_bytes,
        "BYTES",
        "asynchronous copies of pageable memory below this size are only a note (default 0: none)",
        marker=True,
    ),
    Option(
        "mode",
        "--gpu-sync-mode",
        "error",
        _read_mode,
        "MODE",
        "what a violation of no_implicit_sync does: error (the test fails) or warn (a warning)",
        marker=True,
        shared="VLLM_GPU_SYNC_CHECK",
    ),
    Option(
        "strict_allowances",
        "--gpu-strict-allowances",
        False,
        _read_bool,
        "",
        "an allowance that matched nothing in the run is an error",
    ),
    Option(
        "full_stacks",
        "--gpu-full-stacks",
        False,
        _read_bool,
        "",
        "show whole Python stacks: torch's own frames and the test runner's too",
    ),
    Option(
        "allow_multicast",
        "--gpu-allow-multicast",
        False,
        _read_bool,
        "",
        "let code under test create NVLink multicast objects (mnnvl workspaces, NVLS), which are refused otherwise",
    ),
    Option(
        "require_verified",
        "--gpu-require-verified",
        "no",
        _read_required,
        "WHERE",
        "a test file that states invariants, and of which nothing was checked, fails the run: on any hardware, or on "
        "real hardware (any, real; default: no)",
    ),
    Option(
        "ledger",
        "--gpu-ledger",
        "",
        str,
        "FILE",
        "expected tests: one that vanished, or was not checked as the file says, fails the run; relative to the root "
        "folder",
    ),
    Option("ledger_update", "--gpu-ledger-update", False, _read_bool, "", "write what this run reached to the ledger"),
    Option(
        "shuffle_check",
        "--gpu-shuffle-check",
        False,
        _read_bool,
        "",
        "after the run, run the marked tests of each module alone, in order and reversed, in fresh processes; a "
        "verdict that depends on the order fails the run",
    ),
    Option(
        "shuffle_timeout",
        "--gpu-shuffle-timeout",
        600.0,
        _read_seconds,
        "SECONDS",
        "limit for each process of --gpu-shuffle-check (default 600)",
    ),
)


ALLOWANCES = "gpu_allowances"
"""The ini option for exemptions; it has no other place."""


@dataclass(frozen=True)
class Settings:
    """The options in force, one attribute for each entry of :data:`OPTIONS`.

    ``allowances`` are the exemptions of the ini file whose package is in range.
    """

    gpu: str
    kinds: frozenset[str]
    pageable_threshold: int
    mode: str
    strict_allowances: bool
    full_stacks: bool
    allow_multicast: bool
    require_verified: str
    ledger: str
    ledger_update: bool
    shuffle_check: bool
    shuffle_timeout: float
    allowances: tuple[allowances.Exemption, ...] = ()


def add_options(parser: pytest.Parser) -> None:
    """Declare every option on the command line and in the ini file.

    Defaults are None on both, so that a value that was not given never hides one further down.
    """
    group = parser.getgroup("gpuinvariants", "invariants of GPU code")
    for option in OPTIONS:
        text = f"{option.help} [ini: {option.dest}, environment: {option.variable}]"
        if option.read is _read_bool:
            group.addoption(
                option.flag, dest=option.dest, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            group.addoption(option.flag, dest=option.dest, metavar=option.metavar, default=None, help=text)
        kind: Literal["bool", "string"] = "bool" if option.read is _read_bool else "string"
        parser.addini(option.dest, option.help, type=kind, default=None)
    parser.addini(
        ALLOWANCES,
        "exemptions from no_implicit_sync for known upstream code, one a line: 'where=module.qualname; kind=…; api=…; "
        "max_count=…; requires=package>=1,<2; reason=why' (only the reason is required)",
        type="linelist",
        default=[],
    )


def _given(config: pytest.Config, option: Option) -> object:
    """The command line's value; before conftests are loaded it is only in the early namespace."""
    value = getattr(config.option, option.dest, None)
    return getattr(config.known_args_namespace, option.dest, None) if value is None else value


def _configured(config: pytest.Config, option: Option) -> object:
    """The ini file's value."""
    try:
        return config.getini(option.dest)
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise SettingError(f"ini option {option.dest}: {error}") from error


def _resolve(option: Option, places: Iterable[tuple[str, object]]) -> Any:
    for place, value in places:
        if value is None or value == "":
            continue
        try:
            return option.read(value)
        except ValueError as error:
            raise SettingError(f"{place}: {error}") from error
    return None


def _value(config: pytest.Config, option: Option, marker: Mapping[str, object], where: str) -> Any:
    places: list[tuple[str, object]] = [(option.flag, _given(config, option))]
    if option.marker:
        places.append((f"{where}({option.name}=…)", marker.get(option.name)))
    places.append((f"ini option {option.dest}", _configured(config, option)))
    places.append((f"environment variable {option.variable}", os.environ.get(option.variable)))
    value = _resolve(option, places)
    if value is None and option.shared is not None:
        with contextlib.suppress(ValueError):  # what another tool's variable may hold is for that tool to say
            value = option.read(os.environ.get(option.shared))
    return option.default if value is None else value


def resolve(config: pytest.Config) -> Settings:
    """The options in force for the run.

    Args:
        config: pytest's configuration, its command line and ini file parsed.

    Raises:
        SettingError: a value is not accepted.
    """
    try:
        exemptions = allowances.parse(config.getini(ALLOWANCES))
    except allowances.ExemptionError as error:
        raise SettingError(f"ini option {ALLOWANCES}: {error}") from error
    values = {option.name: _value(config, option, {}, "") for option in OPTIONS}
    return Settings(**values, allowances=tuple(one for one in exemptions if one.in_range))


def for_marker(config: pytest.Config, settings: Settings, marker: Mapping[str, object], where: str) -> Settings:
    """The options in force for one test or region.

    Args:
        config: pytest's configuration.
        settings: the run's options.
        marker: the keyword arguments of the marker.
        where: the marker's name, for error messages.

    Raises:
        SettingError: a value is not accepted.
    """
    stated = [option for option in OPTIONS if option.marker and option.name in marker]
    return replace(settings, **{option.name: _value(config, option, marker, where) for option in stated})
