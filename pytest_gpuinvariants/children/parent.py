"""What a test's process does for ``children=True``: opens the channel and reads what came back."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader, Setup, Writer
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
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _writer: Writer | None = None
    _before: dict[str, str | None] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Let processes that are started now find the channel."""
        self._users += 1
        if self._users == 1:
            self._open()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._close()

    def _open(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpuinvariants-", ignore_cleanup_errors=True)
        self._writer = Writer(Path(self._folder.name), self.setup)
        paths = filter(None, (str(_BOOTSTRAP), os.environ.get("PYTHONPATH")))
        variables = {VARIABLE: self._folder.name, "PYTHONPATH": os.pathsep.join(paths)}
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def _close(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        assert self._folder is not None
        self._folder.cleanup()
        self._folder = self._writer = None

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
        findings: dict[tuple[int, Finding], int] = {}
        errors: list[str] = []
        for line in self._writer.lines():
            if "error" in line:
                errors.append(line["error"])
            elif line["region"] == region:
                findings[line["pid"], _finding(line["finding"])] = line["count"]  # the last is the total
        return Report(
            tuple(replace(found, count=count) for (_, found), count in findings.items()),
            tuple(dict.fromkeys(errors)),
        )

    @property
    def reader(self) -> Reader | None:
        """The child's end, for a process that was forked off this one; None when nothing asks for children."""
        return Reader(Path(self._folder.name)) if self._folder is not None else None


def _finding(values: dict[str, Any]) -> Finding:
    thread = Thread(**values.pop("thread"))
    stack = tuple(Frame(**frame) for frame in values.pop("stack"))
    return Finding(**values, thread=thread, stack=stack)
