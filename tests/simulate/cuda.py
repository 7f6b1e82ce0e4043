"""A CUDA runtime library driven by plain ctypes, for scenarios that run alike on the simulator and on silicon."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass

from pytest_gpuinvariants.hardware.simulate.runtime import SimulatedRuntime

Answer = list[object]
Scenario = Callable[["Cuda"], Answer]
Simulated = Callable[[SimulatedRuntime], Answer]

H2H, H2D, D2H, D2D, DEFAULT = range(5)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
NON_BLOCKING = 1
NO_TIMING = 2
EXTERNAL = 1
BIG = 1 << 16


@dataclass(frozen=True)
class Cuda:
    """A CUDA runtime library, called by name; every call returns its error code."""

    library: ctypes.CDLL

    def __call__(self, name: str, *arguments: object) -> int:
        converted = [ctypes.c_size_t(value) if isinstance(value, int) else value for value in arguments]
        return int(getattr(self.library, name)(*converted))

    def take(self, name: str, *arguments: object) -> int:
        """The handle or address that a call returns through its first argument."""
        out = ctypes.c_size_t()
        code = self(name, ctypes.byref(out), *arguments)
        assert code == 0, f"{name} failed with {code}"
        return out.value

    def device(self, size: int = BIG) -> int:
        return self.take("cudaMalloc", size)

    def pinned(self, size: int = BIG) -> int:
        return self.take("cudaHostAlloc", size, 0)

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self.take("cudaStreamCreateWithFlags", flags)

    def event(self, flags: int = 0) -> int:
        return self.take("cudaEventCreateWithFlags", flags)

    def capturing(self, stream: int) -> int:
        status = ctypes.c_int(-1)
        code = self("cudaStreamIsCapturing", stream, ctypes.byref(status))
        return status.value if code == 0 else -code

    def end(self, stream: int) -> tuple[int, int]:
        graph = ctypes.c_size_t()
        return self("cudaStreamEndCapture", stream, ctypes.byref(graph)), graph.value


_keep: list[object] = []


def pageable(size: int = BIG, fill: bytes = b"\0") -> int:
    """The address of ordinary host memory, alive as long as the process."""
    buffer = ctypes.create_string_buffer((fill * size)[:size], size)
    _keep.append(buffer)
    return ctypes.addressof(buffer)


def counting(size: int) -> int:
    """The address of ordinary host memory whose bytes differ from their neighbours."""
    address = pageable(size)
    ctypes.memmove(address, bytes(i % 251 for i in range(size)), size)
    return address


def keep(value: object) -> None:
    """Keep an object alive that C code has the address of."""
    _keep.append(value)


def unmapped() -> int:
    """An address that was the host's and is nobody's now."""
    area = mmap.mmap(-1, 1 << 20)
    view = (ctypes.c_char * (1 << 20)).from_buffer(area)
    address = ctypes.addressof(view)
    del view
    area.close()
    return address


def text(address: int, size: int) -> str:
    """``size`` bytes of host memory, as hexadecimal."""
    return ctypes.string_at(address, size).hex()


def faces(runtime: SimulatedRuntime) -> tuple[Cuda, Cuda, Cuda]:
    """The simulated CUDA runtime, driver and NVML, to call by name."""
    cudart, driver, nvml = (Cuda(ctypes.CDLL(str(face))) for face in runtime.libraries.faces)
    return cudart, driver, nvml
