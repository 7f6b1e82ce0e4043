"""What a test's process does for ``children=True``: opens the channel and reads what came back."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.children import processes
from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader, Setup, Writer
from pytest_gpuinvariants.environment import Before, restore, set_variables
from pytest_gpuinvariants.events import Frame, Thread
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.invariants.no_implicit_sync import Options

_BOOTSTRAP = Path(__file__).parent / "bootstrap"


@dataclass(frozen=True)
class Report:
    """What children wrote about one region: findings, and errors of those that could not be policed."""

    findings: tuple[Finding, ...]
    errors: tuple[str, ...]


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
        paths = filter(None, (str(_BOOTSTRAP), os.environ.get("PYTHONPATH")))
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
        self._writer.arm(Armed(region, tuple(sorted(options.kinds)), options.pageable_threshold))
        return region

    def disarm(self, region: int) -> Report:
        """Disarm a region, and read what children found in it."""
        assert self._writer is not None
        self._writer.disarm(region)
        findings: dict[tuple[int, Finding], tuple[int, bool]] = {}
        errors: list[str] = []
        for line in self._writer.lines():
            if "error" in line:
                if region in line.get("armed", [region]):
                    errors.append(line["error"])
            elif line["region"] == region:
                key = line["pid"], _finding(line["finding"])
                findings[key] = line["count"], line["exact"]  # the last is the total
        return Report(
            tuple(replace(found, count=count, at_least=not exact) for (_, found), (count, exact) in findings.items()),
            tuple(dict.fromkeys(errors)),
        )

    @property
    def reader(self) -> Reader | None:
        """The child's end, for a process that was forked off this one; None when nothing asks for children."""
        return Reader.find(self._folder) if self._folder is not None and self._users else None


def _finding(values: dict[str, Any]) -> Finding:
    thread = Thread(**values.pop("thread"))
    stack = tuple(Frame(**frame) for frame in values.pop("stack"))
    return Finding(**values, thread=thread, stack=stack)
