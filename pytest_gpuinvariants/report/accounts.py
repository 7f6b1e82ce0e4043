"""What a run owes: something checked of each of its test files, and the tests of its ledger.

See docs/accounting.md.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_gpuinvariants import scan
from pytest_gpuinvariants.report import ledger as ledgers
from pytest_gpuinvariants.report import verdicts
from pytest_gpuinvariants.report.ledger import Ledger, LedgerError, at_least, file_of, plain

_TO_THE_END = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class _Selection:
    """Which test files the command line asks for as a whole."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._ignored = [os.path.abspath(path) for path in config.getoption("ignore", None) or ()]
        self._patterns = [os.path.abspath(pattern) for pattern in config.getoption("ignore_glob", None) or ()]
        self._whole: list[str] = []
        self._in_part: set[str] = set()
        # --lf hides files and tests without telling anyone.
        self.known = not config.getoption("lf", False)
        for argument in config.args:
            path, _, name = str(argument).partition("::")
            place = os.path.abspath(config.invocation_params.dir / path)
            if os.path.exists(place):
                (self._in_part.add if name else self._whole.append)(place)
            elif name:  # --pyargs: of a module's name it is not known which file it means
                self.known = False

    def asks_for(self, file: str, collected: bool) -> bool:
        """Whether all tests of a file should be collected.

        Args:
            file: relative to the root folder.
            collected: whether some were.
        """
        place = os.path.abspath(self._root / file)
        above = [place, *map(str, Path(place).parents)]
        if any(one in self._ignored or any(fnmatch.fnmatch(one, glob) for glob in self._patterns) for one in above):
            return False
        return any(one in self._whole for one in above) or (collected and place not in self._in_part)


@dataclass
class Accounts:
    """What was asked of a run, and what it reached.

    In an xdist run each worker has what it collected, and the controller all the rest.

    Args:
        required: where something of each file must be checked: ``no``, ``any``, ``real``.
        ledger: the expected tests.
        update: write what was reached to the ledger.
    """

    required: str = "no"
    ledger: Ledger | None = None
    update: bool = False
    shortfalls: list[str] = field(default_factory=list)
    """What fails the run, once it is settled."""
    remarks: list[str] = field(default_factory=list)
    _reached: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By node id: the ledger's level, and the verdict in words."""
    _skipped_files: dict[str, str] = field(default_factory=dict)
    """Files with invariants that were skipped as a whole, and why."""
    _deselected: set[str] = field(default_factory=set)
    _missing: set[str] = field(default_factory=set)
    _selected: set[str] = field(default_factory=set)
    """Tests of the ledger that are to be run."""

    def deselected(self, items: Iterable[pytest.Item]) -> None:
        """Tests that are there, but not to be run."""
        self._deselected.update(plain(item.nodeid) for item in items)

    def collected(self, session: pytest.Session) -> None:
        """Find which tests of the ledger collection should have found and has not."""
        if self.ledger is None or session.testsfailed:  # a file that can not be collected is an error by itself
            return
        run = {plain(item.nodeid) for item in session.items}
        found = run | self._deselected
        files = {file_of(nodeid) for nodeid in found}
        selection = _Selection(session.config)
        self._selected = run & self.ledger.expected.keys()
        if selection.known:
            self._missing = {
                nodeid
                for nodeid in self.ledger.expected.keys() - found
                if selection.asks_for(file_of(nodeid), file_of(nodeid) in files)
            }

    def file_skipped(self, config: pytest.Config, report: pytest.CollectReport) -> None:
        """Note a test file that skips itself when it is imported, if it names an invariant."""
        if report.skipped and scan.mentions(config.rootpath / report.nodeid):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._skipped_files[report.nodeid] = reason.removeprefix("Skipped: ")

    def add(self, report: pytest.TestReport) -> None:
        """Take in a report: the last phase carries the verdict."""
        nodeid = plain(report.nodeid)
        expected = self.ledger is not None and nodeid in self.ledger.expected
        told = dict(report.user_properties)
        if report.when == "teardown" and (expected or verdicts.VERDICT in told):
            verdict = str(told.get(verdicts.VERDICT, "it states no invariant any more"))
            self._reached[nodeid] = verdicts.level(told.get(verdicts.VERDICT)), verdict

    @property
    def output(self) -> dict[str, list[str]]:
        """What a worker tells its controller."""
        return {"missing": sorted(self._missing), "selected": sorted(self._selected)}

    def merge(self, output: Mapping[str, Iterable[str]]) -> None:
        """Add what a worker found."""
        self._missing.update(output.get("missing", ()))
        self._selected.update(output.get("selected", ()))

    def settle(self, session: pytest.Session) -> None:
        """At the end of the run, find what it falls short of, or write the ledger."""
        cut = session.shouldfail or session.shouldstop or session.exitstatus not in _TO_THE_END
        if self.ledger is not None and self.update:
            self._write(self.ledger)
        elif self.ledger is not None:
            due = set() if cut or session.config.option.collectonly else self._selected
            self.shortfalls += ledgers.shortfalls(self.ledger, self._reached, self._missing, due)
            if new := self._reached.keys() - self.ledger.expected.keys():
                tests = f"{len(new)} test{'s are' if len(new) != 1 else ' is'}"
                self.remarks.append(f"{tests} not in {self.ledger.path.name}; --gpu-ledger-update enters them")
        if self.required != "no" and not cut:
            self.shortfalls += self._unchecked_files()

    def _unchecked_files(self) -> Iterator[str]:
        files = dict.fromkeys(self._skipped_files, False)
        for nodeid, (level, _) in self._reached.items():
            files[file_of(nodeid)] = files.get(file_of(nodeid), False) or at_least(level, self.required)
        where = " on real hardware" if self.required == "real" else ""
        for file, checked in sorted(files.items()):
            if not checked:
                yield f"nothing of {file} was checked{where} (--gpu-require-verified={self.required})"

    def _write(self, old: Ledger) -> None:
        expected = {name: level for name, level in old.expected.items() if name not in self._missing}
        kept = dict(expected)
        expected.update((nodeid, level) for nodeid, (level, _) in self._reached.items())
        lowered = [name for name, level in kept.items() if not at_least(expected[name], level)]
        try:
            ledgers.write(old.path, expected)
        except LedgerError as error:
            self.shortfalls.append(str(error))
            return
        self.remarks.append(
            f"{old.path.name} is written: {len(expected)} tests, {len(expected) - len(kept)} new, "
            f"{len(old.expected) - len(kept)} vanished, {len(lowered)} with less than before"
        )

    def lines(self) -> Iterator[str]:
        """What the summary says of it, one statement a line."""
        for file, reason in self._skipped_files.items():
            yield f"skipped as a whole: {file}: {reason}"
        yield from (f"ERROR: {line}" for line in self.shortfalls)
        yield from self.remarks
