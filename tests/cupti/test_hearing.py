"""Calls that repeat are counted without Python; calls from inside torch's allocator are told later."""

from __future__ import annotations

import ctypes
import sys
import threading
import tracemalloc
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuinvariants.allowances import Allowance, Exemption
from pytest_gpuinvariants.events import Allocation, Copy, Event, Synchronization
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.invariants import no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.recorders.cupti import CuptiRecorder
from pytest_gpuinvariants.recorders.protocol import Again
from tests.cupti.conftest import DEVICE, HOST_SIDE, PAGEABLE, RUNTIME, FakeCuda

MALLOC, MEMCPY_ASYNC, STREAM_SYNC, DEVICE_SYNC = 20, 41, 131, 165


class Counting:
    """A sink that counts what it is told, and what it is told about again."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.counts: list[int] = []

    def __call__(self, event: Event) -> Again:
        index = len(self.counts)
        self.told.append(event)
        self.counts.append(1)

        def again(count: int) -> None:
            self.counts[index] += count

        return again


def _region(*kinds: str) -> Region:
    options = no_implicit_sync.Options(frozenset(kinds or no_implicit_sync.KINDS))
    return Region(no_implicit_sync.NAME, no_implicit_sync.wanted(options), no_implicit_sync.rule(options))


def _counts(findings: tuple[Finding, ...]) -> list[tuple[str, int]]:
    return [(found.subject, found.count) for found in findings]


def test_the_same_call_from_the_same_line_is_told_once(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    sink = Counting()
    recorder.start(sink, HOST_SIDE)
    for _ in range(100):
        fake.call(RUNTIME, STREAM_SYNC, 5)
    for size in (8, 16, 8, 16):
        fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, PAGEABLE, size, 1, 5)
    fake.call(RUNTIME, STREAM_SYNC, 5)
    recorder.settle()
    assert [event.api for event in sink.told] == [
        "cudaStreamSynchronize",
        "cudaMemcpyAsync",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    ]
    assert sink.counts == [100, 2, 2, 1]
    assert len({event.stack for event in sink.told}) == 3


def test_after_settling_it_is_told_anew(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    sink = Counting()
    recorder.start(sink, HOST_SIDE)
    for turn in range(4):
        fake.call(RUNTIME, STREAM_SYNC, 5)
        if turn % 2:
            recorder.settle()
    assert sink.counts == [2, 2]


def test_each_thread_is_told_of(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    sink = Counting()
    recorder.start(sink, HOST_SIDE)
    # Alive together, since a thread's number may be used again after its end.
    barrier = threading.Barrier(3)

    def work() -> None:
        for _ in range(10):
            fake.call(RUNTIME, DEVICE_SYNC)
        barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.stop()
    assert sink.counts == [10] * 3
    assert {event.thread.native_id for event in sink.told} == {thread.native_id for thread in threads}


def test_more_places_than_are_remembered(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    sink = Counting()
    recorder.start(sink, HOST_SIDE)
    for size in range(1, 6001):
        for _ in range(2):
            fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, PAGEABLE, size, 1, 5)
    recorder.stop()
    assert sum(sink.counts) == 12000
    assert len({event.bytes for event in sink.told if isinstance(event, Copy)}) == 6000


def test_memory_does_not_grow_with_repeated_calls(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    monitor, region = Monitor(recorder), _region()
    monitor.enter(region)

    def repeat(times: int) -> None:
        for _ in range(times):
            fake.library.fake_fire(0, RUNTIME, DEVICE_SYNC, b"function", None, 0, b"")
            fake.library.fake_fire(1, RUNTIME, DEVICE_SYNC, b"function", None, 0, b"")

    repeat(1000)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    repeat(100_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    monitor.leave(region)
    assert grown < 20_000
    assert _counts(region.tally.violations) == [("cudaDeviceSynchronize", 1000), ("cudaDeviceSynchronize", 100_000)]


def test_regions_and_allowances_count_what_repeats(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    monitor, outer, inner = Monitor(recorder), _region(), _region("sync")

    def repeat(times: int) -> None:
        for _ in range(times):
            fake.call(RUNTIME, DEVICE_SYNC)

    allowance = Allowance(Exemption("why", max_count=4))
    monitor.enter(outer)
    repeat(3)
    monitor.enter(allowance)
    repeat(3)
    assert allowance.count == 3
    repeat(3)
    assert allowance.count == 4, "the other two are over its number"
    monitor.leave(allowance)
    repeat(3)
    monitor.enter(inner)
    repeat(2)
    monitor.leave(inner)
    repeat(3)
    monitor.leave(outer)
    assert allowance.count == 4
    assert _counts(inner.tally.violations) == [("cudaDeviceSynchronize", 2)]
    assert sum(count for _, count in _counts(outer.tally.violations)) == 3 + 2 + 3 + 3


def test_vllms_allowed_regions_at_one_line(
    fake: FakeCuda, recorder: CuptiRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(vllm_sync.MODULE)
    depth: ContextVar[int] = ContextVar("depth", default=0)
    module._allow_depth = depth  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, vllm_sync.MODULE, module)
    sink = Counting()
    recorder.start(sink, HOST_SIDE)
    for allowed in (0, 1, 0, 1, 1):
        token = depth.set(allowed)
        fake.call(RUNTIME, DEVICE_SYNC)
        depth.reset(token)
    recorder.stop()
    assert sink.counts == [2, 3]


def test_a_call_of_the_allocator_waits_for_the_interpreter(
    fake: FakeCuda, allocator: Path, recorder: CuptiRecorder
) -> None:
    parameters = (ctypes.c_uint64 * 2)(0, 64)
    released, held = ctypes.CDLL(str(allocator)), ctypes.PyDLL(str(allocator))
    events: list[Event] = []
    told_in_the_call: list[int] = []

    def sink(event: Event) -> None:
        events.append(event)

    def allocate(library: ctypes.CDLL, identity: int) -> None:
        library.allocate(RUNTIME, identity, parameters)
        told_in_the_call.append(len(events))

    recorder.start(sink, HOST_SIDE | {Allocation})
    thread = threading.Thread(target=allocate, args=(released, MALLOC))
    thread.start()
    thread.join()
    assert told_in_the_call == [0], "Python's lock was free, and could have been waited for"
    allocate(held, MALLOC)
    assert told_in_the_call[-1] == 1, "Python's lock was in hand"
    allocate(released, MALLOC)
    allocate(released, DEVICE_SYNC)
    recorder.settle()
    assert [type(event) for event in events] == [Allocation, Allocation, Synchronization]
    assert all(event.stack for event in events)


def test_a_thread_tells_before_its_next_call(fake: FakeCuda, fake_library: Path, recorder: CuptiRecorder) -> None:
    sink = Counting()
    recorder.start(sink, HOST_SIDE | {Allocation})

    def work() -> None:
        fake.call(RUNTIME, MALLOC, 0, 64)
        fake.call(RUNTIME, DEVICE_SYNC)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.stop()
    assert [(event.api, event.thread.native_id) for event in sink.told] == [
        ("cudaMalloc", thread.native_id),
        ("cudaDeviceSynchronize", thread.native_id),
    ]


def test_a_wait_that_a_program_asks_for_is_told_in_the_call(
    fake: FakeCuda, allocator: Path, recorder: CuptiRecorder
) -> None:
    """From the allocator's library, too, which also has the methods of ``torch.cuda.Stream``."""
    released, parameters = ctypes.CDLL(str(allocator)), (ctypes.c_uint64 * 2)(0, 64)
    sink = Counting()
    recorder.start(sink, HOST_SIDE)

    def work() -> None:
        released.synchronize(RUNTIME, DEVICE_SYNC, parameters)
        told.append(len(sink.told))

    told: list[int] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.stop()
    assert told == [1]


def test_the_end_of_a_thread_tells_what_is_left(fake: FakeCuda, allocator: Path, recorder: CuptiRecorder) -> None:
    released, parameters = ctypes.CDLL(str(allocator)), (ctypes.c_uint64 * 2)(0, 64)
    sink = Counting()
    recorder.start(sink, HOST_SIDE | {Allocation})

    def work() -> None:
        released.allocate(RUNTIME, MALLOC, parameters)
        recorder.end_thread()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    recorder.stop()
    assert [event.api for event in sink.told] == ["cudaMalloc"]
