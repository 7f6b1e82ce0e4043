"""Whose calls a region covers: threads, generators, tasks, context managers, fixtures.  On the simulated card."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_gpuinvariants import InvariantViolation, allow_sync, no_implicit_sync

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("card")


def synchronize() -> None:
    torch.cuda.synchronize()


def in_thread(work: Callable[[], object], name: str = "worker") -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


@pytest.fixture
def background() -> Iterator[Callable[[], None]]:
    """Makes a thread that is there already synchronize, and waits for that."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="background") as pool:
        pool.submit(int).result()  # the thread starts now
        yield lambda: pool.submit(synchronize).result()


def test_a_thread_that_was_there_before_is_not_policed(background: Callable[[], None]) -> None:
    with no_implicit_sync() as region:
        background()
    assert region.tally.violations == ()


def test_all_threads_are_policed_when_asked_and_named(background: Callable[[], None]) -> None:
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync(threads="all"):
        background()
    (found,) = caught.value.findings
    assert found.thread.name.startswith("background")
    assert found.stack[0].function == "synchronize"


def test_a_thread_started_inside_inherits_the_region() -> None:
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync():
        in_thread(lambda: in_thread(synchronize, "grandchild"))
    assert [found.thread.name for found in caught.value.findings] == ["grandchild"]


def test_a_thread_started_inside_inherits_the_allowance_too() -> None:
    with no_implicit_sync(), allow_sync("why") as allowance:
        in_thread(synchronize)
    assert allowance.count == 1


def test_a_thread_that_outlives_the_region_is_free() -> None:
    go, done = threading.Event(), threading.Event()

    def later() -> None:
        go.wait()
        synchronize()
        done.set()

    with no_implicit_sync() as region:
        thread = threading.Thread(target=later)
        thread.start()
    with no_implicit_sync() as other:
        go.set()
        done.wait()
    thread.join()
    assert region.tally.violations == other.tally.violations == ()


def test_threads_start_as_before_once_nothing_is_armed() -> None:
    before = threading.Thread.start
    with no_implicit_sync():
        assert threading.Thread.start is not before
    assert threading.Thread.start is before


def test_a_generator_keeps_its_region_to_itself() -> None:
    def steps() -> Iterator[int]:
        with no_implicit_sync():
            yield 1
            yield 2

    for _ in steps():
        synchronize()  # the caller's, between two steps

    def faulty() -> Iterator[int]:
        with no_implicit_sync():
            yield 1
            synchronize()

    with pytest.raises(InvariantViolation):
        list(faulty())


def test_tasks_keep_their_regions_to_themselves() -> None:
    async def policed(turn: asyncio.Event, other: asyncio.Event) -> None:
        with no_implicit_sync():
            other.set()
            await turn.wait()

    async def free(turn: asyncio.Event, other: asyncio.Event) -> None:
        await turn.wait()
        synchronize()
        other.set()

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        await asyncio.gather(policed(first, second), free(second, first))

    asyncio.run(both())

    async def helper() -> None:
        await asyncio.sleep(0)
        synchronize()

    async def faulty() -> None:
        with no_implicit_sync():
            await helper()

    with pytest.raises(InvariantViolation):
        asyncio.run(faulty())


def test_a_context_manager_made_of_a_generator_polices_its_user() -> None:
    @contextmanager
    def steady() -> Iterator[None]:
        with no_implicit_sync():
            yield

    with pytest.raises(InvariantViolation), steady():
        synchronize()
    stack = ExitStack()
    stack.enter_context(steady())
    synchronize()
    with pytest.raises(InvariantViolation):
        stack.close()


@pytest.fixture
def armed(card: None) -> Iterator[None]:
    with no_implicit_sync():
        yield


@pytest.mark.usefixtures("armed")
def test_a_fixture_polices_the_test() -> None:
    with allow_sync("what the fixture's region would have found") as allowance:
        synchronize()
    assert allowance.count == 1, "no region covered the test"


@pytest.mark.parametrize(
    ("limits", "covered"),
    [
        ({}, 3),
        ({"max_count": 2}, 2),
        ({"api": "cudaDeviceSynchronize"}, 3),
        ({"api": "cuda*Synchronize", "kind": "sync"}, 3),
        ({"api": "cudaStream*"}, 0),
        ({"kind": "pageable-copy"}, 0),
        ({"where": "tests.test_scopes.synchronize"}, 3),
        ({"where": "tests.test_scopes.test_an_allowance*"}, 3),
        ({"where": "torch.*"}, 0),
    ],
)
def test_an_allowance_is_limited_by_place_api_kind_and_number(limits: dict[str, object], covered: int) -> None:
    outside = no_implicit_sync()
    region = outside.__enter__()
    with allow_sync("why", **limits) as allowance:  # type: ignore[arg-type]
        for _ in range(3):
            synchronize()
    if covered == 3:
        outside.__exit__(None, None, None)
    else:
        with pytest.raises(InvariantViolation):
            outside.__exit__(None, None, None)
    assert allowance.count == covered
    assert sum(found.count for found in region.tally.violations) == 3 - covered


def _stream() -> Callable[[], object]:
    wait: Callable[[], object] = torch.cuda.Stream().synchronize
    return wait


def _device_independent_stream() -> Callable[[], object]:
    wait: Callable[[], object] = torch.Stream(device="cuda").synchronize
    return wait


def _event() -> Callable[[], object]:
    event = torch.cuda.Event()
    event.record()
    wait: Callable[[], object] = event.synchronize
    return wait


def _device_independent_event() -> Callable[[], object]:
    event = torch.Event(device="cuda")
    event.record()
    wait: Callable[[], object] = event.synchronize
    return wait


@pytest.mark.parametrize(
    ("make", "api"),
    [
        (lambda: torch.cuda.synchronize, "cudaDeviceSynchronize"),
        (lambda: torch.accelerator.synchronize, "cudaDeviceSynchronize"),
        (_stream, "cudaStreamSynchronize"),
        (_device_independent_stream, "cudaStreamSynchronize"),
        (_event, "cudaEventSynchronize"),
        (_device_independent_event, "cudaEventSynchronize"),
    ],
)
def test_the_last_call_of_a_thread_is_found_at_its_line(make: Callable[[], Callable[[], object]], api: str) -> None:
    """Torch makes it from the library of its allocator, whose own waits are told later."""
    wait = make()

    def work() -> None:
        wait()

    with pytest.raises(InvariantViolation) as caught, no_implicit_sync():
        in_thread(work)
    (found,) = caught.value.findings
    assert (found.id.partition("@")[0], found.stack[0].qualified) == (
        f"sync:{api}",
        f"{__name__}.{work.__qualname__}",
    )


def test_what_the_allocator_does_last_in_a_thread_is_found() -> None:
    """After the line, so that only the thread is named."""

    def grow() -> None:
        sizes.append(torch.empty(64 << 20, device="cuda").shape)

    sizes: list[torch.Size] = []
    torch.cuda.empty_cache()
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync(kinds="allocation"):
        in_thread(grow)
    (found,) = caught.value.findings
    assert sizes
    assert (found.id.partition("@")[0], found.thread.name) == ("allocation:cudaMalloc", "worker")
