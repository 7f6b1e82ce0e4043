"""The ledger of expected tests: what each must reach, so that one that vanished or always skips is a failure.

A text file, one test a line: the least that it must reach, a space, its node id.  Lines that are
empty or begin with ``#`` are comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("seen", "any", "real")
"""What a test reaches, the least first: it ran, whatever came of it; it was checked on any hardware; on real."""

_HEAD = """\
# Expected tests (pytest --gpu-ledger): the least that each must reach, and its node id.
# seen: it runs, or is skipped; any: checked, on any hardware; real: checked on real hardware.
"""


class LedgerError(ValueError):
    """The file can not be read or written, or is no ledger; the message names file and line."""


@dataclass(frozen=True)
class Ledger:
    """A ledger: a level for each node id."""

    path: Path
    expected: Mapping[str, str]


def plain(nodeid: str) -> str:
    """A node id as a ledger has it: without the ``@group`` that xdist's ``--dist loadgroup`` appends."""
    file, colons, name = nodeid.partition("::")
    at = name.rfind("@")
    return f"{file}{colons}{name[:at] if at > name.rfind(']') else name}"


def file_of(nodeid: str) -> str:
    """The test file of a node id, relative to pytest's root folder."""
    return nodeid.partition("::")[0]


def at_least(level: str, wanted: str) -> bool:
    """Whether a level is enough."""
    return LEVELS.index(level) >= LEVELS.index(wanted)


def read(path: Path, must_exist: bool = True) -> Ledger:
    """Read a ledger.

    Args:
        path: the file.
        must_exist: False gives an empty ledger for a file that is not there.

    Raises:
        LedgerError: it can not be read.
    """
    if not must_exist and not path.exists():
        return Ledger(path, {})
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path} can not be read ({error})") from error
    expected: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        level, _, nodeid = line.rstrip().partition(" ")
        if level not in LEVELS or "::" not in nodeid or nodeid.startswith((" ", "::")):
            forms = ", ".join(LEVELS)
            raise LedgerError(f"{path}, line {number}: {line!r} is not one of {forms}, a space and a node id")
        if nodeid in expected:
            raise LedgerError(f"{path}, line {number}: {nodeid} is there twice")
        expected[nodeid] = level
    return Ledger(path, expected)


def write(path: Path, expected: Mapping[str, str]) -> None:
    """Write a ledger, sorted by node id.

    Raises:
        LedgerError: the file can not be written.
    """
    lines = [f"{level} {nodeid}\n" for nodeid, level in sorted(expected.items())]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HEAD + "".join(lines), encoding="utf-8")
    except OSError as error:
        raise LedgerError(f"{path} can not be written ({error})") from error


def shortfalls(
    ledger: Ledger, reached: Mapping[str, tuple[str, str]], missing: set[str], due: set[str]
) -> Iterator[str]:
    """What is short of the ledger, one test a line, in the ledger's order.

    Args:
        ledger: what is expected.
        reached: by node id of each test that ran, its level and its verdict in words.
        missing: tests that collection should have found, and did not.
        due: tests that should have run.
    """
    for nodeid, wanted in ledger.expected.items():
        level, verdict = reached.get(nodeid, (wanted, ""))
        if nodeid in missing:
            yield f"{nodeid} has vanished: the ledger expects it, and it was not collected"
        elif nodeid in due and nodeid not in reached:
            yield f"{nodeid} was collected and did not run, though the run came to its end"
        elif not at_least(level, wanted):
            where = " on real hardware" if wanted == "real" else ""
            yield f"{nodeid} was not checked{where}, as the ledger expects: {verdict}"
