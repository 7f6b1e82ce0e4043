"""Processes that are forked off: CUPTI's subscription, and what was under way in the parent."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pytest_gpuinvariants.events import Allocation, Event, Launch
from pytest_gpuinvariants.invariants import no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.recorders import cupti
from pytest_gpuinvariants.recorders.cupti import CuptiRecorder
from pytest_gpuinvariants.recorders.protocol import Again
from tests.cupti.conftest import HOST_SIDE, RUNTIME, FakeCuda
from tests.forks import in_child

MALLOC, LAUNCH, DEVICE_SYNC = 20, 211, 165


@pytest.fixture(autouse=True)
def unused_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this process has done with its real or simulated card."""
    monkeypatch.setattr(cupti, "_in_use", False)
    monkeypatch.setattr(cupti, "cuda_is_initialized", lambda: False)


def _region() -> Region:
    options = no_implicit_sync.Options(frozenset(no_implicit_sync.KINDS))
    return Region(no_implicit_sync.NAME, no_implicit_sync.wanted(options), no_implicit_sync.rule(options))


def _count(region: Region) -> int:
    return sum(found.count for found in region.tally.violations)


def test_a_child_subscribes_anew_and_the_parent_hears_on(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    monitor, region = Monitor(recorder), _region()
    monitor.enter(region)
    for _ in range(3):
        fake.call(RUNTIME, DEVICE_SYNC)
    before = fake.library.fake_subscriptions()

    def child() -> dict[str, object]:
        monitor.forget()
        forgotten = bool(fake.library.fake_is_subscribed())
        mine = _region()
        monitor.enter(mine)
        for _ in range(2):
            fake.call(RUNTIME, DEVICE_SYNC)
        monitor.leave(mine)
        return {
            "subscribed after the fork": forgotten,
            "subscriptions": fake.library.fake_subscriptions() - before,
            "found": _count(mine),
            "added to the parent's": _count(region),
            "subscribed at the end": bool(fake.library.fake_is_subscribed()),
        }

    assert in_child(child) == {
        "subscribed after the fork": False,
        "subscriptions": 1,
        "found": 2,
        "added to the parent's": 1,  # the first of a place is told at once, the other two are still to be counted
        "subscribed at the end": False,
    }
    fake.call(RUNTIME, DEVICE_SYNC)
    monitor.leave(region)
    assert _count(region) == 4


def test_what_the_parent_has_still_to_count_is_not_counted_in_the_child(
    fake: FakeCuda, recorder: CuptiRecorder
) -> None:
    counts: list[int] = []

    def sink(event: Event) -> Again:
        counts.append(1)
        return lambda count: counts.append(count)

    def repeat() -> None:
        for _ in range(10):
            fake.call(RUNTIME, DEVICE_SYNC)

    recorder.start(sink, HOST_SIDE)
    repeat()

    def child() -> list[int]:
        recorder.forget()
        recorder.start(sink, HOST_SIDE)
        repeat()
        recorder.stop()
        return counts

    assert in_child(child) == [1, 1, 9]
    recorder.stop()
    assert counts == [1, 9]


def test_what_a_thread_has_set_aside_is_told_by_the_parent_only(
    fake: FakeCuda, allocator: Path, recorder: CuptiRecorder
) -> None:
    library, parameters = ctypes.CDLL(str(allocator)), (ctypes.c_uint64 * 2)(0, 64)
    told: list[str] = []
    in_the_child: list[str] = []

    def sink(event: Event) -> None:
        told.append(event.api)

    def child() -> list[str]:
        recorder.forget()
        recorder.start(sink, HOST_SIDE | {Allocation})
        fake.call(RUNTIME, DEVICE_SYNC)
        return told

    def work() -> None:
        library.allocate(RUNTIME, MALLOC, parameters)
        in_the_child.extend(in_child(child))
        fake.call(RUNTIME, DEVICE_SYNC)

    recorder.start(sink, HOST_SIDE | {Allocation})
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert in_the_child == ["cudaDeviceSynchronize"]
    assert told == ["cudaMalloc", "cudaDeviceSynchronize"]


def test_a_child_of_a_process_that_uses_cuda_leaves_cupti_alone(
    fake: FakeCuda, recorder: CuptiRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call can succeed there, so that nothing goes unpoliced; CUPTI's own locks and threads are of the parent."""
    monkeypatch.setattr(cupti, "cuda_is_initialized", lambda: True)
    monitor, region = Monitor(recorder), _region()
    monitor.enter(region)
    before = fake.library.fake_subscriptions()

    def child() -> list[int]:
        monitor.forget()
        mine = _region()
        monitor.enter(mine)
        fake.call(RUNTIME, DEVICE_SYNC, result=3)
        monitor.leave(mine)
        return [fake.library.fake_is_subscribed(), fake.library.fake_subscriptions() - before, _count(mine)]

    def grandchild() -> object:
        cupti.cuda_is_initialized = lambda: False  # as the driver says in a child
        monitor.forget()
        return in_child(child)

    assert in_child(child) == [1, 0, 0]
    assert in_child(grandchild) == [1, 0, 0]
    fake.call(RUNTIME, DEVICE_SYNC)
    monitor.leave(region)
    assert _count(region) == 1


def test_whether_cuda_is_initialized_is_asked_of_a_driver_that_is_there(tmp_path: Path) -> None:
    driver = tmp_path / "libdriver.so"
    source = Path(__file__).parent / "fake_cupti.c"
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source], check=True)
    code = f"""
        import ctypes
        from pytest_gpuinvariants.recorders.cupti import cuda_is_initialized
        answers = [cuda_is_initialized()]
        driver = ctypes.CDLL({str(driver)!r})
        for state in (0, 1):
            driver.fake_initialize(state)
            answers.append(cuda_is_initialized())
        print(*answers)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "False", "True"]


def test_a_fork_while_other_threads_launch_leaves_no_lock_behind(
    fake: FakeCuda, allocator: Path, recorder: CuptiRecorder
) -> None:
    told: list[str] = []

    def sink(event: Event) -> None:
        told.append(event.api)

    # A kernel of a library of torch's is looked up and left out, all without Python.
    kernel = ctypes.cast(ctypes.CDLL(str(allocator)).allocate, ctypes.c_void_p).value or 0
    parameters = (ctypes.c_uint64 * 8)(kernel)
    recorder.start(sink, frozenset({Launch}))
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            fake.library.fake_repeat(RUNTIME, LAUNCH, parameters, 10_000)

    def child() -> list[str]:
        recorder.forget()
        recorder.start(sink, frozenset({Launch}))
        fake.call(RUNTIME, LAUNCH, 0x5000, 0, 0, 0, 0, 0, 5)
        return told

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(child) for _ in range(20)] == [["cudaLaunchKernel"]] * 20
    finally:
        stop.set()
        for thread in threads:
            thread.join()
