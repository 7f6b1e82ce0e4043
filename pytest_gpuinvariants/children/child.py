"""What a child does: find the channel, police itself, write what it finds."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from pytest_gpuinvariants.allowances import VLLM, Allowance
from pytest_gpuinvariants.children import processes
from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader
from pytest_gpuinvariants.events import Allocation, Copy, Event, Synchronization, Thread
from pytest_gpuinvariants.findings import MAX_DISTINCT, Finding, Tally
from pytest_gpuinvariants.integrations import multicast, torch_repr, vllm_sync
from pytest_gpuinvariants.integrations.after_import import after_import
from pytest_gpuinvariants.invariants import no_implicit_sync
from pytest_gpuinvariants.invariants.no_implicit_sync import KINDS
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.recorders.choice import make_recorder
from pytest_gpuinvariants.scopes import Scope

# Findings that differ in their sizes or threads only are kept apart up to this many.
_KEPT_APART = MAX_DISTINCT
# Every call is written up to this many at one place, then each time that their number has doubled, and at the end.
_EXACT = 1000

_monitor: Monitor | None = None
_exempting: list[Allowance] = []
"""What the process's own code exempts now: it may begin before torch is imported, and policing with that."""


def monitor() -> Monitor | None:
    """The monitor of a process that polices itself for a parent; None elsewhere."""
    return _monitor


@contextmanager
def exempting(allowance: Allowance) -> Iterator[None]:
    """Exempt what a process without a run of its own does in the block."""
    _exempting.append(allowance)
    if _monitor is not None:
        _monitor.enter(allowance)
    try:
        yield
    finally:
        _exempting.remove(allowance)
        if _monitor is not None:
            _monitor.leave(allowance)


class _Written(Tally):
    """Findings that go to the channel as they are made."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader
        self._armed: tuple[Armed, ...] = ()
        self._counts: dict[tuple[Armed, Finding], int] = {}
        self._process = os.getpid()
        atexit.register(self._write_totals)

    def add(self, item: Finding, count: int = 1) -> None:
        """Write a finding for the innermost region that it concerns, with the parent's exemptions inside of that."""
        now = self._reader.armed
        if now is not self._armed:
            self._armed = now
            lasting = {one.region for one in now}
            self._counts = {key: count for key, count in self._counts.items() if key[0].region in lasting}
        armed = next((one for one in reversed(now) if item.doubt or item.kind in one.kinds), None)
        if armed is None:
            return
        if len(self._counts) >= _KEPT_APART and (armed, item) not in self._counts:
            item = _of_its_place(item)
        total = self._counts.get((armed, item), 0) + count
        self._counts[armed, item] = total
        if total <= _EXACT or not total & (total - 1):
            self._write(armed, item, total, exact=total <= _EXACT)

    def _write(self, armed: Armed, found: Finding, count: int, exact: bool) -> None:
        self._reader.write(
            region=armed.region, allowances=armed.allowances, finding=asdict(found), count=count, exact=exact
        )

    def _write_totals(self) -> None:
        if os.getpid() != self._process:
            return  # forked off: these are the parent's
        for (armed, found), count in self._counts.items():
            if count > _EXACT:
                self._write(armed, found, count, exact=True)


def _of_its_place(found: Finding) -> Finding:
    """One for all calls like this at its place, whatever their sizes and threads: their number is bounded."""
    message = f"{found.subject.replace(':', ' ')} and others like it: {KINDS.get(found.kind, found.kind)}"
    return replace(found, message=message, thread=Thread(0, "any"))


class _Rule:
    """The rule of a child: what it is depends on what is armed now."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, event: Event) -> Finding | None:
        """What an event is to the innermost region that finds it."""
        for armed in reversed(self._reader.armed):
            options = no_implicit_sync.Options(frozenset(armed.kinds), armed.pageable_threshold)
            found = no_implicit_sync.check(event, options)
            if found is not None:
                return replace(found, process=name_of_this_process())
        return None


def name_of_this_process() -> str:
    """What the process is called: by multiprocessing, else its program."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    name = multiprocessing.current_process().name if multiprocessing is not None else "MainProcess"
    if name == "MainProcess":
        name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return f"{name} (pid {os.getpid()})"


def exemptions(found: Finding) -> tuple[Allowance, ...]:
    """What exempts a finding in a child, besides its own ``allow_sync``."""
    return (Allowance(VLLM),) if vllm_sync.allows() else ()


def police(monitor: Monitor, reader: Reader) -> None:
    """Police this process, on all of its threads, for as long as it lives."""
    wanted = frozenset({Copy, Synchronization, Allocation})
    vllm_sync.enter()
    # Not pure: what is armed changes.
    region = Region(
        no_implicit_sync.NAME, wanted, _Rule(reader), Scope(every_thread=True), _Written(reader), pure=False
    )
    monitor.enter(region)
    monitor.recorder.mark_untold(ctypes.c_uint8.from_buffer(reader.untold()))
    reader.write(joined=True)


@contextmanager
def _told(reader: Reader) -> Iterator[None]:
    """Policing may fail: the child must run on as if nothing were there, and the parent's test is not verified."""
    try:
        yield
    except Exception as error:
        reader.write(error=f"{name_of_this_process()}: {error}")


def follow(monitor: Monitor, reader: Reader | None) -> None:
    """Police a process that was forked off, in place of what was armed in its parent.

    Args:
        monitor: the parent's.
        reader: None where no one asks for children.
    """
    monitor.forget()
    if reader is None:
        return

    def start() -> None:
        with _told(reader):
            police(monitor, reader)

    # CUPTI comes with torch, which is not ours to import.
    if reader.setup.simulate is not None or "torch" in sys.modules:
        start()
    else:
        after_import("torch", start)


def _parents_channel() -> Reader | None:
    """The channel that the environment names, None where there is none to be found."""
    folder = os.environ.get(VARIABLE)
    return Reader.find(Path(folder)) if folder is not None else None


def _channel() -> Reader | None:
    """The channel that this process polices itself for: a test's own process has none."""
    return None if _has_a_run_of_its_own() else _parents_channel()


def prepare() -> None:
    """Open the simulated card, if the parent has one.  Must come before torch is imported."""
    reader = _parents_channel()
    if reader is None:
        return
    if _has_a_run_of_its_own():
        problem = "it runs pytest with gpuinvariants, which polices its own tests"
        reader.tell_unpoliced(f"{name_of_this_process()}: {problem}")
        return
    if reader.setup.simulate is None:
        return
    from pytest_gpuinvariants.hardware.profiles import parse_profile
    from pytest_gpuinvariants.hardware.simulate.runtime import open_runtime

    with _told(reader):
        open_runtime(*parse_profile(reader.setup.simulate))
        torch_repr.install()


def join() -> None:
    """Police this process, if a parent asks for it.  Also vLLM's general plugin; a second call does nothing."""
    global _monitor
    if not _has_a_run_of_its_own():
        multicast.join()
    reader = _channel() if _monitor is None else None
    if reader is None:
        return
    with _told(reader):
        policing = Monitor(make_recorder(reader.setup.simulate is not None, reader.setup.full_stacks), exemptions)
        police(policing, reader)
        processes.watch(reader.tell_unpoliced)  # what this one starts belongs to the test, too
        _monitor = policing
        for allowance in _exempting:
            policing.enter(allowance)
        os.register_at_fork(
            before=policing.before_fork,
            after_in_parent=policing.after_fork,
            after_in_child=functools.partial(follow, policing, reader),
        )


def _has_a_run_of_its_own() -> bool:
    """Whether this process runs pytest with the plugin: the test's own process, or a nested run."""
    session = sys.modules.get("pytest_gpuinvariants.session")
    return session is not None and session.is_running()
