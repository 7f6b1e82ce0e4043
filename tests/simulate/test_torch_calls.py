"""What torch calls do on the simulated card: their value or error, kernels recorded, and what the runtime was asked.

Values of copies are exact.  Kernels do not run, so what a kernel would compute is not stated: shapes are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_gpuinvariants.hardware.simulate.runtime import EventClass, SimulatedCall, SimulatedRuntime, opened

GIB = 1 << 30
_HEARD = EventClass.SYNC | EventClass.COPY_STALL | EventClass.COPY_ASYNC


@dataclass(frozen=True)
class Machine:
    """torch on the simulated card, and tensors to call it with: 0 to 5 on the device, pinned and pageable."""

    torch: Any
    runtime: SimulatedRuntime
    device: Any
    pinned: Any
    pageable: Any


@dataclass(frozen=True)
class Raises:
    """The error that a call ends with."""

    name: str
    text: str


@dataclass(frozen=True)
class Call:
    """One row: the call, what it gives, how many kernels it launches, and its copies and waits in order."""

    name: str
    call: Callable[[Machine], object]
    gives: object
    kernels: int = 0
    asks: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def machine() -> Machine:
    runtime = opened()
    if runtime is None:
        pytest.skip("this run has no simulated card (--gpu simulate:h100 opens one)")
    import torch

    if (runtime.profile.key, runtime.count) != ("h100", 1):
        pytest.skip(f"the table is of one H100, this run simulates {runtime.count} x {runtime.profile.label}")
    source = torch.arange(6, dtype=torch.float32)
    device = source.to("cuda")
    device[0].item()  # the first read allocates torch's own pinned buffer
    return Machine(torch, runtime, device, source.pin_memory(), source.clone())


def _asked(call: SimulatedCall) -> str:
    api = call.api.removeprefix("cuda")
    if call.event_class is EventClass.SYNC:
        return api
    kinds = f"{call.source.name.lower()}->{call.destination.name.lower()}"
    return f"{api} {kinds} {call.bytes}"


COUNT = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
READ = ("MemcpyAsync device->pageable 24", "StreamSynchronize")
UPLOAD = ("MemcpyAsync pageable->device 24", "StreamSynchronize")
ITEM = ("MemcpyAsync device->pinned 4", "StreamSynchronize")
SYNCHRONIZES = Raises("RuntimeError", "called a synchronizing CUDA operation")


def _events(m: Machine) -> object:
    first, second = m.torch.cuda.Event(enable_timing=True), m.torch.cuda.Event(enable_timing=True)
    first.record()
    second.record()
    second.synchronize()
    return first.query(), first.elapsed_time(second) >= 0


def _streams(m: Machine) -> object:
    stream = m.torch.cuda.Stream(priority=-1)
    with m.torch.cuda.stream(stream):
        inside = m.torch.cuda.current_stream() == stream
    stream.synchronize()
    return inside, stream.query(), stream.priority, m.torch.cuda.current_stream().cuda_stream


def _side_stream_copy(m: Machine) -> object:
    target = m.torch.empty(6, device="cuda")
    stream = m.torch.cuda.Stream()
    stream.wait_stream(m.torch.cuda.current_stream())
    with m.torch.cuda.stream(stream):
        target.copy_(m.pinned, non_blocking=True)
    m.torch.cuda.current_stream().wait_stream(stream)
    return target.tolist()


def _graph(m: Machine) -> object:
    """A replay copies what the pinned buffer holds then."""
    target, source = m.torch.empty(4, device="cuda"), m.torch.ones(4).pin_memory()
    graph = m.torch.cuda.CUDAGraph()
    with m.torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
    values = []
    for value in (3, 4):
        source.fill_(value)
        graph.replay()
        values.append(target.tolist())
    return values


def _synchronize_in_capture(m: Machine) -> object:
    with m.torch.cuda.graph(m.torch.cuda.CUDAGraph()):
        m.device[0].item()
    return None


def _registered(m: Machine) -> object:
    memory, cudart = m.torch.zeros(4096), m.torch.cuda.cudart()
    before = memory.is_pinned()
    registered = int(cudart.cudaHostRegister(memory.data_ptr(), 4096 * 4, 0))
    during = memory.is_pinned()
    return before, registered, during, int(cudart.cudaHostUnregister(memory.data_ptr())), memory.is_pinned()


def _sync_debug(call: Callable[[Machine], object]) -> Callable[[Machine], object]:
    def checked(m: Machine) -> object:
        try:
            with warnings.catch_warnings(action="ignore"):  # "a prototype feature"
                m.torch.cuda.set_sync_debug_mode("error")
            return call(m)
        finally:
            m.torch.cuda.set_sync_debug_mode(0)

    return checked


def _reserved_after_free(m: Machine) -> object:
    before = m.torch.cuda.memory_allocated()
    block = m.torch.empty(GIB, dtype=m.torch.uint8, device="cuda")
    held = m.torch.cuda.memory_allocated() - before
    del block
    return held, m.torch.cuda.memory_allocated() - before


def _free_memory(m: Machine) -> object:
    block = m.torch.empty(8 * GIB, dtype=m.torch.uint8, device="cuda")
    free, total = m.torch.cuda.mem_get_info()
    del block
    m.torch.cuda.empty_cache()
    return total - free >= 8 * GIB, m.torch.cuda.mem_get_info()[0] - free >= 8 * GIB


def _empty(m: Machine, gib: int) -> object:
    return m.torch.empty(gib * GIB, dtype=m.torch.uint8, device="cuda").numel()


def _matrix(m: Machine, *size: int, dtype: str = "float32") -> Any:
    return m.torch.empty(size, device="cuda", dtype=getattr(m.torch, dtype))


_CUDNN = Raises("RuntimeError", "CUDNN_STATUS_NOT_INITIALIZED")

CALLS = (
    # the card
    Call("is_available", lambda m: m.torch.cuda.is_available(), True),
    Call("device_count", lambda m: m.torch.cuda.device_count(), 1),
    Call("current_device", lambda m: m.torch.cuda.current_device(), 0),
    Call("name", lambda m: m.torch.cuda.get_device_name(), "NVIDIA H100 80GB HBM3"),
    Call("capability", lambda m: m.torch.cuda.get_device_capability(), (9, 0)),
    Call("SMs", lambda m: m.torch.cuda.get_device_properties(0).multi_processor_count, 132),
    Call("memory", lambda m: m.torch.cuda.get_device_properties(0).total_memory, 80 * GIB),
    Call("L2", lambda m: m.torch.cuda.get_device_properties(0).L2_cache_size, 50 << 20),
    Call("shared", lambda m: m.torch.cuda.get_device_properties(0).shared_memory_per_block_optin, 227 << 10),
    Call("bf16", lambda m: m.torch.cuda.is_bf16_supported(), True),
    Call("set_device 9", lambda m: m.torch.cuda.set_device(9), Raises("AcceleratorError", "invalid device ordinal")),
    Call(
        "tensor on device 9",
        lambda m: m.torch.zeros(1, device="cuda:9"),
        Raises("AcceleratorError", "invalid device ordinal"),
    ),
    Call("peer of itself", lambda m: m.torch.cuda.can_device_access_peer(0, 0), False),
    Call("utilization", lambda m: m.torch.cuda.utilization(), 0),
    Call("temperature", lambda m: m.torch.cuda.temperature(), Raises("NVMLError_NotSupported", "Not Supported")),
    # memory
    Call(
        "90 GiB", lambda m: _empty(m, 90), Raises("OutOfMemoryError", "CUDA out of memory. Tried to allocate 90.00 GiB")
    ),
    Call("60 GiB", lambda m: _empty(m, 60), 60 * GIB),
    Call("mem_get_info", _free_memory, (True, True)),
    Call("memory_allocated", _reserved_after_free, (GIB, 0)),
    Call("empty_cache", lambda m: m.torch.cuda.empty_cache(), None),
    Call("memory_stats", lambda m: m.torch.cuda.memory_stats()["num_ooms"] >= 1, True),
    Call("empty", lambda m: m.torch.empty(3, 4, device="cuda").shape, (3, 4)),
    Call("is_cuda", lambda m: (m.device.is_cuda, m.device.get_device()), (True, 0)),
    Call("is_pinned", lambda m: (m.pinned.is_pinned(), m.pageable.is_pinned()), (True, False)),
    Call("pin_memory", lambda m: m.pageable.pin_memory().tolist(), COUNT),
    Call("pin a part", lambda m: m.pinned[2:].is_pinned(), True),
    Call(
        "pin device memory",
        lambda m: m.device.pin_memory(),
        Raises("RuntimeError", "only dense CPU tensors can be pinned"),
    ),
    Call("host register", _registered, (False, 0, True, 0, False)),
    # to the device
    Call("to, pageable", lambda m: m.pageable.to("cuda").is_cuda, True, asks=UPLOAD),
    Call(
        "to, pageable, non_blocking", lambda m: m.pageable.to("cuda", non_blocking=True).is_cuda, True, asks=UPLOAD[:1]
    ),
    Call("to, pinned", lambda m: m.pinned.to("cuda").is_cuda, True, asks=("MemcpyAsync pinned->device 24", UPLOAD[1])),
    Call(
        "to, pinned, non_blocking",
        lambda m: m.pinned.to("cuda", non_blocking=True).is_cuda,
        True,
        asks=("MemcpyAsync pinned->device 24",),
    ),
    Call(
        "to, another dtype",
        lambda m: m.pageable.to("cuda", m.torch.float16).tolist(),
        COUNT,
        0,
        (
            "MemcpyAsync pageable->device 12",
            "StreamSynchronize",
            "MemcpyAsync device->pageable 12",
            "StreamSynchronize",
        ),
    ),
    Call("cuda()", lambda m: m.pageable.cuda().is_cuda, True, asks=UPLOAD),
    Call("to where it is", lambda m: m.device.to("cuda") is m.device, True),
    Call("tensor(list)", lambda m: m.torch.tensor(COUNT, device="cuda").is_cuda, True, asks=UPLOAD),
    Call(
        "as_tensor(numpy)",
        lambda m: m.torch.as_tensor(m.pageable.numpy(), device="cuda").tolist(),
        COUNT,
        0,
        UPLOAD + READ,
    ),
    Call("copy_, pageable", lambda m: m.device.copy_(m.pageable) is m.device, True, asks=UPLOAD),
    Call(
        "copy_, pinned, non_blocking",
        lambda m: m.device.copy_(m.pinned, non_blocking=True) is m.device,
        True,
        asks=("MemcpyAsync pinned->device 24",),
    ),
    Call("copy_ on a side stream", _side_stream_copy, COUNT, 0, ("MemcpyAsync pinned->device 24", *READ)),
    # from the device
    Call("cpu()", lambda m: m.device.cpu().tolist(), COUNT, asks=READ),
    Call("to cpu", lambda m: m.device.to("cpu").tolist(), COUNT, asks=READ),
    Call(
        "to cpu, non_blocking",
        lambda m: m.device.to("cpu", non_blocking=True).tolist(),
        COUNT,
        asks=("MemcpyAsync device->pinned 24",),
    ),
    Call("copy_ to pageable", lambda m: m.pageable.clone().copy_(m.device).tolist(), COUNT, asks=READ),
    Call(
        "copy_ to pageable, non_blocking",
        lambda m: m.pageable.copy_(m.device, non_blocking=True).tolist(),
        COUNT,
        asks=READ[:1],
    ),
    Call(
        "copy_ to pinned, non_blocking",
        lambda m: m.pinned.copy_(m.device, non_blocking=True).tolist(),
        COUNT,
        0,
        ("MemcpyAsync device->pinned 24",),
    ),
    Call("tolist", lambda m: m.device.tolist(), COUNT, asks=READ),
    Call("item", lambda m: m.device[4].item(), 4.0, asks=ITEM),
    Call("float()", lambda m: float(m.device[3]), 3.0, asks=ITEM),
    Call("a transposed read", lambda m: m.device.view(2, 3).t().cpu().tolist(), [[0, 3], [1, 4], [2, 5]], asks=READ),
    Call(
        "a strided read",
        lambda m: tuple(m.device[::2].cpu().shape),
        (3,),
        1,
        ("MemcpyAsync device->pageable 12", READ[1]),
    ),
    Call(
        "numpy()", lambda m: m.device.numpy(), Raises("TypeError", "can't convert cuda:0 device type tensor to numpy")
    ),
    # on the device
    Call("clone", lambda m: m.device.clone().tolist(), COUNT, 0, ("MemcpyAsync device->device 24", *READ)),
    Call(
        "copy_ on the device",
        lambda m: m.torch.empty_like(m.device).copy_(m.device).tolist(),
        COUNT,
        0,
        ("MemcpyAsync device->device 24", *READ),
    ),
    Call("view", lambda m: m.device.view(3, 2)[1].tolist(), [2.0, 3.0], 0, ("MemcpyAsync device->pageable 8", READ[1])),
    Call("zeros", lambda m: m.torch.zeros(3, device="cuda").shape, (3,), 1),
    Call("arange", lambda m: m.torch.arange(5, device="cuda").shape, (5,), 1),
    Call("add", lambda m: (m.device + m.device).shape, (6,), 1),
    Call("add a scalar in place", lambda m: m.torch.empty_like(m.device).add_(1).shape, (6,), 1),
    Call("cat", lambda m: m.torch.cat([m.device, m.device]).shape, (12,), 1),
    Call("softmax", lambda m: m.torch.softmax(m.device, 0).shape, (6,), 1),
    Call("sum().item()", lambda m: isinstance(m.device.sum().item(), float), True, 1, ITEM),
    Call(
        "bool()", lambda m: isinstance(bool(m.device[0] > 0), bool), True, 1, ("MemcpyAsync device->pinned 1", ITEM[1])
    ),
    Call("nonzero", lambda m: m.torch.nonzero(m.device).is_cuda, True, 3, ITEM),
    Call(
        "index with a host list",
        lambda m: m.device[m.torch.tensor([1, 2])].shape,
        (2,),
        1,
        ("MemcpyAsync pageable->device 16", UPLOAD[1]),
    ),
    Call(
        "host and device",
        lambda m: m.device + m.pageable,
        Raises("RuntimeError", "found at least two devices, cuda:0 and cpu"),
    ),
    Call("rand", lambda m: m.torch.rand(5, device="cuda").shape, (5,), 1),
    Call("manual_seed", lambda m: m.torch.cuda.manual_seed(3), None),
    # products, by cuBLAS
    Call("mm", lambda m: m.torch.mm(_matrix(m, 2, 3), _matrix(m, 3, 4)).shape, (2, 4), 1),
    Call(
        "mm, bf16",
        lambda m: m.torch.mm(*(_matrix(m, *size, dtype="bfloat16") for size in ((2, 3), (3, 4)))).shape,
        (2, 4),
        1,
    ),
    Call("addmm", lambda m: m.torch.addmm(_matrix(m, 4), _matrix(m, 2, 3), _matrix(m, 3, 4)).shape, (2, 4), 1),
    Call(
        "addmm, bf16",
        lambda m: m.torch.addmm(*(_matrix(m, *size, dtype="bfloat16") for size in ((4,), (2, 3), (3, 4)))).shape,
        (2, 4),
        1,
    ),
    Call("bmm", lambda m: m.torch.bmm(_matrix(m, 5, 2, 3), _matrix(m, 5, 3, 4)).shape, (5, 2, 4), 1),
    Call("dot", lambda m: m.torch.dot(m.device, m.device).shape, (), 1),
    Call("matrix times vector", lambda m: (_matrix(m, 4, 6) @ m.device).shape, (4,), 1),
    Call("conv1d", lambda m: m.torch.nn.functional.conv1d(_matrix(m, 1, 1, 8), _matrix(m, 1, 1, 3)), _CUDNN),
    # waiting
    Call("synchronize", lambda m: m.torch.cuda.synchronize(), None, asks=("DeviceSynchronize",)),
    Call(
        "stream synchronize", lambda m: m.torch.cuda.current_stream().synchronize(), None, asks=("StreamSynchronize",)
    ),
    Call("streams", _streams, (True, True, -1, 0), asks=("StreamSynchronize",)),
    Call("events", _events, (True, True), asks=("EventSynchronize",)),
    Call("sync debug mode, item", _sync_debug(lambda m: m.device[0].item()), SYNCHRONIZES),
    Call(
        "sync debug mode, pinned copy",
        _sync_debug(lambda m: m.device.copy_(m.pinned, non_blocking=True).shape),
        (6,),
        0,
        ("MemcpyAsync pinned->device 24",),
    ),
    # capture
    Call("is_current_stream_capturing", lambda m: m.torch.cuda.is_current_stream_capturing(), False),
    Call("graph", _graph, [[3.0] * 4, [4.0] * 4]),
    Call("item in a capture", _synchronize_in_capture, Raises("AcceleratorError", "previous error during capture")),
    Call(
        "share between processes",
        lambda m: m.device.untyped_storage()._share_cuda_(),
        Raises("AcceleratorError", "not supported .by the simulated CUDA runtime"),
    ),
)


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row.name)
def test_call(row: Call, machine: Machine) -> None:
    machine.device.copy_(machine.pinned)
    machine.torch.cuda.synchronize()
    before, calls = machine.runtime.launches, list[SimulatedCall]()
    machine.runtime.listen(calls.append, _HEARD)
    try:
        if isinstance(row.gives, Raises):
            with pytest.raises(Exception, match=row.gives.text) as caught:
                row.call(machine)
            assert type(caught.value).__name__ == row.gives.name
            return
        given = row.call(machine)
    finally:
        machine.runtime.listen(None)
    assert given == row.gives
    if row.name != "graph":  # torch's own set-up of a capture launches and waits as it sees fit
        assert machine.runtime.launches - before == row.kernels
        assert tuple(_asked(call) for call in calls) == row.asks


def test_calls_that_were_not_simulated_are_named(machine: Machine) -> None:
    with pytest.raises(Exception, match="not supported"):
        machine.device.untyped_storage()._share_cuda_()
    assert machine.runtime.unsupported.count("cudaIpcGetMemHandle") == 1


def test_a_product_is_recorded_as_a_kernel_of_torchs_own(machine: Machine) -> None:
    calls: list[SimulatedCall] = []
    machine.runtime.listen(calls.append, EventClass.LAUNCH | EventClass.TORCH_LAUNCH)
    try:
        machine.torch.mm(_matrix(machine, 2, 3), _matrix(machine, 3, 4))
    finally:
        machine.runtime.listen(None)
    assert [(call.api, call.library, call.event_class) for call in calls] == [
        ("cublasSgemm_v2", "libcublas", EventClass.TORCH_LAUNCH)
    ]
