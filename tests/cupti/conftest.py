"""The CUPTI recorder over a made-up CUPTI and driver, so that it is tested where there is no GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_gpuinvariants.events import Allocation, ApiCall, Copy, Event, Launch, Synchronization
from pytest_gpuinvariants.recorders.cupti import CuptiRecorder

DRIVER, RUNTIME = 1, 2
PAGEABLE, PINNED, DEVICE = 0x1000, 0x2000, 0x3000
HOST_SIDE = frozenset[type[ApiCall]]({Copy, Synchronization})
EVERYTHING = frozenset[type[ApiCall]]({Copy, Synchronization, Allocation, Launch})


class FakeCuda:
    """Makes calls up, as CUPTI would report them."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._kept: list[object] = []

    def structure(self, *slots: int) -> int:
        """The address of a structure made of 8-byte slots."""
        made = (ctypes.c_uint64 * len(slots))(*slots)
        self._kept.append(made)
        return ctypes.addressof(made)

    def _fire(self, site: int, call: tuple[int, int], values: tuple[int, ...], result: int, symbol: bytes) -> bool:
        domain, identity = call
        parameters = (ctypes.c_uint64 * max(len(values), 1))(*values)
        return bool(self.library.fake_fire(site, domain, identity, b"function", parameters, result, symbol))

    def call(self, domain: int, identity: int, *values: int, result: int = 0, symbol: bytes = b"kernel") -> bool:
        """A whole call; whether anyone listened to its end."""
        self._fire(0, (domain, identity), values, 0, symbol)
        return self._fire(1, (domain, identity), values, result, symbol)

    @contextmanager
    def within(self, domain: int, identity: int, *values: int, result: int = 0) -> Iterator[None]:
        """A call that makes others."""
        self._fire(0, (domain, identity), values, 0, b"kernel")
        yield
        self._fire(1, (domain, identity), values, result, b"kernel")


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fake") / "libfake_cupti.so"
    source = Path(__file__).parent / "fake_cupti.c"
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-o", target, source], check=True)
    return target


@pytest.fixture
def fake(fake_library: Path) -> Iterator[FakeCuda]:
    library = ctypes.CDLL(str(fake_library))
    yield FakeCuda(library)
    library.fake_hold(None)
    library.fake_refuse(0)
    library.fake_current(0, 3)


@pytest.fixture
def allocator(fake_library: Path, tmp_path: Path) -> Path:
    """A library that is called as torch's allocator is, and makes CUDA calls."""
    target = tmp_path / "libc10_cuda_fake.so"
    source = Path(__file__).parent / "allocator.c"
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O0", "-shared", "-fPIC", "-o", target, source, fake_library], check=True)
    return target


@pytest.fixture
def recorder(fake_library: Path) -> Iterator[CuptiRecorder]:
    made = CuptiRecorder(libraries=(str(fake_library), str(fake_library)))
    yield made
    made.stop()


Listen = Callable[..., list[Event]]


@pytest.fixture
def listen(recorder: CuptiRecorder, fake: FakeCuda) -> Listen:
    """Start the recorder; the events that it tells gather in the list."""

    def start(wanted: frozenset[type[ApiCall]] = HOST_SIDE) -> list[Event]:
        events: list[Event] = []
        recorder.start(events.append, wanted)
        return events

    return start
