"""The rule, over events: no torch, no GPU."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.events import Allocation, Copy, Event, Frame, Launch, Memory, Synchronization, Thread
from pytest_gpuinvariants.invariants import host_only, no_implicit_sync
from pytest_gpuinvariants.invariants.no_implicit_sync import Options, check

THREAD = Thread(7, "MainThread")
STACK = (Frame("package.module", "Planner.plan", "/src/module.py", 12), Frame("test_it", "test_plan", "/t.py", 3))


def copy(
    source: Memory,
    destination: Memory,
    *,
    api: str = "cudaMemcpyAsync",
    nbytes: int = 260,
    blocking: bool = False,
    gapped: bool = False,
    result: int = 0,
) -> Copy:
    return Copy(
        api=api,
        thread=THREAD,
        stack=STACK,
        bytes=nbytes,
        source=source,
        destination=destination,
        blocking=blocking,
        gapped=gapped,
        result=result,
    )


def sync(api: str, *, result: int = 0, capturing: bool = False) -> Synchronization:
    return Synchronization(api=api, thread=THREAD, stack=STACK, result=result, capturing=capturing)


PAGEABLE, PINNED, DEVICE = Memory.PAGEABLE, Memory.PINNED, Memory.DEVICE


@pytest.mark.parametrize(
    ("event", "finding_id", "line"),
    [
        (
            copy(PAGEABLE, DEVICE),
            "pageable-copy:cudaMemcpyAsync:H2D@package.module.Planner.plan",
            "cudaMemcpyAsync H2D of 260 B from pageable memory: may block",
        ),
        (
            copy(DEVICE, PAGEABLE, nbytes=4),
            "pageable-copy:cudaMemcpyAsync:D2H@package.module.Planner.plan",
            "cudaMemcpyAsync D2H of 4 B into pageable memory: may block",
        ),
        (
            copy(PAGEABLE, DEVICE, gapped=True),
            "gapped-copy:cudaMemcpyAsync:H2D@package.module.Planner.plan",
            "cudaMemcpyAsync H2D of 260 B of a gapped pinned tensor, through pageable memory: may block",
        ),
        (
            copy(PINNED, DEVICE, api="cudaMemcpy", blocking=True),
            "blocking-copy:cudaMemcpy:H2D@package.module.Planner.plan",
            "cudaMemcpy H2D of 260 B: blocks until the copy is done",
        ),
        (
            copy(PINNED, PINNED),
            "blocking-copy:cudaMemcpyAsync:H2H@package.module.Planner.plan",
            "cudaMemcpyAsync H2H of 260 B: blocks until the copy is done",
        ),
        (
            sync("cudaStreamSynchronize"),
            "sync:cudaStreamSynchronize@package.module.Planner.plan",
            "cudaStreamSynchronize: blocks until the stream is idle",
        ),
        (
            sync("cudaEventSynchronize"),
            "sync:cudaEventSynchronize@package.module.Planner.plan",
            "cudaEventSynchronize: blocks until the event has happened",
        ),
        (
            sync("cudaDeviceSynchronize"),
            "sync:cudaDeviceSynchronize@package.module.Planner.plan",
            "cudaDeviceSynchronize: blocks until the device is idle",
        ),
        (
            sync("cuCtxSynchronize"),
            "sync:cuCtxSynchronize@package.module.Planner.plan",
            "cuCtxSynchronize: blocks until the GPU is idle",
        ),
        (
            sync("cudaStreamSynchronize", result=900, capturing=True),
            "capture-unsafe:cudaStreamSynchronize@package.module.Planner.plan",
            "cudaStreamSynchronize: not permitted while a stream is being captured",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "@" in value else "",
)
def test_what_is_a_finding(event: Event, finding_id: str, line: str) -> None:
    found = check(event, Options())
    assert found is not None
    assert (found.id, found.line) == (finding_id, line)
    assert (found.invariant, found.thread, found.stack, found.note) == ("no_implicit_sync", THREAD, STACK, False)


@pytest.mark.parametrize(
    "event",
    [
        copy(PINNED, DEVICE),
        copy(DEVICE, PINNED),
        copy(DEVICE, DEVICE),
        copy(DEVICE, DEVICE, api="cudaMemcpy", blocking=True),
        copy(PAGEABLE, DEVICE, result=1),
        sync("cudaStreamSynchronize", result=400),
        Launch(api="cudaLaunchKernel", thread=THREAD, stack=STACK, kernel="k", library="/l.so"),
        Allocation(api="cudaMalloc", thread=THREAD, stack=STACK, bytes=1),
    ],
    ids=[
        "pinned H2D",
        "pinned D2H",
        "D2D",
        "blocking D2D",
        "failed copy",
        "failed synchronize",
        "launch",
        "allocation by default",
    ],
)
def test_what_is_none(event: Event) -> None:
    assert check(event, Options()) is None


@pytest.mark.parametrize("kind", sorted(no_implicit_sync.KINDS))
def test_only_the_chosen_kinds(kind: str) -> None:
    events: dict[str, Event] = {
        "sync": sync("cudaStreamSynchronize"),
        "pageable-copy": copy(PAGEABLE, DEVICE),
        "gapped-copy": copy(DEVICE, PAGEABLE, gapped=True),
        "blocking-copy": copy(PAGEABLE, DEVICE, blocking=True),
        "capture-unsafe": sync("cudaEventSynchronize", result=900, capturing=True),
        "allocation": Allocation(api="cudaMalloc", thread=THREAD, stack=STACK, bytes=1),
    }
    assert set(events) == set(no_implicit_sync.KINDS)
    reported = {name for name, event in events.items() if check(event, Options(kinds=frozenset({kind})))}
    assert reported == {kind}


@pytest.mark.parametrize(("size", "note"), [(255, True), (256, False), (257, False)])
def test_threshold_makes_smaller_pageable_copies_a_note(size: int, note: bool) -> None:
    options = Options(pageable_threshold=256)
    found = check(copy(PAGEABLE, DEVICE, nbytes=size), options)
    assert found is not None
    assert found.note is note
    blocking = check(copy(PINNED, DEVICE, nbytes=1, blocking=True), options)
    assert blocking is not None
    assert not blocking.note, "a copy that blocks by contract has no harmless size"


@pytest.mark.parametrize(
    ("api", "nbytes", "line"),
    [
        ("cudaMalloc", 512, "cudaMalloc of 512 B: may wait for the device"),
        ("cudaFree", 0, "cudaFree: may wait for the device"),
    ],
)
def test_allocation_in_a_steady_state(api: str, nbytes: int, line: str) -> None:
    options = Options(kinds=frozenset({"allocation"}))
    assert Allocation in no_implicit_sync.wanted(options)
    assert Allocation not in no_implicit_sync.wanted(Options(kinds=frozenset({"sync"})))
    found = check(Allocation(api=api, thread=THREAD, stack=STACK, bytes=nbytes), options)
    assert found is not None
    assert (found.id, found.line) == (f"allocation:{api}@package.module.Planner.plan", line)


def test_host_only_names_the_launch() -> None:
    launch = Launch(api="cuLaunchKernelEx", thread=THREAD, stack=STACK, kernel="_clamp", library="/x/flash.so")
    found = host_only.check(launch)
    assert found is not None
    assert found.id == "launch:cuLaunchKernelEx@package.module.Planner.plan"
    assert found.line.startswith("cuLaunchKernelEx of _clamp from flash.so: ")
    assert host_only.check(copy(PAGEABLE, DEVICE)) is None
