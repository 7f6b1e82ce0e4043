"""A call's place is told by the Python frames that it comes from, read where CPython keeps them or asked for."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pytest_gpuinvariants.recorders import frame_layout
from pytest_gpuinvariants.recorders.cupti import CuptiRecorder
from pytest_gpuinvariants.recorders.frame_layout import FrameLayout
from tests.cupti.conftest import HOST_SIDE, RUNTIME, FakeCuda
from tests.cupti.test_hearing import Counting

DEVICE_SYNC = 165
Work = Callable[[], object]


@pytest.fixture
def layout() -> FrameLayout:
    """Of this interpreter."""
    known = frame_layout.layout()
    if known is None:
        pytest.skip(f"the frames of {sys.implementation.name} {sys.version_info[:2]} are asked for, not read")
    return known


@pytest.fixture
def open_frames(recorder: CuptiRecorder) -> Iterator[Callable[[FrameLayout | None], bool]]:
    """Have frames read as given, or asked for; the result says which."""
    recorder.start(Counting(), HOST_SIDE)
    library = recorder._hearing._library
    assert library is not None
    recorder.stop()

    def open_them(offered: FrameLayout | None) -> bool:
        return bool(library.gi_frames_open(None, None if offered is None else ctypes.byref(offered)))

    yield open_them
    open_them(frame_layout.layout())


def _directly(work: Work) -> None:
    work()


def _deeply(work: Work, depth: int = 50) -> int:
    _deeply(work, depth - 1) if depth else work()
    return depth


def _through_c(work: Work) -> None:
    sorted([1], key=lambda _: functools.partial(_deeply, work, 5)())


def _in_a_generator(work: Work) -> None:
    def steps() -> Iterator[object]:
        yield work()

    list(steps())


def _in_a_coroutine(work: Work) -> None:
    async def inner() -> None:
        work()

    async def outer() -> None:
        await inner()
        await asyncio.gather(inner(), inner())

    asyncio.run(outer())


def _in_a_thread(work: Work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _in_a_class_body(work: Work) -> None:
    class Body:
        work()


def _in_a_comprehension(work: Work) -> None:
    [work() for _ in range(2)]


WAYS: list[Callable[[Work], object]] = [
    _directly,
    _deeply,
    _through_c,
    _in_a_generator,
    _in_a_coroutine,
    _in_a_thread,
    _in_a_class_body,
    _in_a_comprehension,
]


@pytest.mark.parametrize("way", WAYS)
def test_frames_lie_where_the_layout_says(
    way: Callable[[Work], object], layout: FrameLayout, open_frames: Callable[[FrameLayout | None], bool]
) -> None:
    found: list[bool] = []
    way(lambda: found.append(open_frames(layout)))
    assert found
    assert all(found)


# Offsets of other pointers, so that nothing is followed that is none.
@pytest.mark.parametrize("field", ["f_code", "previous", "prev_instr"])
def test_a_layout_that_is_not_found_is_not_used(
    field: str, layout: FrameLayout, open_frames: Callable[[FrameLayout | None], bool]
) -> None:
    wrong = FrameLayout.from_buffer_copy(layout)
    setattr(wrong, field, layout.f_code if field == "prev_instr" else layout.f_code + 8)
    if field == "previous":
        wrong.previous = layout.f_code
    assert not open_frames(wrong)
    assert open_frames(layout)


def _work(fake: FakeCuda) -> None:
    def sync() -> object:
        return fake.call(RUNTIME, DEVICE_SYNC)

    def twice() -> None:
        sync()
        sync()

    def steps() -> Iterator[object]:
        for _ in range(4):
            yield sync()

    for way in WAYS:
        for _ in range(3):
            way(sync)
        way(sync)  # another line, far down the stack
        way(twice)
    advancing = steps()
    next(advancing)
    next(advancing)
    for _ in range(2):
        next(advancing)


def test_read_and_asked_frames_tell_the_same_places_apart(
    fake: FakeCuda,
    recorder: CuptiRecorder,
    layout: FrameLayout,
    open_frames: Callable[[FrameLayout | None], bool],
) -> None:
    counts: list[Counter[object]] = []
    for offered in (layout, None):
        sink = Counting()
        recorder.start(sink, HOST_SIDE)
        assert open_frames(offered) == (offered is not None)
        _work(fake)
        recorder.stop()
        assert sum(sink.counts) > len(sink.told), "some are only counted"
        # Python may tell a place twice: as it specialises a call, the native stack of that line changes.
        counted: Counter[object] = Counter()
        for event, count in zip(sink.told, sink.counts, strict=True):
            counted[event.stack] += count
        counts.append(counted)
    read, asked = counts
    assert len(read) > 20
    assert read == asked
