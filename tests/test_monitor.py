"""Regions, allowances and threads, over a recorder made of a list."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuinvariants.allowances import Allowance, Exemption
from pytest_gpuinvariants.events import ApiCall, Event, Launch, Synchronization, Thread
from pytest_gpuinvariants.findings import Finding, finding
from pytest_gpuinvariants.monitor import Monitor, RecorderError, Region
from pytest_gpuinvariants.recorders.protocol import Recorder, Sink


class Fake:
    """A recorder that says what it was asked and hands over what a test makes up."""

    name = "fake"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.sink: Sink | None = None

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        self.log.append("start " + " ".join(sorted(kind.__name__ for kind in wanted)))
        self.sink = sink

    def widen(self, wanted: frozenset[type[ApiCall]]) -> None:
        self.log.append("widen " + " ".join(sorted(kind.__name__ for kind in wanted)))

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        pass

    def settle(self) -> None:
        pass

    def end_thread(self) -> None:
        pass

    def stop(self) -> None:
        self.log.append("stop")
        self.sink = None

    def forget(self) -> None:
        self.log.append("forget")
        self.sink = None

    def happen(self, event: Event) -> None:
        assert self.sink is not None, "nobody listens"
        self.sink(event)


def sync(thread: int | None = None) -> Synchronization:
    native = threading.get_native_id() if thread is None else thread
    return Synchronization(api="cudaStreamSynchronize", thread=Thread(native, "t"), stack=())


def launch() -> Launch:
    return Launch(api="launch", thread=Thread(threading.get_native_id(), "t"), stack=(), kernel="k", library="l")


def rule_of(kind: type[ApiCall], invariant: str) -> Callable[[Event], Finding | None]:
    def rule(event: Event) -> Finding | None:
        if not isinstance(event, kind):
            return None
        return finding(event, invariant=invariant, kind="k", subject=event.api, message=event.api)

    return rule


def region(kind: type[ApiCall] = Synchronization, invariant: str = "sync") -> Region:
    return Region(invariant, frozenset({kind}), rule_of(kind, invariant))


def allow(reason: str = "why", **limits: Any) -> Allowance:
    return Allowance(Exemption(reason, invariant="sync", **limits))


def counts(*regions: Region) -> list[int]:
    return [sum(item.count for item in one.tally.violations) for one in regions]


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def monitor(fake: Fake) -> Monitor:
    recorder: Recorder = fake
    return Monitor(recorder)


def test_the_recorder_is_subscribed_only_while_a_region_is_armed(monitor: Monitor, fake: Fake) -> None:
    outer, inner = region(), region(Launch, "launches")
    monitor.enter(allow("alone, it arms nothing"))
    assert fake.log == []
    monitor.enter(outer)
    monitor.enter(inner)
    monitor.leave(inner)
    monitor.enter(inner)
    monitor.leave(inner)
    monitor.leave(outer)
    # To stop in between would lose what other threads do meanwhile.
    assert fake.log == ["start Synchronization", "widen Launch Synchronization", "stop"]


def test_the_innermost_region_of_an_invariant_takes_the_finding(monitor: Monitor, fake: Fake) -> None:
    outer, other, inner = region(), region(Launch, "launches"), region()
    for one in (outer, other, inner):
        monitor.enter(one)
    fake.happen(sync())
    fake.happen(launch())
    assert counts(outer, other, inner) == [0, 1, 1]
    monitor.leave(inner)
    fake.happen(sync())
    assert counts(outer, other, inner) == [1, 1, 1]


def test_an_allowance_covers_what_is_inside_it_and_counts(monitor: Monitor, fake: Fake) -> None:
    outer, allowed, inner = region(), allow(), region()
    monitor.enter(outer)
    monitor.enter(allowed)
    fake.happen(sync())
    fake.happen(sync())
    monitor.enter(inner)
    fake.happen(sync())
    monitor.leave(inner)
    monitor.leave(allowed)
    fake.happen(sync())
    assert (allowed.count, counts(outer, inner)) == (2, [1, 1])


def test_an_allowance_exempts_its_own_invariant_only(monitor: Monitor, fake: Fake) -> None:
    launches = region(Launch, "launches")
    monitor.enter(launches)
    monitor.enter(allow())
    fake.happen(launch())
    assert counts(launches) == [1]


def test_another_threads_calls_are_not_policed(monitor: Monitor, fake: Fake) -> None:
    mine = region()
    monitor.enter(mine)
    fake.happen(sync(thread=1))
    assert counts(mine) == [0]


def test_regions_may_end_in_any_order(monitor: Monitor, fake: Fake) -> None:
    first, second = region(), region()
    monitor.enter(first)
    monitor.enter(second)
    monitor.leave(first)
    fake.happen(sync())
    monitor.leave(second)
    assert counts(first, second) == [0, 1]
    assert fake.log[-1] == "stop"


def test_a_recorder_that_breaks_verifies_nothing(monitor: Monitor, fake: Fake) -> None:
    def broken(event: Event) -> Finding | None:
        raise ZeroDivisionError

    armed = Region("sync", frozenset({Synchronization}), broken)
    monitor.enter(armed)
    fake.happen(sync())  # inside a CUDA call: must not raise there
    with pytest.raises(RecorderError, match="nothing was verified"):
        monitor.leave(armed)
    fine = region()
    monitor.enter(fine)
    fake.happen(sync())
    monitor.leave(fine)
    assert counts(fine) == [1]


def test_what_is_armed_is_forgotten_in_a_process_that_was_forked_off(monitor: Monitor, fake: Fake) -> None:
    start = threading.Thread.start
    armed = region()
    monitor.enter(armed)
    monitor.forget()
    assert fake.log == ["start Synchronization", "forget"]
    assert threading.Thread.start is start
    mine = region()
    monitor.enter(mine)
    fake.happen(sync())
    monitor.leave(mine)
    assert counts(armed, mine) == [0, 1]


def test_what_another_tool_makes_of_the_start_of_threads_stays(
    monitor: Monitor, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # put back at the end
    outer, inner = region(), region()
    monitor.enter(outer)
    replaced = threading.Thread.start

    def traced(thread: threading.Thread) -> None:
        started.append(thread.name)
        replaced(thread)

    threading.Thread.start = traced  # type: ignore[method-assign,assignment]
    monitor.leave(outer)
    assert threading.Thread.start is traced
    monitor.enter(inner)
    thread = threading.Thread(target=lambda: fake.happen(sync()), name="worker")
    thread.start()
    thread.join()
    monitor.leave(inner)
    assert threading.Thread.start is traced
    assert (started, counts(outer, inner)) == (["worker"], [0, 1])


def test_a_fork_waits_until_another_thread_has_armed(monitor: Monitor, fake: Fake) -> None:
    begun, may_end = threading.Event(), threading.Event()
    start = fake.start

    def slow_start(sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        begun.set()
        assert may_end.wait(10)
        start(sink, wanted)

    fake.start = slow_start  # type: ignore[method-assign]
    armed = region()
    arming = threading.Thread(target=monitor.enter, args=(armed,))
    arming.start()
    assert begun.wait(10)
    log_at_the_fork: list[str] = []

    def fork() -> None:
        monitor.before_fork()
        log_at_the_fork.extend(fake.log)
        monitor.after_fork()

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join(0.1)
    assert forking.is_alive()
    may_end.set()
    arming.join()
    forking.join(10)
    assert log_at_the_fork == ["start Synchronization"]
    monitor.leave(armed)
    assert fake.log[-1] == "stop"
