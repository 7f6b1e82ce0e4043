"""A rule's verdict on events, and the forms in which reports show it."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants.events import Event, Stack, Thread

MAX_DISTINCT = 200
"""Distinct findings kept per region; what comes after is counted, so that memory stays bounded."""


_MAX_DOUBTS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation, with the number of times that it happened at this place.

    ``message`` is the one-line form, for example ``cudaMemcpyAsync H2D of 260 B from pageable
    memory: may block``.  A ``note`` is reported and fails nothing; a ``doubt`` is a call of which
    nobody knows what it would have done: a test without violations is not verified then.
    """

    invariant: str
    kind: str
    subject: str
    message: str
    thread: Thread
    stack: Stack
    note: bool = False
    doubt: bool = False
    count: int = 1
    process: str = ""
    """The child process that made the call; empty for the test's own."""
    at_least: bool = False
    """The count is a lower bound: the child died before it could tell the last."""

    @property
    def id(self) -> str:
        """Stable identity: what, through which call, in whose code; no line, path or size."""
        place = self.stack[0].qualified if self.stack else "<native thread>"
        return f"{self.kind}:{self.subject}@{place}"

    @property
    def place(self) -> str:
        """File and line at fault, the file relative to the working directory where it is below it."""
        if not self.stack:
            return "a native thread"
        path = Path(self.stack[0].file)
        with contextlib.suppress(OSError, ValueError):  # a removed working directory; a file not below it
            path = path.relative_to(Path.cwd())
        return f"{path}:{self.stack[0].line}"

    @property
    def line(self) -> str:
        """The message, with the count when it repeats."""
        times = f"at least {self.count}" if self.at_least else f"{self.count}"
        return self.message if self.count == 1 else f"{self.message} ({times} times)"


def finding(event: Event, *, invariant: str, kind: str, subject: str, message: str, note: bool = False) -> Finding:
    """A finding about one event."""
    return Finding(invariant, kind, subject, message, event.thread, event.stack, note)


def not_simulated(event: Event, *, invariant: str) -> Finding:
    """The doubt about a call that the simulated runtime does not know."""
    message = f"{event.api} is not simulated: what it does on a real card was not seen"
    return Finding(invariant, "not-simulated", event.api, message, event.thread, event.stack, doubt=True)


@dataclass(slots=True)
class Tally:
    """Findings by identity, repeated ones counted instead of kept.  Notes and doubts take no place of a violation."""

    _violations: dict[Finding, int] = field(default_factory=dict)
    _notes: dict[Finding, int] = field(default_factory=dict)
    _doubts: dict[Finding, int] = field(default_factory=dict)
    overflow: int = 0
    """Violations at other places than those that are kept."""

    def add(self, item: Finding, count: int = 1) -> None:
        """Count a finding, so many times."""
        found = self._notes if item.note else self._doubts if item.doubt else self._violations
        if item in found:
            found[item] += count
        elif len(found) < MAX_DISTINCT:
            found[item] = count
        elif found is self._violations:
            self.overflow += count

    def absorb(self, other: Tally) -> None:
        """Add all that another has."""
        for found in (other._violations, other._notes, other._doubts):
            for item, count in found.items():
                self.add(item, count)
        self.overflow += other.overflow

    @property
    def violations(self) -> tuple[Finding, ...]:
        """What fails the test, in order of first appearance."""
        return tuple(replace(item, count=count) for item, count in self._violations.items())

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is only reported."""
        return tuple(replace(item, count=count) for item, count in self._notes.items())

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """What keeps the test from being verified."""
        return tuple(replace(item, count=count) for item, count in self._doubts.items())


def _frames(stack: Stack, indent: str) -> Iterator[str]:
    if not stack:
        yield f"{indent}(a thread that Python did not start: no Python stack)"
    for frame in stack:
        yield f"{indent}{frame.file}:{frame.line} in {frame.function}"
        if source := linecache.getline(frame.file, frame.line).strip():
            yield f"{indent}    {source}"


def section(findings: Iterable[Finding], overflow: int = 0) -> str:
    """Findings as text: calls made at one place share its stack, innermost frame first."""
    places: dict[tuple[str, Thread, Stack], list[Finding]] = {}
    for item in findings:
        places.setdefault((item.process, item.thread, item.stack), []).append(item)
    lines: list[str] = []
    for (process, thread, stack), here in places.items():
        for item in here:
            lines += [f"{item.kind}: {item.line}", f"  id: {item.id}"]
        if process:
            lines.append(f"  process: {process}")
        lines.append(f"  thread: {thread.name} ({thread.native_id})")
        lines += _frames(stack, "  ")
    if overflow:
        lines.append(f"… and {overflow} more calls at other places (only {MAX_DISTINCT} distinct findings are kept)")
    return "\n".join(lines)


def unverified(doubts: Iterable[Finding]) -> str:
    """The reason of a test that is not verified: the first doubts, with their lines."""
    reasons = [f"{item.place}: {item.line}{f' in {item.process}' if item.process else ''}" for item in doubts]
    more = ["and at more places"] if len(reasons) > _MAX_DOUBTS_NAMED else []
    return "; ".join(reasons[:_MAX_DOUBTS_NAMED] + more)


class InvariantViolation(pytest.fail.Exception):  # type: ignore[name-defined,misc,unused-ignore]
    """An invariant does not hold: fails the test with the findings as its text.

    Like ``pytest.fail``'s, it is not an ``Exception``, so that ``except Exception`` in the code
    under test can not hide it.
    """

    def __init__(self, invariant: str, findings: tuple[Finding, ...], overflow: int = 0) -> None:
        self.invariant = invariant
        self.findings = findings
        self.overflow = overflow
        more = sum(item.count for item in findings) + overflow - findings[0].count
        rest = f", and {more} more call{'s' if more != 1 else ''}" if more else ""
        # The place first: what is cut off at the end of a narrow terminal is the least needed.
        head = f"{invariant}: {findings[0].place}: {findings[0].line}{rest}"
        super().__init__(f"{head}\n{section(findings, overflow)}", pytrace=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.invariant, self.findings, self.overflow)
