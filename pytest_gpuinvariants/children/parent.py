"""What a test's process does for ``children=True``: opens the channel and reads what came back."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.allowances import Allowance
from pytest_gpuinvariants.children import processes
from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader, Setup, Writer
from pytest_gpuinvariants.environment import Before, restore, set_variables
from pytest_gpuinvariants.events import Frame, Thread
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.invariants.no_implicit_sync import Options


@dataclass(frozen=True)
class Report:
    """What children wrote about one region: findings, and errors of those that could not be policed."""

    findings: tuple[Finding, ...]
    errors: tuple[str, ...]


class _Left:
    """What children found in one region, less what the parent's exemptions took."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, Finding, tuple[Allowance, ...]], int] = {}
        self._left: dict[tuple[int, Finding], int] = {}
        self._inexact: set[tuple[int, Finding, tuple[Allowance, ...]]] = set()

    def add(self, process: int, found: Finding, allowances: tuple[Allowance, ...], total: int, exact: bool) -> None:
        """Take in how often a child has made a finding inside certain exemptions, the innermost first."""
        key = process, found, allowances
        count = total - self._told.get(key, 0)
        self._told[key] = total
        (self._inexact.discard if exact else self._inexact.add)(key)
        for allowance in () if found.note else allowances:
            count -= allowance.takes(found, count)
        self._left[process, found] = self._left.get((process, found), 0) + count

    def findings(self) -> tuple[Finding, ...]:
        """What no exemption took."""
        inexact = {(process, found) for process, found, _ in self._inexact}
        return tuple(
            replace(key[1], count=count, at_least=key in inexact) for key, count in self._left.items() if count
        )


@dataclass
class Children:
    """The channel of one process, open while something asks for children."""

    setup: Setup
    _users: int = 0
    _folder: Path | None = None
    _writer: Writer | None = None
    _owner: int = 0
    _before: Before = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _left: dict[int, _Left] = field(default_factory=dict)
    _allowances: dict[int, Allowance] = field(default_factory=dict)
    _errors: list[tuple[list[int] | None, str]] = field(default_factory=list)
    """Why a process was not policed, in these regions; None: in all."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Let processes that are started now find the channel."""
        self._users += 1
        if self._users == 1:
            self._announce()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                restore(self._before)

    def _announce(self) -> None:
        # One folder for the whole run: a fork server keeps the environment of the first test that used it.
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gpuinvariants-"))
            self._writer = Writer(self._folder, self.setup)
            self._owner = os.getpid()
            processes.watch(self._unreachable)
        paths = filter(None, (str(processes.BOOTSTRAP), os.environ.get("PYTHONPATH")))
        variables = {VARIABLE: str(self._folder), "PYTHONPATH": os.pathsep.join(paths)}
        self._before = set_variables(variables)

    def close(self) -> None:
        """Remove the folder, in the process that made it."""
        if self._folder is not None and self._owner == os.getpid():
            processes.watch(None)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._writer = None

    def _unreachable(self, problem: str) -> None:
        """A process is being started that will not find the channel."""
        if (reader := self.reader) is not None:
            reader.tell_unpoliced(problem)

    def arm(self, options: Options) -> int:
        """Arm a region in all children; its number."""
        assert self._writer is not None
        region = next(self._ids)
        with self._lock:
            self._left[region] = _Left()
            self._writer.arm(Armed(region, tuple(sorted(options.kinds)), options.pageable_threshold))
        return region

    def disarm(self, region: int) -> Report:
        """Disarm a region; what children found in it."""
        assert self._writer is not None
        with self._lock:
            self._writer.disarm(region)
            self._collect()
            left = self._left.pop(region)
            if not self._left:
                self._allowances.clear()
            errors = [error for armed, error in self._errors if armed is None or region in armed]
        return Report(left.findings(), tuple(dict.fromkeys(errors)))

    @contextmanager
    def allowed(self, allowance: Allowance) -> Iterator[None]:
        """Let an exemption cover what children do in the regions that are armed now, while it lasts.

        A call counts when the child has made it before its parent ends the exemption: what the parent has
        an answer from is in.
        """
        if not self._left or self._owner != os.getpid():
            yield
            return
        assert self._writer is not None
        number = next(self._ids)
        settle = allowance.settle

        def settle_all() -> None:
            settle()
            with self._lock:
                self._collect()

        allowance.settle = settle_all
        with self._lock:
            self._allowances[number] = allowance
            self._writer.allow(number)
        try:
            yield
        finally:
            with self._lock:
                self._writer.disallow(number)
                self._collect()
            allowance.settle = settle

    def _collect(self) -> None:
        """Take in what children have written since the last time.  With the lock held."""
        assert self._writer is not None
        for line in self._writer.lines():
            if "error" in line:
                self._errors.append((line.get("armed"), line["error"]))
            elif (left := self._left.get(line["region"])) is not None:
                allowances = tuple(self._allowances[number] for number in line["allowances"])
                left.add(line["pid"], _finding(line["finding"]), allowances, line["count"], line["exact"])

    @property
    def reader(self) -> Reader | None:
        """The child's end, for a process that was forked off this one; None when nothing asks for children."""
        return Reader.find(self._folder) if self._folder is not None and self._users else None


def _finding(values: dict[str, Any]) -> Finding:
    thread = Thread(**values.pop("thread"))
    stack = tuple(Frame(**frame) for frame in values.pop("stack"))
    return Finding(**values, thread=thread, stack=stack)
