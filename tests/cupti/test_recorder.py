"""What the CUPTI recorder tells, what it leaves out, and when it listens."""

from __future__ import annotations

import threading

import pytest

from pytest_gpuinvariants.events import Allocation, Copy, Event, Launch, Memory, Synchronization
from pytest_gpuinvariants.recorders.cupti import CuptiRecorder
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError
from tests.cupti.conftest import (
    DEVICE,
    DRIVER,
    EVERYTHING,
    HOST_SIDE,
    PAGEABLE,
    PINNED,
    RUNTIME,
    FakeCuda,
    Listen,
)

MEMCPY, MEMCPY_ASYNC, MEMSET, STREAM_SYNC, EVENT_SYNC = 31, 41, 49, 131, 137
CU_HTOD_ASYNC, CU_STREAM_SYNC = 277, 126
ASYNC_TO_DEVICE = (DEVICE, PAGEABLE, 260, 1, 5)
CAPTURED, CAPTURE_UNSUPPORTED = 7, 900


def copies(events: list[Event]) -> list[tuple[str, int, str, str, bool]]:
    return [(e.api, e.bytes, e.source, e.destination, e.blocking) for e in events if isinstance(e, Copy)]


def names(events: list[Event]) -> list[str]:
    return [event.api for event in events]


def test_an_asynchronous_copy_of_pageable_memory(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    fake.call(RUNTIME, MEMCPY_ASYNC, *ASYNC_TO_DEVICE)
    (event,) = events
    assert isinstance(event, Copy)
    assert (event.api, event.bytes, event.direction, event.blocking) == ("cudaMemcpyAsync", 260, "H2D", False)
    assert (event.source, event.destination) == (Memory.PAGEABLE, Memory.DEVICE)
    assert (event.stream, event.device, event.capturing, event.result) == (5, 3, False, 0)
    assert event.thread.native_id == threading.get_native_id()
    assert event.stack[-1].function == "test_an_asynchronous_copy_of_pageable_memory"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ((RUNTIME, MEMCPY_ASYNC, DEVICE, PINNED, 8, 1, 0), None),
        ((RUNTIME, MEMCPY_ASYNC, PINNED, DEVICE, 8, 2, 0), None),
        ((RUNTIME, MEMCPY_ASYNC, DEVICE, DEVICE, 8, 3, 0), None),
        ((RUNTIME, MEMCPY_ASYNC, DEVICE, PAGEABLE, 0, 1, 0), None),
        ((RUNTIME, MEMCPY_ASYNC, PAGEABLE, DEVICE, 8, 2, 0), (8, "device", "pageable", False)),
        ((RUNTIME, MEMCPY_ASYNC, PINNED, PINNED, 8, 0, 0), (8, "pinned", "pinned", False)),
        ((RUNTIME, MEMCPY_ASYNC, PINNED, PINNED, 8, 1, 0), (8, "pinned", "pinned", False)),
        ((RUNTIME, MEMCPY_ASYNC, DEVICE, PAGEABLE, 8, 4, 0), (8, "pageable", "device", False)),
        ((RUNTIME, MEMCPY_ASYNC, PINNED, PAGEABLE, 8, 4, 0), (8, "pageable", "pinned", False)),
        ((RUNTIME, MEMCPY, DEVICE, DEVICE, 8, 3), None),
        ((RUNTIME, MEMCPY, DEVICE, PINNED, 8, 1), (8, "pinned", "device", True)),
        ((RUNTIME, 32, DEVICE, 64, PINNED, 32, 16, 4, 1), (64, "pinned", "device", True)),
        ((RUNTIME, 44, DEVICE, 64, PAGEABLE, 32, 16, 4, 1, 0), (64, "pageable", "device", False)),
        ((RUNTIME, 39, 0xDEAD, PINNED, 8, 0, 1), (8, "pinned", "device", True)),
        ((RUNTIME, 161, DEVICE, 0, DEVICE, 1, 8, 0), None),
        ((RUNTIME, MEMSET, DEVICE, 0, 8), None),
        ((RUNTIME, MEMSET, PINNED, 0, 8), (8, "pinned", "pinned", True)),
        ((RUNTIME, 51, PINNED, 0, 8, 0), None),
        ((DRIVER, 251, PINNED, 0, 8), (32, "pinned", "pinned", True)),
        ((DRIVER, CU_HTOD_ASYNC, DEVICE, PAGEABLE, 8, 0), (8, "pageable", "device", False)),
        ((DRIVER, 305, DEVICE, PINNED, 8), (8, "pinned", "device", True)),
    ],
)
def test_copies_and_fills(
    fake: FakeCuda, listen: Listen, call: tuple[int, ...], told: tuple[object, ...] | None
) -> None:
    events = listen()
    assert fake.call(*call)
    assert [copy[1:] for copy in copies(events)] == ([told] if told else [])


def test_copies_described_by_a_structure(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    runtime_3d = [0, 0, 0, 0, PAGEABLE, 8, 8, 8, 0, 0, 0, 0, DEVICE, 8, 8, 8, 4, 3, 2, 1]
    peer_3d = [0, 0, 0, 0, PINNED, 8, 8, 8, 0, 0, 0, 0, 0, DEVICE, 8, 8, 8, 1, 4, 3, 2]
    driver_2d = [0, 0, 1, PAGEABLE, 0, 0, 8, 0, 0, 2, 0, DEVICE, 0, 8, 4, 3]
    driver_3d = [0, 0, 0, 0, 4, 0, PAGEABLE, 0, 0, 8, 8, 0, 0, 0, 0, 2, 0, DEVICE, 0, 0, 8, 8, 4, 3, 2]
    array_2d = [0, 0, 3, 0, 0, 0xA, 8, 0, 0, 2, 0, DEVICE, 0, 8, 4, 3]
    calls = (RUNTIME, 145, runtime_3d), (RUNTIME, 162, peer_3d), (DRIVER, 289, driver_2d), (DRIVER, 291, driver_3d)
    for domain, identity, values in (*calls, (DRIVER, 287, array_2d)):
        structure = fake.structure(*values)
        fake.call(domain, identity, structure, 0)
    assert copies(events) == [
        ("cudaMemcpy3DAsync", 24, "pageable", "device", False),
        ("cudaMemcpy3DPeer", 24, "pinned", "device", True),
        ("cuMemcpy2DAsync", 12, "pageable", "device", False),
        ("cuMemcpy3DAsync", 24, "pageable", "device", False),
    ]


def test_each_copy_of_a_batch(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    to, of = fake.structure(DEVICE, DEVICE, PAGEABLE), fake.structure(PAGEABLE, PINNED, DEVICE)
    sizes = fake.structure(8, 16, 24)
    fake.call(RUNTIME, 509, to, of, sizes, 3, 0, 0, 0, 5)
    fake.call(DRIVER, 776, to, of, sizes, 1, 0, 0, 0, 0, 6)
    pointer = [1, PAGEABLE, 0, 0, 0], [1, DEVICE, 0, 0, 0]
    operation = [*pointer[0], *pointer[1], 4, 3, 2, 0]
    fake.call(RUNTIME, 511, 2, fake.structure(*operation, *operation), 0, 5)
    assert [(event.api, event.bytes, event.stream) for event in events if isinstance(event, Copy)] == [
        ("cudaMemcpyBatchAsync", 8, 5),
        ("cudaMemcpyBatchAsync", 24, 5),
        ("cuMemcpyBatchAsync", 8, 6),
        ("cudaMemcpy3DBatchAsync", 24, 5),
        ("cudaMemcpy3DBatchAsync", 24, 5),
    ]


@pytest.mark.parametrize(
    ("domain", "identity", "api"),
    [
        (RUNTIME, STREAM_SYNC, "cudaStreamSynchronize"),
        (RUNTIME, 239, "cudaStreamSynchronize"),
        (RUNTIME, EVENT_SYNC, "cudaEventSynchronize"),
        (RUNTIME, 165, "cudaDeviceSynchronize"),
        (DRIVER, 17, "cuCtxSynchronize"),
        (DRIVER, 800, "cuCtxSynchronize"),
        (DRIVER, 121, "cuEventSynchronize"),
        (DRIVER, CU_STREAM_SYNC, "cuStreamSynchronize"),
    ],
)
def test_synchronizations(fake: FakeCuda, listen: Listen, domain: int, identity: int, api: str) -> None:
    events = listen()
    fake.call(domain, identity, 5)
    assert [type(event) for event in events] == [Synchronization]
    assert names(events) == [api]


def test_what_a_runtime_call_does_in_the_driver_is_told_once(fake: FakeCuda, listen: Listen) -> None:
    events = listen(EVERYTHING)
    with fake.within(RUNTIME, MEMCPY_ASYNC, *ASYNC_TO_DEVICE):
        fake.call(DRIVER, CU_HTOD_ASYNC, DEVICE, PAGEABLE, 260, 5)
    with fake.within(RUNTIME, 165):
        fake.call(DRIVER, 17)
    with fake.within(RUNTIME, 20, 0, 64):
        fake.call(DRIVER, 243, 0, 64)
    with fake.within(RUNTIME, 211, 0x5000, 0, 0, 0, 0, 0, 5):
        fake.call(DRIVER, 307, 0x6000, 0, 0, 0, 0, 5)
    fake.call(DRIVER, CU_STREAM_SYNC, 5)
    assert names(events) == [
        "cudaMemcpyAsync",
        "cudaDeviceSynchronize",
        "cudaMalloc",
        "cudaLaunchKernel",
        "cuStreamSynchronize",
    ]


def test_a_free_that_synchronizes_inside_is_no_synchronization(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    with fake.within(RUNTIME, 22, DEVICE):
        fake.call(DRIVER, 17)
    assert events == []


def test_a_call_left_open_at_the_end_of_a_region_does_not_hide_the_next(
    fake: FakeCuda, listen: Listen, recorder: CuptiRecorder
) -> None:
    listen()
    with fake.within(RUNTIME, STREAM_SYNC, 5):
        recorder.stop()
    events = listen()
    fake.call(DRIVER, CU_STREAM_SYNC, 5)
    assert names(events) == ["cuStreamSynchronize"]
    recorder.stop()

    with fake.within(RUNTIME, STREAM_SYNC, 5):
        events = listen()  # armed by another thread, inside this call
    fake.call(DRIVER, CU_STREAM_SYNC, 5)
    assert names(events) == ["cudaStreamSynchronize", "cuStreamSynchronize"]


def test_failed_calls_are_left_out_but_for_those_that_a_capture_refuses(fake: FakeCuda, listen: Listen) -> None:
    events = listen(EVERYTHING)
    fake.call(RUNTIME, MEMCPY, DEVICE, PAGEABLE, 8, 1, result=1)
    fake.call(RUNTIME, STREAM_SYNC, 5, result=400)
    fake.call(RUNTIME, STREAM_SYNC, CAPTURED, result=CAPTURE_UNSUPPORTED)
    fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, PINNED, 8, 1, 0, result=906)
    fake.call(RUNTIME, 20, 0, 64, result=CAPTURE_UNSUPPORTED)
    assert [(event.api, event.capturing, event.result) for event in events] == [
        ("cudaStreamSynchronize", True, 900),
        ("cudaMemcpyAsync", True, 906),
        ("cudaMalloc", True, 900),
    ]


def test_a_captured_call_says_so(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, PAGEABLE, 8, 1, CAPTURED)
    assert [event.capturing for event in events] == [True]


def test_allocations_only_when_asked_for(fake: FakeCuda, listen: Listen, recorder: CuptiRecorder) -> None:
    def allocate() -> None:
        fake.call(RUNTIME, 20, 0, 64)
        fake.call(RUNTIME, 21, 0, 0, 10, 4)
        fake.call(RUNTIME, 22, DEVICE)
        fake.call(RUNTIME, 152, PAGEABLE, 32, 0)
        fake.call(DRIVER, 271, 0, 16, 0)
        fake.call(DRIVER, 38, PINNED)

    events = listen()
    allocate()
    assert events == []
    recorder.stop()
    events = listen(EVERYTHING)
    allocate()
    assert [(event.api, event.bytes) for event in events if isinstance(event, Allocation)] == [
        ("cudaMalloc", 64),
        ("cudaMallocPitch", 40),
        ("cudaFree", 0),
        ("cudaHostRegister", 32),
        ("cuMemHostAlloc", 16),
        ("cuMemFreeHost", 0),
    ]


def test_launches_name_kernel_and_stream(fake: FakeCuda, listen: Listen) -> None:
    events = listen(frozenset({Launch}))
    config = fake.structure(0, 0, 0, 0, 9)
    fake.call(RUNTIME, 505, 0x5000, 0, 0, 0, 0, 0, 5, symbol=b"mine")
    fake.call(RUNTIME, 505, 0x5000, 0, 0, 0, 0, 0, 5, symbol=b"mine")
    fake.call(RUNTIME, 430, config, 0x5000, 0, symbol=b"other")
    fake.call(DRIVER, 652, config, 0x7000, 0, 0, symbol=b"jitted")
    fake.call(DRIVER, CU_STREAM_SYNC, 5)
    launches = [event for event in events if isinstance(event, Launch)]
    assert [(launch.api, launch.kernel, launch.stream) for launch in launches] == [
        ("cudaLaunchKernel", "mine", 5),
        ("cudaLaunchKernel", "mine", 5),
        ("cudaLaunchKernelExC", "other", 9),
        ("cuLaunchKernelEx", "jitted", 9),
    ]
    assert len(events) == len(launches)
    assert all(".so" in launch.library for launch in launches)


def test_calls_of_other_threads_name_them(fake: FakeCuda, listen: Listen) -> None:
    events = listen()
    thread = threading.Thread(target=fake.call, args=(RUNTIME, STREAM_SYNC, 5), name="worker")
    thread.start()
    thread.join()
    assert [(event.thread.native_id, event.thread.name) for event in events] == [(thread.native_id, "worker")]


def test_what_the_sink_calls_is_not_told(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    told: list[str] = []

    def sink(event: Event) -> None:
        told.append(event.api)
        fake.call(RUNTIME, STREAM_SYNC, 5)

    recorder.start(sink, HOST_SIDE)
    fake.call(RUNTIME, 165)
    assert told == ["cudaDeviceSynchronize"]


def test_what_fails_on_the_way_is_raised_at_the_end(fake: FakeCuda, recorder: CuptiRecorder) -> None:
    def sink(event: Event) -> None:
        raise ValueError("lost")

    recorder.start(sink, HOST_SIDE)
    fake.call(RUNTIME, 165)
    with pytest.raises(RuntimeError) as caught:
        recorder.stop()
    assert str(caught.value.__cause__) == "lost"
    recorder.stop()


def test_clean_calls_reach_no_python_and_ask_little(fake: FakeCuda, listen: Listen) -> None:
    listen()
    before = fake.library.fake_questions()
    fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, DEVICE, 8, 3, 0)
    assert fake.library.fake_questions() == before, "the call itself says that it stays on the device"
    fake.call(RUNTIME, MEMCPY_ASYNC, DEVICE, PINNED, 8, 1, 0)
    assert fake.library.fake_questions() - before <= 2
    before = fake.library.fake_questions()
    fake.call(RUNTIME, MEMCPY_ASYNC, *ASYNC_TO_DEVICE)
    assert fake.library.fake_questions() - before == 1, "the other side would not change the verdict"


@pytest.mark.parametrize("contexts", [(0xA, 0xB, 0xB, 0xA), (0, 0, 0, 0)])
def test_the_device_is_that_of_the_current_context(
    fake: FakeCuda, listen: Listen, recorder: CuptiRecorder, contexts: tuple[int, ...]
) -> None:
    events = listen()
    devices = (3, 1, 1, 3)
    for context, device in zip(contexts, devices, strict=True):
        fake.library.fake_current(context, device)
        fake.call(RUNTIME, 165)
    # Another region, of a context that lies where one of another device was.
    recorder.stop()
    later = listen()
    fake.library.fake_current(contexts[-1], 2)
    fake.call(RUNTIME, 165)
    assert [event.device for event in events + later] == [*devices, 2]


def test_subscribed_only_while_started(fake: FakeCuda, listen: Listen, recorder: CuptiRecorder) -> None:
    assert not fake.library.fake_is_subscribed()
    listen()
    assert fake.library.fake_is_subscribed()
    assert fake.library.fake_is_enabled(RUNTIME, MEMCPY_ASYNC)
    assert not fake.library.fake_is_enabled(RUNTIME, 211), "launches cost nothing to who does not ask for them"
    recorder.stop()
    assert not fake.library.fake_is_subscribed()
    assert not fake.call(RUNTIME, STREAM_SYNC, 5)
    recorder.stop()


def test_a_tool_that_holds_cupti_is_named(
    fake: FakeCuda, listen: Listen, recorder: CuptiRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.library.fake_hold(b"CUPTI for SomeTool")
    with pytest.raises(RecorderUnavailableError, match="CUPTI is held by CUPTI for SomeTool"):
        listen()
    for nameless in (b"", b"CUPTI for <not provided>"):
        fake.library.fake_hold(nameless)
        with pytest.raises(RecorderUnavailableError, match=r"held by torch\.profiler"):
            listen()
    with pytest.raises(RecorderUnavailableError, match=r"torch\.profiler"):
        listen()
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool.so")
    with pytest.raises(RecorderUnavailableError, match=r"CUDA_INJECTION64_PATH=/opt/tool\.so"):
        listen()
    fake.library.fake_hold(None)
    assert listen() == []
    recorder.stop()


def test_a_cupti_that_refuses_is_not_silent(fake: FakeCuda, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.library.fake_refuse(14)
    with pytest.raises(RecorderUnavailableError, match=r"error 14\)$"):
        listen()
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/tool.so")
    with pytest.raises(RecorderUnavailableError, match=r"error 14\): the tool that CUDA_INJECTION64_PATH"):
        listen()


def test_a_library_that_is_not_there_is_named() -> None:
    recorder = CuptiRecorder(libraries=("libnowhere.so", "libnowhere.so"))
    with pytest.raises(RecorderUnavailableError, match=r"libnowhere\.so"):
        recorder.start(lambda event: None, HOST_SIDE)
