"""What a process that is forked off does with what it inherits."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

import pytest

from pytest_gpuinvariants.children import child
from pytest_gpuinvariants.children.channel import Armed, Reader, Setup, Writer
from pytest_gpuinvariants.events import ApiCall
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.monitor import Monitor
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError, Sink
from tests.forks import in_child


class Fake:
    """A recorder that says what it was asked, and may refuse to start."""

    name = "fake"

    def __init__(self, refusal: str = "") -> None:
        self.log: list[str] = []
        self._refusal = refusal

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        if self._refusal:
            raise RecorderUnavailableError(self._refusal)
        self.log.append("start")

    def widen(self, wanted: frozenset[type[ApiCall]]) -> None:
        self.log.append("widen")

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        pass

    def settle(self) -> None:
        pass

    def end_thread(self) -> None:
        pass

    def stop(self) -> None:
        self.log.append("stop")

    def forget(self) -> None:
        self.log.append("forget")


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    made = Writer(tmp_path, Setup(simulate=None, full_stacks=False))
    made.arm(Armed(1, ("sync",), 0))
    return made


def test_on_a_real_card_it_waits_for_torch_and_imports_none(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()

    def forked() -> list[list[str]]:
        sys.path.insert(0, str(tmp_path))
        sys.modules.pop("torch", None)
        fake = Fake()
        child.follow(Monitor(fake), Reader(writer.folder))
        without = [*fake.log]
        __import__("torch")
        again = Fake()
        child.follow(Monitor(again), Reader(writer.folder))
        return [without, fake.log, again.log]

    assert in_child(forked) == [["forget"], ["forget", "start"], ["forget", "start"]]


def test_where_no_one_asks_for_children_nothing_is_policed() -> None:
    def forked() -> list[str]:
        fake = Fake()
        child.follow(Monitor(fake), None)
        return fake.log

    assert in_child(forked) == ["forget"]


def test_what_can_not_be_policed_is_told_also_when_it_is_forked_before_its_region(writer: Writer) -> None:
    writer.disarm(1)

    def forked() -> bool:
        sys.modules.setdefault("torch", sys)
        child.follow(Monitor(Fake("CUPTI is held by someone")), Reader(writer.folder))
        return True

    assert in_child(forked)
    (line,) = writer.lines()
    assert "armed" not in line, "what is armed later is not verified either"
    assert line["error"].endswith(f"(pid {line['pid']}): CUPTI is held by someone")


def test_a_lock_that_another_thread_holds_is_waited_for() -> None:
    held, may_release = threading.Event(), threading.Event()

    def hold() -> None:
        with vllm_sync._lock:
            held.set()
            may_release.wait(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)

    def forked() -> bool:
        vllm_sync.enter()
        vllm_sync.leave()
        return True

    assert in_child(forked)
    thread.join()
    assert forked()
