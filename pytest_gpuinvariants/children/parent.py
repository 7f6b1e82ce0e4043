"""What a test's process does for ``children=True``: opens the channel and reads what came back."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.allowances import Allowance
from pytest_gpuinvariants.children import descendants, processes
from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader, Setup, Writer
from pytest_gpuinvariants.environment import Before, restore, set_variables
from pytest_gpuinvariants.events import Frame, Thread
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.invariants.no_implicit_sync import Options

_SECOND_LOOK_S = 0.1


@dataclass(frozen=True)
class Report:
    """What children wrote about one region: findings, and errors of those that could not be policed."""

    findings: tuple[Finding, ...]
    errors: tuple[str, ...]


Life = tuple[int, int]
"""A process that runs a program: its id, and when it began to."""


class _Left:
    """What children found in one region, less what the parent's exemptions took."""

    def __init__(self) -> None:
        self._told: dict[tuple[Life, Finding, tuple[Allowance, ...]], int] = {}
        self._left: dict[tuple[Life, Finding], int] = {}
        self._inexact: set[tuple[Life, Finding, tuple[Allowance, ...]]] = set()

    def add(self, process: Life, found: Finding, allowances: tuple[Allowance, ...], total: int, exact: bool) -> None:
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
    _search: str = ""
    """``PYTHONPATH`` as it was set."""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _left: dict[int, _Left] = field(default_factory=dict)
    _allowances: dict[int, Allowance] = field(default_factory=dict)
    _errors: list[tuple[list[int], str]] = field(default_factory=list)
    """Why a process was not policed, in these regions."""
    _unarmed: list[str] = field(default_factory=list)
    """Why, of processes that are told when nothing is armed: it holds for what is armed before the channel closes."""
    _joined: set[int] = field(default_factory=set)
    """Processes that police themselves, or have told why they do not."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Let processes that are started now find the channel."""
        forked = self._owner not in (0, os.getpid())
        if forked:
            self._begin_anew()
        self._users += 1
        if self._users == 1:
            self._announce()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._restore()
                with self._lock:
                    self._collect()
                    self._unarmed.clear()
            if forked:
                self.close()  # no run ends in this process, which would

    def _begin_anew(self) -> None:
        """In a process that was forked off: the channel is the parent's, who has armed what is armed there."""
        self._users, self._owner = 0, 0
        self._folder = self._writer = None
        self._left, self._allowances, self._errors, self._unarmed = {}, {}, [], []
        self._joined = set()
        self._lock = threading.Lock()

    def _restore(self) -> None:
        """Put the environment back, with what a fixture has put into ``PYTHONPATH`` meanwhile."""
        now = os.environ.get("PYTHONPATH", "")
        if now == self._search:
            restore(self._before)
            return
        restore({**self._before, "PYTHONPATH": os.pathsep.join(processes.without_bootstrap(now)) or None})

    def _announce(self) -> None:
        # One folder for the whole run: a fork server keeps the environment of the first test that used it.
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gpuinvariants-"))
            self._writer = Writer(self._folder, self.setup)
            self._owner = os.getpid()
            processes.watch(self._unreachable)
        rest = processes.without_bootstrap(os.environ.get("PYTHONPATH", ""))
        self._search = os.pathsep.join((str(processes.BOOTSTRAP), *rest))
        self._before = set_variables({VARIABLE: str(self._folder), "PYTHONPATH": self._search})

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
            if not self._left:
                self._writer.forget_ended()
            self._left[region] = _Left()
            self._writer.arm(Armed(region, tuple(sorted(options.kinds)), options.pageable_threshold))
        return region

    def disarm(self, region: int) -> Report:
        """Disarm a region; what children found in it."""
        assert self._writer is not None
        with self._lock:
            untold = self._writer.untold()
            if untold:
                time.sleep(_SECOND_LOOK_S)  # a thread may be about to tell, and what it tells is of this region
                untold = [pid for pid in self._writer.untold() if pid in untold]
            self._writer.disarm(region)
            self._collect()
            left = self._left.pop(region)
            if not self._left:
                self._allowances.clear()
            trouble = ["it could not write what it found, or read what is armed"] if self._writer.in_trouble() else []
            errors = [
                *trouble,
                *self._unarmed,
                *(error for armed, error in self._errors if region in armed),
                *(f"process {pid}: it has not told what its native threads have called" for pid in untold),
                *self._silent(),
            ]
        return Report(left.findings(), tuple(dict.fromkeys(errors)))

    def _silent(self) -> list[str]:
        """Processes below this one that use CUDA and have not joined.  With the lock held."""
        suspects = descendants.with_cuda(os.getpid())
        if suspects.keys() - self._joined:
            time.sleep(_SECOND_LOOK_S)  # one that is forked to run another program is itself for a moment
            self._collect()
            suspects = {pid: name for pid, name in descendants.with_cuda(os.getpid()).items() if pid in suspects}
        return [
            f"{name}: it uses CUDA, and was started before a children=True region or fixture, or past it"
            for pid, name in suspects.items()
            if pid not in self._joined
        ]

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
        if self._writer is None:
            return
        for line in self._writer.lines():
            self._joined.add(line["pid"])
            if "error" in line:
                if line.get("armed"):
                    self._errors.append((line["armed"], line["error"]))
                else:
                    self._unarmed.append(line["error"])
            elif line.get("joined"):
                continue
            elif (left := self._left.get(line["region"])) is not None:
                allowances = tuple(self._allowances[number] for number in line["allowances"])
                left.add(
                    (line["pid"], line["life"]), _finding(line["finding"]), allowances, line["count"], line["exact"]
                )

    @property
    def reader(self) -> Reader | None:
        """The child's end, for a process that was forked off this one; None when nothing asks for children."""
        return Reader.find(self._folder) if self._folder is not None and self._users else None


def _finding(values: dict[str, Any]) -> Finding:
    thread = Thread(**values.pop("thread"))
    stack = tuple(Frame(**frame) for frame in values.pop("stack"))
    return Finding(**values, thread=thread, stack=stack)
