"""Open the simulated CUDA runtime in this process and listen to it.

The libraries must be opened before torch is: from then on every library that is loaded resolves
its CUDA calls to them, with no LD_PRELOAD and no second process.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from pytest_gpuinvariants.hardware.profiles import Profile
from pytest_gpuinvariants.hardware.simulate.build import SimulatorLibraries, build
from pytest_gpuinvariants.recorders.native import EventClass, MemoryKind, NativeEvent

__all__ = [
    "EventClass",
    "MemoryKind",
    "SimulatedCall",
    "SimulatedRuntime",
    "SimulatorTooLateError",
    "open_runtime",
    "opened",
]


class SimulatorTooLateError(RuntimeError):
    """CUDA libraries are loaded already, so the simulated ones can not take their place."""


_NOTHING = EventClass(0)


class _CProfile(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 48),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("l2_bytes", ctypes.c_int32),
        ("shared_per_block_optin", ctypes.c_int32),
        ("shared_per_sm", ctypes.c_int32),
        ("memory_bus_bits", ctypes.c_int32),
        ("max_threads_per_sm", ctypes.c_int32),
        ("max_blocks_per_sm", ctypes.c_int32),
        ("clock_khz", ctypes.c_int32),
        ("memory_clock_khz", ctypes.c_int32),
        ("memory_bytes", ctypes.c_uint64),
    ]


_LISTENER = ctypes.CFUNCTYPE(None, ctypes.POINTER(NativeEvent))


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """One call to the simulated runtime, as its listener gets it.

    ``bytes`` is the whole transfer; ``rows`` exceeds 1 for a pitched copy; ``thread`` is the native
    thread id; ``result`` the CUDA error code the caller gets.
    """

    api: str
    event_class: EventClass
    bytes: int
    rows: int
    destination: MemoryKind
    source: MemoryKind
    blocking: bool
    stream: int
    device: int
    thread: int
    capturing: bool
    result: int
    kernel: str
    library: str


def _read(event: NativeEvent) -> SimulatedCall:
    return SimulatedCall(
        api=event.api.decode(),
        event_class=EventClass(event.event_class),
        bytes=event.bytes,
        rows=event.rows,
        destination=MemoryKind(event.destination),
        source=MemoryKind(event.source),
        blocking=bool(event.blocking),
        stream=event.stream,
        device=event.device,
        thread=event.thread,
        capturing=bool(event.capturing),
        result=event.result,
        kernel=event.kernel.decode() if event.kernel else "",
        library=event.library.decode() if event.library else "",
    )


def device_uuid(profile: Profile, index: int) -> str:
    """Identifier of a simulated device, the same in every run: derived from the model and the position."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'pytest-gpuinvariants/{profile.key}/{index}')}"


class SimulatedRuntime:
    """The simulated runtime of this process: there is at most one, for the life of the process."""

    def __init__(self, libraries: SimulatorLibraries, profile: Profile, count: int) -> None:
        self.libraries = libraries
        self.profile = profile
        self.count = count
        self._core = ctypes.CDLL(str(libraries.core), mode=ctypes.RTLD_GLOBAL)
        self._core.sim_unsupported_name.restype = ctypes.c_char_p
        self._core.sim_launch_count.restype = ctypes.c_uint64
        self._core.sim_listen.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._faces = [
            ctypes.CDLL(str(face), mode=ctypes.RTLD_GLOBAL) for face in (*libraries.faces, *libraries.extras)
        ]
        self._devices = (_CProfile * count)(*(self._device(profile, index) for index in range(count)))
        self._callback: Callable[[SimulatedCall], None] | None = None
        # One for life: the C side keeps only its address, and a thread may be on its way into it.
        self._listener = _LISTENER(self._receive)
        if error := self._core.sim_configure(self._devices, count, libraries.cuda_version):
            raise RuntimeError(f"the simulated CUDA runtime refused its configuration (error {error})")

    @property
    def recipe(self) -> dict[str, object]:
        """How another process opens the same machine with ``ctypes`` alone: libraries, and what to configure."""
        libraries = (self.libraries.core, *self.libraries.faces, *self.libraries.extras)
        return {
            "libraries": [str(library) for library in libraries],
            "devices": bytes(self._devices).hex(),
            "count": self.count,
            "cuda_version": self.libraries.cuda_version,
        }

    @staticmethod
    def _device(profile: Profile, index: int) -> _CProfile:
        return _CProfile(
            name=profile.name.encode(),
            uuid=device_uuid(profile, index).encode(),
            major=profile.major,
            minor=profile.minor,
            sm_count=profile.sm_count,
            l2_bytes=profile.l2_bytes,
            shared_per_block_optin=profile.shared_per_block_optin,
            shared_per_sm=profile.shared_per_sm,
            memory_bus_bits=profile.memory_bus_bits,
            max_threads_per_sm=profile.max_threads_per_sm,
            max_blocks_per_sm=profile.max_blocks_per_sm,
            clock_khz=profile.clock_mhz * 1000,
            memory_clock_khz=profile.memory_clock_mhz * 1000,
            memory_bytes=profile.memory_bytes,
        )

    def attach(self, listener: ctypes.c_void_p | None, classes: int = 0) -> None:
        """Hand calls of ``classes`` to a C function, which gets a ``gi_event``; None stops that."""
        self._core.sim_listen(listener, classes)

    def deliver(self) -> None:
        """Hand over what the calling thread's calls have set aside."""
        self._core.sim_deliver()

    def refuse(self, on: bool) -> None:
        """Refuse launches of kernels that are not torch's own, as a card does that they are not compiled for."""
        self._core.sim_refuse(int(on))

    def listen(self, callback: Callable[[SimulatedCall], None] | None, classes: EventClass = _NOTHING) -> None:
        """Hand calls of ``classes`` to ``callback``, on the calling thread; None stops listening."""
        self._core.sim_listen(None, 0)
        self._callback = callback
        if callback is not None:
            self._core.sim_listen(ctypes.cast(self._listener, ctypes.c_void_p), int(classes))

    def _receive(self, event: ctypes._Pointer[NativeEvent]) -> None:
        callback = self._callback
        if callback is not None:
            callback(_read(event.contents))

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Calls that were answered "not supported" so far, each name once, in order of arrival."""
        names = (self._core.sim_unsupported_name(index) for index in range(self._core.sim_unsupported_count()))
        return tuple(name.decode() for name in names if name)

    @property
    def launches(self) -> int:
        """Kernels recorded, and not run, so far."""
        return int(self._core.sim_launch_count())


_opened: SimulatedRuntime | None = None


def opened() -> SimulatedRuntime | None:
    """The simulated runtime of this process, None if it was not opened."""
    return _opened


def open_runtime(profile: Profile, count: int) -> SimulatedRuntime:
    """Build, open and configure the simulated runtime.

    Args:
        profile: the model of every device.
        count: the number of devices, 1 to 16.

    Raises:
        SimulatorTooLateError: torch is imported already, or another simulated machine is open.
        SimulatorBuildError: the runtime can not be built on this machine.
    """
    global _opened
    if _opened is not None:
        if (_opened.profile, _opened.count) == (profile, count):
            return _opened
        raise SimulatorTooLateError(
            f"this process simulates {_opened.count} x {_opened.profile.label} already; start another for "
            f"{count} x {profile.label}"
        )
    if "torch" in sys.modules:
        raise SimulatorTooLateError(
            "torch was imported before the simulated CUDA runtime could take its place: load the plugin before "
            "anything imports torch (pytest -p gpuinvariants …), not after a plugin or script that does"
        )
    _opened = SimulatedRuntime(build(), profile, count)
    # Libraries release CUDA memory when they are unloaded, after the interpreter that would hear of it.
    atexit.register(_opened.listen, None)
    return _opened
