"""Armed regions and allowances, and the way of an event to the region that it concerns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_gpuinvariants.allowances import Allowance
from pytest_gpuinvariants.events import ApiCall, Event
from pytest_gpuinvariants.findings import Finding, Tally
from pytest_gpuinvariants.recorders.protocol import Again, Recorder
from pytest_gpuinvariants.scopes import Scope


class RecorderError(RuntimeError):
    """A recorder failed while a region was armed, so the region's verdict is worth nothing."""


@dataclass(slots=True, eq=False)
class Region:
    """The span in which a rule is armed."""

    invariant: str
    wanted: frozenset[type[ApiCall]]
    rule: Callable[[Event], Finding | None]
    scope: Scope = field(default_factory=Scope)
    tally: Tally = field(default_factory=Tally)
    pure: bool = True
    """Whether the rule's verdict on equal events is always the same."""


Standing = Callable[[Finding], tuple[Allowance, ...]]
"""Exemptions of a finding from outside of the test."""


class Monitor:
    """Arms regions on one recorder, which is subscribed only while a region is armed.

    Regions and allowances nest.  An event goes outward from the innermost: the first region of an
    invariant whose rule finds it takes it, unless an allowance stands in between.  Threads that are
    started inside inherit what covers the thread that starts them.
    """

    def __init__(self, recorder: Recorder, standing: Standing = lambda found: ()) -> None:
        self.recorder = recorder
        self._standing = standing
        self._entries: list[Region | Allowance] = []
        self._lock = threading.RLock()  # a signal's handler may fork inside of it
        self._counting = threading.RLock()  # a signal's handler may make calls inside of it
        self._wanted: frozenset[type[ApiCall]] = frozenset()
        self._broken: BaseException | None = None
        self._start_thread = threading.Thread.start
        self._stand_in: Callable[[threading.Thread], None] | None = None

    def enter(self, entry: Region | Allowance) -> None:
        """Arm a region, or begin an allowance.

        Raises:
            RecorderUnavailableError: the recorder can not be started now; nothing is armed then.
        """
        if isinstance(entry, Allowance):
            entry.settle = self._settle
        with self._lock:
            self._put([*self._entries, entry])
            try:
                self._subscribe()
            except BaseException:
                self._entries = self._entries[:-1]
                raise

    def leave(self, entry: Region | Allowance) -> None:
        """Disarm a region, or end an allowance.

        Raises:
            RecorderError: the recorder failed meanwhile.
        """
        with self._lock:
            self._put([other for other in self._entries if other is not entry])
            try:
                self._subscribe()
            except Exception as error:
                self._broken = error
        if self._broken is not None and isinstance(entry, Region):
            broken, self._broken = self._broken, None
            raise RecorderError(f"the {self.recorder.name} recorder failed; nothing was verified") from broken

    def before_fork(self) -> None:
        """Wait until no thread is in the middle of arming or disarming: the child would inherit the half of it."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Go on, in the process that has forked."""
        self._lock.release()

    def forget(self) -> None:
        """Drop everything that is armed, in a process that was forked off: it is the parent's."""
        self._lock = threading.RLock()
        self._counting = threading.RLock()
        self._entries = []
        self._broken = None
        self._leave_threads()
        self._wanted = frozenset()
        self.recorder.forget()

    def _put(self, entries: list[Region | Allowance]) -> None:
        self._settle()  # calls that are told late, to what was armed when they were made
        self._entries = entries
        self._settle()  # what was judged by that is judged anew

    def _settle(self) -> None:
        try:
            self.recorder.settle()
        except Exception as error:
            self._broken = error

    def _subscribe(self) -> None:
        regions = [entry for entry in self._entries if isinstance(entry, Region)]
        wanted = frozenset[type[ApiCall]]().union(*(region.wanted for region in regions))
        if wanted and self._wanted:
            # Nothing is taken back before the last one leaves: to start anew would lose other threads' calls.
            if not wanted <= self._wanted:
                self._wanted |= wanted
                self.recorder.widen(wanted)
            return
        if self._wanted:
            self._leave_threads()
            self._wanted = frozenset()
            try:
                self.recorder.stop()
            except Exception as error:
                self._broken = error
        if wanted:
            self.recorder.start(self._receive, wanted)
            self._wanted = wanted
            self._start_thread = threading.Thread.start
            self._stand_in = self._inheriting_start(self._start_thread)
            threading.Thread.start = self._stand_in  # type: ignore[method-assign,assignment]

    def _leave_threads(self) -> None:
        if threading.Thread.start is self._stand_in:  # else another tool's, which calls ours: it inherits nothing now
            threading.Thread.start = self._start_thread  # type: ignore[method-assign]

    def _inheriting_start(self, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:

        def inheriting_start(thread: threading.Thread) -> None:
            here = threading.get_native_id()
            scopes = [entry.scope for entry in self._entries if entry.scope.covers(here)]
            if scopes:
                thread.run = _adopted(thread.run, scopes, self.recorder.end_thread)  # type: ignore[method-assign]
            start(thread)

        return inheriting_start

    def _receive(self, event: Event) -> Again | None:
        # Called from inside a CUDA call: nothing may escape, and nothing may be lost.
        try:
            return self._route(event)
        except BaseException as error:
            self._broken = error
            return None

    def _route(self, event: Event) -> Again | None:
        thread = event.thread.native_id
        entries = self._entries  # a snapshot: enter and leave replace the list
        settled: set[str] = set()
        passed: tuple[Allowance, ...] = ()
        judged: list[tuple[Region, Finding, tuple[Allowance, ...]]] = []
        for entry in reversed(entries):
            if not entry.scope.covers(thread):
                continue
            if isinstance(entry, Allowance):
                passed = (*passed, entry)
                continue
            if entry.invariant in settled or (found := entry.rule(event)) is None:
                continue
            settled.add(entry.invariant)
            judged.append((entry, found, () if found.note else (*passed, *self._standing(found))))

        def again(count: int) -> None:
            with self._counting:
                for region, found, allowances in judged:
                    _count(region, found, allowances, count)

        again(1)
        # Frames and adopted threads come and go while the entries stay.
        lasting = all(
            one.scope.every_thread or (one.scope.thread == thread and one.scope.frame is None) for one in entries
        ) and all(one.pure for one in entries if isinstance(one, Region))
        return again if lasting else None


def _count(region: Region, found: Finding, allowances: tuple[Allowance, ...], count: int) -> None:
    for allowance in allowances:
        count -= allowance.takes(found, count)
    if count:
        region.tally.add(found, count)


def _adopted(run: Callable[[], None], scopes: list[Scope], end: Callable[[], None]) -> Callable[[], None]:
    def adopted() -> None:
        native = threading.get_native_id()
        for scope in scopes:
            scope.adopted.add(native)
        try:
            run()
        finally:
            end()  # while the regions are armed: whoever joins the thread goes on before it is gone
            for scope in scopes:
                scope.adopted.discard(native)

    return adopted
