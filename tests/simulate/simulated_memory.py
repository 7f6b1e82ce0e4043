"""Memory scenarios for the simulator alone: its limits, and misuse that would end a process on silicon.

They run on two simulated devices, each in a process of its own; the tests state what they answer.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time

from pytest_gpuinvariants.hardware.simulate.runtime import SimulatedRuntime
from tests.simulate.cuda import D2H, DEFAULT, H2D, Answer, Simulated, counting, faces, pageable, text

_GIB = 1 << 30


def memory_limit(runtime: SimulatedRuntime) -> Answer:
    """Half, half, nothing left, half again after a free; the other device is not touched."""
    cuda, _, _ = faces(runtime)
    half, out = runtime.profile.memory_bytes // 2, ctypes.c_size_t()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    first = cuda.device(half)
    answers: Answer = [cuda("cudaMalloc", ctypes.byref(out), half), cuda("cudaMalloc", ctypes.byref(out), 1), out.value]
    cuda("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    answers += [free.value, total.value // _GIB]
    answers += [cuda("cudaFree", first), cuda("cudaMalloc", ctypes.byref(out), half)]
    answers += [cuda("cudaSetDevice", 1), cuda("cudaMalloc", ctypes.byref(out), 2 * half)]
    return answers


def host_can_not_touch_device_memory(runtime: SimulatedRuntime) -> Answer:
    """Ends the process, as on silicon."""
    cuda, _, _ = faces(runtime)
    return [ctypes.string_at(cuda.device(), 1).hex()]


def registered_memory_unmapped(runtime: SimulatedRuntime) -> Answer:
    """Copies from registered memory that the program gave back, then pinned memory that may take its place."""
    cuda, _, _ = faces(runtime)
    device = cuda.device()
    area = mmap.mmap(-1, 1 << 16)
    view = ctypes.c_char.from_buffer(area)
    address = ctypes.addressof(view)
    answers: Answer = [cuda("cudaHostRegister", address, 1 << 16, 0)]
    del view
    area.close()
    answers.append(cuda("cudaMemcpy", device, address, 64, H2D))
    answers.append(cuda("cudaMemcpy", address, device, 64, D2H))
    answers.append(cuda("cudaMemset", address, 0, 64))
    pinned = [cuda.pinned(1 << 16) for _ in range(8)]
    answers += [cuda("cudaMemcpy", device, block, 1 << 16, H2D) for block in pinned]
    return [*answers, *(cuda("cudaFreeHost", block) for block in pinned)]


def interior_pointers(runtime: SimulatedRuntime) -> Answer:
    """A copy through the middle of a registered range and of a device allocation, direction left to CUDA."""
    cuda, _, _ = faces(runtime)
    device, host, back = cuda.device(4096), counting(1 << 14), pageable(64)
    page = (host + 4095) & ~4095
    cuda("cudaHostRegister", page, 8192, 0)
    return [
        cuda("cudaMemcpy", device + 100, page + 1000, 32, DEFAULT),
        cuda("cudaMemcpy", back, device + 100, 32, DEFAULT),
        text(back, 32) == text(page + 1000, 32),
        cuda("cudaMemcpy", page + 8000, device, 64, DEFAULT),
        cuda("cudaMemcpy", page + 8160, device, 64, DEFAULT),
    ]


def copies_in_three_dimensions(runtime: SimulatedRuntime) -> Answer:
    cuda, _, _ = faces(runtime)
    device, host, back = cuda.device(4096), counting(4096), pageable(4096)
    # struct cudaMemcpy3DParms as 20 words: array, position, pitched pointer, twice; extent; kind.
    up = (ctypes.c_size_t * 20)(0, 2, 1, 0, host, 16, 16, 8, 0, 0, 0, 0, device, 32, 32, 4, 5, 3, 2, H2D)
    down = (ctypes.c_size_t * 20)(0, 0, 0, 0, device, 32, 32, 4, 0, 0, 0, 0, back, 8, 8, 3, 5, 3, 2, D2H)
    answers: Answer = [
        cuda("cudaMemset", device, 0, 4096),
        cuda("cudaMemcpy3D", up),
        cuda("cudaMemcpy3DAsync", down, 0),
    ]
    want = bytearray(48)
    for z in range(2):
        for y in range(3):
            source = z * 128 + (1 + y) * 16 + 2
            want[z * 24 + y * 8 : z * 24 + y * 8 + 5] = bytes(i % 251 for i in range(source, source + 5))
    return [*answers, text(back, 48) == bytes(want).hex()]


def batch_copies(runtime: SimulatedRuntime) -> Answer:
    cuda, _, _ = faces(runtime)
    device, host, stream = cuda.device(256), counting(256), cuda.stream()
    back = pageable(64)
    to = (ctypes.c_size_t * 2)(device, device + 100)
    source = (ctypes.c_size_t * 2)(host + 50, host)
    sizes = (ctypes.c_size_t * 2)(8, 16)
    indices, attributes = (ctypes.c_size_t * 1)(0), (ctypes.c_int * 64)()
    code = cuda("cudaMemcpyBatchAsync", to, source, sizes, 2, attributes, indices, 1, stream)
    cuda("cudaMemcpy", back, device, 8, D2H)
    cuda("cudaMemcpy", back + 8, device + 100, 16, D2H)
    return [code, text(back, 8) == text(host + 50, 8), text(back + 8, 16) == text(host, 16)]


def peer_copies(runtime: SimulatedRuntime) -> Answer:
    cuda, _, _ = faces(runtime)
    first = cuda.device()
    answers: Answer = [cuda("cudaMemset", first, 0x5A, 16), cuda("cudaSetDevice", 1)]
    second, back = cuda.device(), pageable(16)
    answers += [
        cuda("cudaDeviceEnablePeerAccess", 0, 0),
        cuda("cudaDeviceEnablePeerAccess", 0, 0),
        cuda("cudaMemcpyPeer", second, 1, first, 0, 16),
        cuda("cudaMemcpyPeer", second, 7, first, 0, 16),
        cuda("cudaMemcpyPeerAsync", second + 16, 1, second, 1, 16, 0),
        cuda("cudaMemcpy", back, second + 16, 16, D2H),
        text(back, 16),
        cuda("cudaDeviceDisablePeerAccess", 0),
        cuda("cudaDeviceDisablePeerAccess", 0),
        cuda("cudaFree", first),
    ]
    return answers


def fill_patterns(runtime: SimulatedRuntime) -> Answer:
    _, driver, _ = faces(runtime)
    cuda, _, _ = faces(runtime)
    device, back = cuda.device(64), pageable(64)
    answers: Answer = [
        driver("cuMemsetD8_v2", device, 0xEE, 64),
        driver("cuMemsetD8_v2", device, 0x12, 3),
        driver("cuMemsetD16_v2", device + 16, 0x1234, 3),
        driver("cuMemsetD32_v2", device + 32, 0x12345678, 2),
        driver("cuMemsetD32_v2", device + 33, 0, 1),
        driver("cuMemsetD16_v2", pageable(64), 0, 1),
        driver("cuMemcpyDtoH_v2", back, device, 64),
    ]
    return [*answers, text(back, 4), text(back + 16, 8), text(back + 32, 12)]


def races(runtime: SimulatedRuntime) -> Answer:
    """Eight threads allocate, copy, record, wait and free, also each other's memory, for half a second."""
    cuda, _, _ = faces(runtime)
    end, shared, errors = time.monotonic() + 0.5, [0] * 8, set[str]()

    def work(index: int) -> None:
        stream, event = cuda.stream(), cuda.event()
        while time.monotonic() < end:
            shared[index] = pinned = cuda.pinned(1 << 14)
            device = cuda.device(1 << 14)
            for other in (pinned, shared[index - 1], shared[index - 2]):
                cuda("cudaMemcpyAsync", device, other, 1 << 14, DEFAULT, stream)
            cuda("cudaEventRecord", event, stream)
            cuda("cudaStreamSynchronize", stream)
            for name, address in (("cudaFreeHost", pinned), ("cudaFree", device)):
                if code := cuda(name, address):
                    errors.add(f"{name}: {code}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*sorted(errors)]


SCENARIOS: tuple[Simulated, ...] = (
    memory_limit,
    host_can_not_touch_device_memory,
    registered_memory_unmapped,
    interior_pointers,
    copies_in_three_dimensions,
    batch_copies,
    peer_copies,
    fill_patterns,
    races,
)
