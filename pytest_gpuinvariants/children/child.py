"""What a child does: find the channel, police itself, write what it finds."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

from pytest_gpuinvariants.children.channel import VARIABLE, Reader
from pytest_gpuinvariants.events import Allocation, Copy, Event, Synchronization
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.invariants import no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.recorders.protocol import Recorder
from pytest_gpuinvariants.scopes import Scope

# Every call is written up to this many at one place, then each time that their number has doubled.
_EXACT = 1000

_monitor: Monitor | None = None


class Policing:
    """The rule of a child: asks the channel what is armed, and writes instead of keeping."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._counts: dict[tuple[int, Finding], int] = {}
        self._in_vllm = False

    def __call__(self, event: Event) -> Finding | None:
        """Write what an event is; there is nothing to keep here."""
        if vllm_sync.MODULE in sys.modules and not self._in_vllm:
            self._in_vllm = True
            vllm_sync.enter()
        for armed in self._reader.armed:
            options = no_implicit_sync.Options(frozenset(armed.kinds), armed.pageable_threshold)
            found = no_implicit_sync.check(event, options)
            if found is not None and not vllm_sync.allows():
                self._write(armed.region, replace(found, process=name_of_this_process()))
        return None

    def _write(self, region: int, found: Finding) -> None:
        count = self._counts.get((region, found), 0) + 1
        self._counts[region, found] = count
        if count <= _EXACT or not count & (count - 1):
            self._reader.write(region=region, finding=asdict(found), count=count)


def name_of_this_process() -> str:
    """What the process is called: by multiprocessing, else its program."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    name = multiprocessing.current_process().name if multiprocessing is not None else "MainProcess"
    if name == "MainProcess":
        name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    return f"{name} (pid {os.getpid()})"


def police(monitor: Monitor, reader: Reader) -> None:
    """Police this process, on all of its threads, for as long as it lives."""
    wanted = frozenset({Copy, Synchronization, Allocation})
    rule = Policing(reader)
    # Not pure: what is armed changes.
    monitor.enter(Region(no_implicit_sync.NAME, wanted, rule, Scope(every_thread=True), pure=False))


def prepare() -> None:
    """Open the simulated card, if the parent has one.  Must come before torch is imported."""
    folder = os.environ.get(VARIABLE)
    if folder is None or _has_a_run_of_its_own():
        return
    reader = Reader(Path(folder))
    if reader.setup.simulate is None:
        return
    from pytest_gpuinvariants.hardware.profiles import parse_profile
    from pytest_gpuinvariants.hardware.simulate.runtime import open_runtime

    try:
        open_runtime(*parse_profile(reader.setup.simulate))
    except Exception as error:
        reader.write(error=f"{name_of_this_process()}: {error}")


def join() -> None:
    """Police this process, if a parent asks for it.  Also vLLM's general plugin; a second call does nothing."""
    global _monitor
    folder = os.environ.get(VARIABLE)
    if folder is None or _monitor is not None or _has_a_run_of_its_own():
        return
    reader = Reader(Path(folder))
    try:
        monitor = Monitor(_recorder(reader))
        police(monitor, reader)
        _monitor = monitor
    except Exception as error:
        # The child must run on as if nothing were there; the parent's test is not verified.
        reader.write(error=f"{name_of_this_process()}: {error}")


def _recorder(reader: Reader) -> Recorder:
    if reader.setup.simulate is None:
        from pytest_gpuinvariants.recorders.cupti import CuptiRecorder

        return CuptiRecorder(reader.setup.full_stacks)
    from pytest_gpuinvariants.hardware.simulate.runtime import opened
    from pytest_gpuinvariants.recorders.simulator import SimulatorRecorder

    runtime = opened()
    if runtime is None:
        raise RuntimeError("the simulated card was not opened before torch was imported")
    return SimulatorRecorder(runtime, reader.setup.full_stacks)


def _has_a_run_of_its_own() -> bool:
    """Whether this process runs pytest with the plugin: the test's own process, or a nested run."""
    session = sys.modules.get("pytest_gpuinvariants.session")
    return session is not None and session.is_running()
