"""Small operations on a CUDA device, each with what it must be found as, on whatever recorder there is.

An operation is a function that prepares and returns an action; only the action is policed, after it
has run twice.  A finding is written ``kind:call`` or ``kind:call:direction``, one entry for each time.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.recorders.cupti import mapped_libraries
from tests.simulate.cuda import D2D, D2H, DEFAULT, GLOBAL, H2D, RELAXED, Cuda, pageable

Action = Callable[[], object]
SIZE = 4096
REFUSED = 900
HOST, DEVICE, UNIFIED = 1, 2, 4  # CUmemorytype
# PTX is compiled by the driver, so that no compiler is needed.
KERNEL = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n\0"
_kept: list[object] = []


@dataclass(frozen=True)
class Machine:
    """What operations work with: torch, the CUDA runtime and driver, and a compiled extension."""

    torch: Any
    runtime: Cuda
    driver: Cuda
    extension: Cuda


def make_machine(folder: Path) -> Machine:
    """What operations work with on this machine; the extension is compiled into ``folder``."""
    import torch

    torch.ones(1, device="cuda")
    runtime = next(path for path in mapped_libraries() if Path(path).name.startswith("libcudart.so"))
    target = folder / "extension.so"
    source = Path(__file__).parent / "extension.c"
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", target, source, runtime], check=True)
    return Machine(torch, Cuda(ctypes.CDLL(runtime)), Cuda(ctypes.CDLL("libcuda.so.1")), Cuda(ctypes.CDLL(str(target))))


@dataclass(frozen=True)
class Operation:
    """An operation, and its findings in the thread that acts, or in every thread."""

    prepare: Callable[[Machine], Action]
    findings: tuple[str, ...]
    every_thread: bool = False

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self.prepare.__name__


OPERATIONS: list[Operation] = []


def finds(*findings: str, every_thread: bool = False) -> Callable[[Callable[[Machine], Action]], Operation]:
    """Enter an operation in the table."""

    def enter(prepare: Callable[[Machine], Action]) -> Operation:
        operation = Operation(prepare, findings, every_thread)
        OPERATIONS.append(operation)
        return operation

    return enter


def structure(*slots: int) -> int:
    """The address of a structure made of 8-byte slots."""
    made = (ctypes.c_uint64 * len(slots))(*slots)
    _kept.append(made)
    return ctypes.addressof(made)


def succeeds(code: int) -> None:
    """A call that is meant to work did not fail."""
    assert code == 0, f"CUDA error {code}"


# ---- torch ------------------------------------------------------------------------------------------


@finds("sync:cudaStreamSynchronize")
def torch_item(m: Machine) -> Action:
    values = m.torch.ones(1, device="cuda")
    return lambda: values.item()


@finds("pageable-copy:cudaMemcpyAsync:D2H", "sync:cudaStreamSynchronize")
def torch_cpu(m: Machine) -> Action:
    values = m.torch.ones(64, device="cuda")
    return lambda: values.cpu()


@finds("pageable-copy:cudaMemcpyAsync:D2H", "sync:cudaStreamSynchronize")
def torch_tolist(m: Machine) -> Action:
    values = m.torch.ones(64, device="cuda")
    return lambda: values.tolist()


@finds("sync:cudaStreamSynchronize")
def torch_nonzero(m: Machine) -> Action:
    values = m.torch.ones(64, device="cuda")
    return lambda: values.nonzero()


@finds("sync:cudaStreamSynchronize")
def torch_boolean_index(m: Machine) -> Action:
    values = m.torch.ones(64, device="cuda")
    mask = values > 0
    return lambda: values[mask]


@finds("pageable-copy:cudaMemcpyAsync:H2D")
def torch_pageable_non_blocking(m: Machine) -> Action:
    host = m.torch.ones(64)
    return lambda: host.to("cuda", non_blocking=True)


@finds("pageable-copy:cudaMemcpyAsync:H2D", "sync:cudaStreamSynchronize")
def torch_pageable_blocking(m: Machine) -> Action:
    host = m.torch.ones(64)
    return lambda: host.to("cuda")


@finds("pageable-copy:cudaMemcpyAsync:H2D", "sync:cudaStreamSynchronize")
def torch_tensor_from_list(m: Machine) -> Action:
    return lambda: m.torch.tensor([1, 2, 3], device="cuda")


@finds()
def torch_pinned_non_blocking(m: Machine) -> Action:
    host = m.torch.ones(64).pin_memory()
    return lambda: host.to("cuda", non_blocking=True)


@finds("sync:cudaStreamSynchronize")
def torch_pinned_blocking(m: Machine) -> Action:
    host = m.torch.ones(64).pin_memory()
    return lambda: host.to("cuda")


@finds()
def torch_into_pinned(m: Machine) -> Action:
    host, values = m.torch.ones(64).pin_memory(), m.torch.ones(64, device="cuda")
    return lambda: host.copy_(values, non_blocking=True)


@finds("gapped-copy:cudaMemcpyAsync:H2D")
def torch_gapped_pinned_by_keyword(m: Machine) -> Action:
    host, device = m.torch.ones(8, 8).pin_memory()[:, ::2], m.torch.empty(8, 4, device="cuda")
    return lambda: device.copy_(other=host, non_blocking=True)


@finds("gapped-copy:cudaMemcpyAsync:H2D", "sync:cudaStreamSynchronize")
def torch_gapped_pinned_assigned(m: Machine) -> Action:
    host, device = m.torch.ones(8, 8).pin_memory()[:, ::2], m.torch.empty(8, 4, device="cuda")

    def act() -> None:
        device[:] = host

    return act


@finds("gapped-copy:cudaMemcpyAsync:D2H", "sync:cudaStreamSynchronize")
def torch_into_gapped_pinned(m: Machine) -> Action:
    host, device = m.torch.ones(8, 8).pin_memory()[:, ::2], m.torch.empty(8, 4, device="cuda")

    def act() -> None:
        host[:] = device

    return act


@finds("gapped-copy:cudaMemcpyAsync:H2D")
def torch_gapped_pinned(m: Machine) -> Action:
    host = m.torch.ones(64, 2).pin_memory()[:, 0]
    values = m.torch.ones(64, device="cuda")
    return lambda: values.copy_(host, non_blocking=True)


@finds()
def torch_kernels_and_copies_on_the_device(m: Machine) -> Action:
    values = m.torch.ones(64, device="cuda")
    return lambda: (values + values).mul_(2).clone().zero_().sum()


@finds("sync:cudaDeviceSynchronize")
def torch_synchronize(m: Machine) -> Action:
    return lambda: m.torch.cuda.synchronize()


@finds("sync:cudaStreamSynchronize")
def torch_stream_synchronize(m: Machine) -> Action:
    stream = m.torch.cuda.Stream()
    return lambda: stream.synchronize()


@finds("sync:cudaEventSynchronize")
def torch_event_synchronize(m: Machine) -> Action:
    event = m.torch.cuda.Event()
    event.record()
    return lambda: event.synchronize()


@finds()
def torch_queries_and_device_side_waits(m: Machine) -> Action:
    event, stream = m.torch.cuda.Event(), m.torch.cuda.Stream()

    def act() -> None:
        event.record()
        event.query()
        stream.wait_event(event)
        stream.query()

    return act


@finds("allocation:cudaMalloc", "allocation:cudaFree")
def torch_allocator_growth(m: Machine) -> Action:
    def act() -> None:
        m.torch.empty(1 << 26, dtype=m.torch.uint8, device="cuda")
        m.torch.cuda.empty_cache()

    return act


@finds("sync:cudaDeviceSynchronize", every_thread=True)
def torch_synchronize_in_another_thread(m: Machine) -> Action:
    def act() -> None:
        thread = threading.Thread(target=m.torch.cuda.synchronize)
        thread.start()
        thread.join()

    return act


# ---- the runtime --------------------------------------------------------------------------------------


@finds("blocking-copy:cudaMemcpy:H2D")
def runtime_memcpy_pageable(m: Machine) -> Action:
    device, host = m.runtime.device(), pageable()
    return lambda: succeeds(m.runtime("cudaMemcpy", device, host, SIZE, H2D))


@finds("blocking-copy:cudaMemcpy:D2H")
def runtime_memcpy_into_pinned(m: Machine) -> Action:
    device, host = m.runtime.device(), m.runtime.pinned()
    return lambda: succeeds(m.runtime("cudaMemcpy", host, device, SIZE, D2H))


@finds()
def runtime_memcpy_on_the_device(m: Machine) -> Action:
    device, other = m.runtime.device(), m.runtime.device()
    return lambda: succeeds(m.runtime("cudaMemcpy", device, other, SIZE, D2D))


@finds("pageable-copy:cudaMemcpyAsync:H2D")
def runtime_async_pageable_by_default_direction(m: Machine) -> Action:
    device, host, stream = m.runtime.device(), pageable(), m.runtime.stream()
    return lambda: succeeds(m.runtime("cudaMemcpyAsync", device, host, SIZE, DEFAULT, stream))


@finds()
def runtime_async_registered(m: Machine) -> Action:
    device, host, stream = m.runtime.device(), pageable(1 << 20), m.runtime.stream()
    succeeds(m.runtime("cudaHostRegister", host, 1 << 20, 0))
    return lambda: succeeds(m.runtime("cudaMemcpyAsync", device, host, SIZE, H2D, stream))


@finds("blocking-copy:cudaMemcpyAsync:H2H")
def runtime_async_between_pinned(m: Machine) -> Action:
    one, other, stream = m.runtime.pinned(), m.runtime.pinned(), m.runtime.stream()
    return lambda: succeeds(m.runtime("cudaMemcpyAsync", one, other, SIZE, DEFAULT, stream))


@finds("pageable-copy:cudaMemcpyAsync:D2H")
def runtime_async_on_the_per_thread_stream(m: Machine) -> Action:
    device, host = m.runtime.device(), pageable()
    return lambda: succeeds(m.runtime("cudaMemcpyAsync_ptsz", host, device, SIZE, D2H, 0))


@finds("pageable-copy:cudaMemcpy2DAsync:H2D")
def runtime_2d_pageable(m: Machine) -> Action:
    device, host, stream = m.runtime.device(), pageable(), m.runtime.stream()
    return lambda: succeeds(m.runtime("cudaMemcpy2DAsync", device, 64, host, 32, 16, 4, H2D, stream))


@finds("blocking-copy:cudaMemcpy2D:H2D")
def runtime_2d_pinned(m: Machine) -> Action:
    device, host = m.runtime.device(), m.runtime.pinned()
    return lambda: succeeds(m.runtime("cudaMemcpy2D", device, 64, host, 32, 16, 4, H2D))


def _3d(m: Machine, host: int, device: int) -> int:
    return structure(0, 0, 0, 0, host, 16, 16, 4, 0, 0, 0, 0, device, 16, 16, 4, 16, 4, 2, H2D)


@finds("pageable-copy:cudaMemcpy3DAsync:H2D")
def runtime_3d_pageable(m: Machine) -> Action:
    area, stream = _3d(m, pageable(), m.runtime.device()), m.runtime.stream()
    return lambda: succeeds(m.runtime("cudaMemcpy3DAsync", area, stream))


@finds("blocking-copy:cudaMemcpy3D:H2D")
def runtime_3d_pinned(m: Machine) -> Action:
    area = _3d(m, m.runtime.pinned(), m.runtime.device())
    return lambda: succeeds(m.runtime("cudaMemcpy3D", area))


@finds("pageable-copy:cudaMemcpyBatchAsync:H2D")
def runtime_batch_of_one_pinned_and_one_pageable(m: Machine) -> Action:
    to = structure(m.runtime.device(), m.runtime.device())
    of = structure(m.runtime.pinned(), pageable())
    sizes, first, stream = structure(SIZE, SIZE), structure(0), m.runtime.stream()
    attributes = structure(3, 0, 0)  # sources may be read in any order
    return lambda: succeeds(m.runtime("cudaMemcpyBatchAsync", to, of, sizes, 2, attributes, first, 1, stream))


@finds()
def runtime_peer_on_one_device(m: Machine) -> Action:
    device, other, stream = m.runtime.device(), m.runtime.device(), m.runtime.stream()
    return lambda: succeeds(m.runtime("cudaMemcpyPeerAsync", device, 0, other, 0, SIZE, stream))


@finds()
def runtime_3d_peer_on_one_device(m: Machine) -> Action:
    source, to = m.runtime.device(), m.runtime.device()
    area = structure(0, 0, 0, 0, source, 16, 16, 4, 0, 0, 0, 0, 0, to, 16, 16, 4, 0, 16, 4, 2)
    return lambda: succeeds(m.runtime("cudaMemcpy3DPeer", area))


class _Pitched(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("ptr", "pitch", "xsize", "ysize")]


class _Extent(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("width", "height", "depth")]


@finds()
def runtime_3d_memset_on_the_device(m: Machine) -> Action:
    area = _Pitched(m.runtime.device(), 64, 64, 4)
    return lambda: succeeds(m.runtime("cudaMemset3D", area, 0, _Extent(16, 4, 2)))


@finds()
def runtime_memset_on_the_device(m: Machine) -> Action:
    device = m.runtime.device()
    return lambda: succeeds(m.runtime("cudaMemset", device, 0, SIZE))


@finds("blocking-copy:cudaMemset:H2H")
def runtime_memset_on_pinned(m: Machine) -> Action:
    host = m.runtime.pinned()
    return lambda: succeeds(m.runtime("cudaMemset", host, 0, SIZE))


@finds()
def runtime_empty_and_failing_copies(m: Machine) -> Action:
    device, host = m.runtime.device(), pageable()

    def act() -> None:
        succeeds(m.runtime("cudaMemcpy", device, host, 0, H2D))
        assert m.runtime("cudaMemcpy", 0, host, SIZE, H2D) != 0
        m.runtime("cudaGetLastError")

    return act


@finds("sync:cudaStreamSynchronize", "sync:cudaStreamSynchronize")
def runtime_stream_synchronize(m: Machine) -> Action:
    def act() -> None:
        succeeds(m.runtime("cudaStreamSynchronize", 0))
        succeeds(m.runtime("cudaStreamSynchronize_ptsz", 0))

    return act


@finds("allocation:cudaMalloc", "allocation:cudaFree")
def runtime_malloc_and_free(m: Machine) -> Action:
    return lambda: succeeds(m.runtime("cudaFree", m.runtime.device(1 << 24)))


@finds("allocation:cudaHostAlloc", "allocation:cudaFreeHost")
def runtime_host_alloc_and_free(m: Machine) -> Action:
    return lambda: succeeds(m.runtime("cudaFreeHost", m.runtime.pinned()))


@finds("allocation:cudaHostRegister", "allocation:cudaHostUnregister")
def runtime_host_register(m: Machine) -> Action:
    host = pageable(1 << 20)

    def act() -> None:
        succeeds(m.runtime("cudaHostRegister", host, 1 << 20, 0))
        succeeds(m.runtime("cudaHostUnregister", host))

    return act


@finds("sync:cudaDeviceSynchronize", every_thread=True)
def extension_waits_in_a_thread_and_keeps_the_gil(m: Machine) -> Action:
    extension = ctypes.PyDLL(m.extension.library._name)
    return lambda: succeeds(extension.wait_in_a_thread())


# ---- capture --------------------------------------------------------------------------------------------


@finds("capture-unsafe:cudaStreamSynchronize")
def capture_and_synchronize(m: Machine) -> Action:
    stream = m.runtime.stream()

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, RELAXED))
        assert m.runtime("cudaStreamSynchronize", stream) == REFUSED
        m.runtime.end(stream)
        m.runtime("cudaGetLastError")

    return act


@finds("capture-unsafe:cudaMalloc")
def capture_and_allocate(m: Machine) -> Action:
    stream, out = m.runtime.stream(), structure(0)

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, GLOBAL))
        assert m.runtime("cudaMalloc", out, SIZE) == REFUSED
        m.runtime.end(stream)
        m.runtime("cudaGetLastError")

    return act


@finds("capture-unsafe:cudaMemcpyAsync")
def capture_and_copy_on_the_legacy_stream(m: Machine) -> Action:
    stream, device, host = m.runtime.stream(0), m.runtime.device(), m.runtime.pinned()

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, RELAXED))
        assert m.runtime("cudaMemcpyAsync", device, host, SIZE, H2D, 0) != 0
        m.runtime.end(stream)
        m.runtime("cudaGetLastError")

    return act


@finds("capture-unsafe:cudaMemsetAsync")
def capture_and_fill_on_the_legacy_stream(m: Machine) -> Action:
    stream, device = m.runtime.stream(0), m.runtime.device()

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, RELAXED))
        assert m.runtime("cudaMemsetAsync", device, 0, SIZE, 0) != 0
        m.runtime.end(stream)
        m.runtime("cudaGetLastError")

    return act


@finds("capture-unsafe:cudaMemcpyBatchAsync")
def capture_and_copy_a_batch(m: Machine) -> Action:
    stream, to, of = m.runtime.stream(), structure(m.runtime.device()), structure(m.runtime.pinned())
    sizes, attributes, first = structure(SIZE), structure(1, 0, 0), structure(0)

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, RELAXED))
        assert m.runtime("cudaMemcpyBatchAsync", to, of, sizes, 1, attributes, first, 1, stream) == REFUSED
        m.runtime.end(stream)
        m.runtime("cudaGetLastError")

    return act


@finds()
def capture_a_pinned_copy(m: Machine) -> Action:
    stream, device, host = m.runtime.stream(), m.runtime.device(), m.runtime.pinned()

    def act() -> None:
        succeeds(m.runtime("cudaStreamBeginCapture", stream, RELAXED))
        succeeds(m.runtime("cudaMemcpyAsync", device, host, SIZE, H2D, stream))
        code, graph = m.runtime.end(stream)
        succeeds(code)
        succeeds(m.runtime("cudaGraphDestroy", graph))

    return act


# ---- the driver -------------------------------------------------------------------------------------------


@finds("pageable-copy:cuMemcpyHtoDAsync:H2D")
def driver_async_pageable(m: Machine) -> Action:
    device, host, stream = m.runtime.device(), pageable(), m.runtime.stream()
    return lambda: succeeds(m.driver("cuMemcpyHtoDAsync_v2", device, host, SIZE, stream))


@finds("pageable-copy:cuMemcpyHtoDAsync:H2D")
def driver_async_on_the_per_thread_stream(m: Machine) -> Action:
    device, host = m.runtime.device(), pageable()
    return lambda: succeeds(m.driver("cuMemcpyHtoDAsync_v2_ptsz", device, host, SIZE, 0))


@finds("blocking-copy:cuMemcpy2D:H2D")
def driver_2d_pageable(m: Machine) -> Action:
    device, host = m.runtime.device(), pageable()
    area = structure(0, 0, HOST, host, 0, 0, 32, 0, 0, DEVICE, 0, device, 0, 64, 16, 4)
    return lambda: succeeds(m.driver("cuMemcpy2D_v2", area))


@finds("pageable-copy:cuMemcpy2DAsync:D2H")
def driver_2d_async_into_pageable(m: Machine) -> Action:
    device, host, stream = m.runtime.device(), pageable(), m.runtime.stream()
    area = structure(0, 0, DEVICE, 0, device, 0, 64, 0, 0, HOST, host, 0, 0, 32, 16, 4)
    return lambda: succeeds(m.driver("cuMemcpy2DAsync_v2", area, stream))


@finds("blocking-copy:cuMemcpy3D:H2D")
def driver_3d_pinned_by_unified_addresses(m: Machine) -> Action:
    device, host = m.runtime.device(), m.runtime.pinned()
    source = (0, 0, 0, 0, UNIFIED, 0, host, 0, 0, 16, 4)
    area = structure(*source, 0, 0, 0, 0, UNIFIED, 0, device, 0, 0, 16, 4, 16, 4, 2)
    return lambda: succeeds(m.driver("cuMemcpy3D_v2", area))


@finds()
def driver_peer_on_one_device(m: Machine) -> Action:
    device, other, stream = m.runtime.device(), m.runtime.device(), m.runtime.stream()
    context = m.driver.take("cuCtxGetCurrent")
    return lambda: succeeds(m.driver("cuMemcpyPeerAsync", device, context, other, context, SIZE, stream))


@finds()
def driver_memset_on_the_device(m: Machine) -> Action:
    device, stream = m.runtime.device(), m.runtime.stream()
    return lambda: succeeds(m.driver("cuMemsetD16Async", device, 1, SIZE, stream))


@finds("blocking-copy:cuMemcpyDtoH:D2H")
def driver_memcpy_into_pinned(m: Machine) -> Action:
    device, host = m.runtime.device(), m.runtime.pinned()
    return lambda: succeeds(m.driver("cuMemcpyDtoH_v2", host, device, SIZE))


@finds("sync:cuStreamSynchronize", "sync:cuEventSynchronize", "sync:cuCtxSynchronize")
def driver_synchronize(m: Machine) -> Action:
    stream, event = m.runtime.stream(), m.runtime.event()

    def act() -> None:
        succeeds(m.driver("cuStreamSynchronize", stream))
        succeeds(m.driver("cuEventSynchronize", event))
        succeeds(m.driver("cuCtxSynchronize"))

    return act


@finds("allocation:cuMemAlloc", "allocation:cuMemFree")
def driver_allocate(m: Machine) -> Action:
    def act() -> None:
        out = ctypes.c_size_t()
        succeeds(m.driver("cuMemAlloc_v2", ctypes.byref(out), 1 << 24))
        succeeds(m.driver("cuMemFree_v2", out.value))

    return act


@finds("launch:cuLaunchKernel")
def driver_launch(m: Machine) -> Action:
    image = ctypes.create_string_buffer(KERNEL)
    _kept.append(image)
    module = m.driver.take("cuModuleLoadData", ctypes.addressof(image))
    function = m.driver.take("cuModuleGetFunction", module, ctypes.c_char_p(b"nothing"))
    stream = m.runtime.stream()
    return lambda: succeeds(m.driver("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))


# ---- a compiled extension -----------------------------------------------------------------------------------


@finds("sync:cudaStreamSynchronize")
def extension_waits(m: Machine) -> Action:
    stream = m.runtime.stream()
    return lambda: succeeds(m.extension("wait_for", stream))


@finds("pageable-copy:cudaMemcpyAsync:H2D", "sync:cudaStreamSynchronize")
def extension_copies(m: Machine) -> Action:
    device, stream = m.runtime.device(), m.runtime.stream()
    return lambda: succeeds(m.extension("upload", device, SIZE, stream))


@finds()
def extension_waits_in_a_thread(m: Machine) -> Action:
    return lambda: succeeds(m.extension("wait_in_a_thread"))


@finds("sync:cudaDeviceSynchronize", every_thread=True)
def extension_waits_in_a_thread_and_all_are_policed(m: Machine) -> Action:
    return lambda: succeeds(m.extension("wait_in_a_thread"))
