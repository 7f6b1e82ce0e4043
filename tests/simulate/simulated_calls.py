"""What the simulator tells Python: events, launches, names it does not simulate.

They run on two simulated devices, each in a process of its own; the tests state what they answer.
"""

from __future__ import annotations

import ctypes
import struct
import threading

from pytest_gpuinvariants.hardware.simulate.runtime import EventClass, SimulatedCall, SimulatedRuntime
from tests.simulate.cuda import D2D, D2H, DEFAULT, GLOBAL, H2D, RELAXED, Answer, Cuda, Simulated, faces, keep, pageable

ALL = EventClass(63)


def _heard(runtime: SimulatedRuntime, classes: EventClass = ALL) -> list[SimulatedCall]:
    calls: list[SimulatedCall] = []
    runtime.listen(calls.append, classes)
    return calls


def events(runtime: SimulatedRuntime) -> Answer:
    """One line for each call: api, class, bytes, rows, kinds, blocking, device, capturing, result."""
    cuda, _, _ = faces(runtime)
    host, spare, stream, event = pageable(), pageable(), cuda.stream(), cuda.event()
    out = ctypes.c_size_t()
    calls = _heard(runtime)
    cuda("cudaMalloc", ctypes.byref(out), 4096)
    device = out.value
    cuda("cudaHostAlloc", ctypes.byref(out), 4096, 0)
    pinned = out.value
    cuda("cudaMemcpyAsync", device, host, 100, H2D, stream)
    cuda("cudaMemcpyAsync", device, pinned, 100, H2D, stream)
    cuda("cudaMemcpy", device, pinned, 100, H2D)
    cuda("cudaMemcpyAsync", host, device, 100, D2H, stream)
    cuda("cudaMemcpyAsync", pinned, device, 100, D2H, stream)
    cuda("cudaMemcpyAsync", host, spare, 100, DEFAULT, stream)
    cuda("cudaMemcpy", device, device + 512, 100, D2D)
    cuda("cudaMemcpy2DAsync", device, 64, host, 32, 8, 4, H2D, stream)
    cuda("cudaMemsetAsync", device, 0, 100, stream)
    cuda("cudaMemset", pinned, 0, 100)
    cuda("cudaMemcpy", device, pinned, 4097, H2D)
    cuda("cudaMemcpy", device, pinned, 0, H2D)
    cuda("cudaStreamSynchronize", stream)
    cuda("cudaEventSynchronize", event)
    cuda("cudaDeviceSynchronize")
    cuda("cudaEventRecord", event, stream)
    cuda("cudaStreamBeginCapture", stream, RELAXED)
    cuda("cudaMemcpyAsync", device, pinned, 100, H2D, stream)
    cuda("cudaStreamSynchronize", stream)
    cuda("cudaMemcpyAsync", device, pinned, 100, H2D, stream)
    cuda.end(stream)
    cuda("cudaFree", device)
    cuda("cudaFree", device)
    cuda("cudaFreeHost", pinned)
    cuda("cudaSetDevice", 1)
    cuda("cudaMemcpy", 0, host, 8, H2D)
    runtime.listen(None)
    cuda("cudaDeviceSynchronize")
    return [
        [
            c.api,
            c.event_class.name,
            c.bytes,
            c.rows,
            c.destination.name,
            c.source.name,
            c.blocking,
            c.device,
            c.capturing,
            c.result,
        ]
        for c in calls
    ]


def event_threads(runtime: SimulatedRuntime) -> Answer:
    """The listener runs on the thread that calls, which the event names."""
    cuda, _, _ = faces(runtime)
    places: list[bool] = []
    runtime.listen(lambda call: places.append(call.thread == threading.get_native_id()), EventClass.SYNC)
    natives: list[int] = []

    def work() -> None:
        natives.append(threading.get_native_id())
        cuda("cudaDeviceSynchronize")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    cuda("cudaDeviceSynchronize")
    return [places, natives[0] != threading.get_native_id()]


def classes(runtime: SimulatedRuntime) -> Answer:
    """Calls that reach the listener, for each class alone; then a listener that calls CUDA, and one that raises."""
    cuda, _, _ = faces(runtime)
    device, host, pinned = cuda.device(), pageable(), cuda.pinned()
    answers: Answer = []

    def everything() -> None:
        cuda("cudaMemcpy", device, host, 8, H2D)
        cuda("cudaMemcpyAsync", device, pinned, 8, H2D, 0)
        cuda("cudaFree", cuda.device())
        cuda("cudaDeviceSynchronize")
        cuda("cudaGetLastError")
        cuda("cudaEventRecord", event, 0)

    event = cuda.event()
    for wanted in (EventClass(0), EventClass.SYNC, EventClass.COPY_STALL, EventClass.COPY_ASYNC, EventClass.ALLOC):
        calls = _heard(runtime, wanted)
        everything()
        answers.append([call.api for call in calls])
    nested: list[str] = []

    def listener(call: SimulatedCall) -> None:
        nested.append(call.api)
        cuda("cudaDeviceSynchronize")

    runtime.listen(listener, ALL)
    cuda("cudaStreamSynchronize", 0)
    answers.append(nested)
    runtime.listen(None)
    everything()
    return [*answers, len(nested)]


def unsupported(runtime: SimulatedRuntime) -> Answer:
    """Each name once; the runtime's error is remembered, the driver's and NVML's are not."""
    cuda, driver, nvml = faces(runtime)
    out = ctypes.c_int(7)
    before = list(runtime.unsupported)
    answers: Answer = [
        before,
        nvml("nvmlDeviceGetGpuFabricInfoV", 0, 0),
        driver("cuMemCreate", 0, 0, 0, 0),
        cuda("cudaGetLastError"),
    ]
    answers += [cuda("cudaIpcGetMemHandle", 0, 0), cuda("cudaGetLastError"), cuda("cudaIpcGetMemHandle", 0, 0)]
    answers += [driver("cuDeviceGetAttribute", ctypes.byref(out), 21, 0), out.value]
    cuda("cudaDeviceGetAttribute", ctypes.byref(out), 21, 0)
    return [*answers, list(runtime.unsupported)]


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def _kernel(cuda: Cuda, name: bytes, images: int = 0) -> int:
    literal = ctypes.create_string_buffer(name)
    keep(literal)
    host = pageable(16)
    none = [0] * 5
    cuda("__cudaRegisterFunction", images, host, 0, ctypes.addressof(literal), *none, 0)
    return host


def launches(runtime: SimulatedRuntime) -> Answer:
    """Four forms through the runtime, three through the driver; wrong shapes; a launch in a capture."""
    cuda, driver, _ = faces(runtime)
    image, one, big = pageable(64), _Dim3(1, 1, 1), _Dim3(2048, 1, 1)
    kernel, stream = _kernel(cuda, b"my_kernel"), cuda.stream()
    handle = cuda.take("__cudaGetKernel", kernel)
    module = driver.take("cuModuleLoadData", image)
    function = ctypes.c_size_t()
    driver("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"jitted"))
    # cudaLaunchConfig_t: grid, block, shared memory, stream; CUlaunchConfig differs in what padding hides.
    config = (ctypes.c_uint * 14)(1, 1, 1, 32, 1, 1, 0, 0, stream & 0xFFFFFFFF, stream >> 32)
    driver_config = (ctypes.c_uint * 14)(1, 1, 1, 32, 1, 1, 0, 0, stream & 0xFFFFFFFF, stream >> 32)
    calls = _heard(runtime, EventClass.LAUNCH)
    codes: Answer = [
        cuda("cudaLaunchKernel", kernel, one, one, 0, 0, stream),
        cuda("cudaLaunchCooperativeKernel", kernel, one, one, 0, 0, stream),
        cuda("cudaLaunchKernelExC", config, kernel, 0),
        cuda("__cudaLaunchKernel", handle, one, one, 0, 0, stream),
        driver("cuLaunchKernel", function.value, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0),
        driver("cuLaunchCooperativeKernel", function.value, 1, 1, 1, 32, 1, 1, 0, stream, 0),
        driver("cuLaunchKernelEx", driver_config, function.value, 0, 0),
    ]
    recorded = runtime.launches
    refused: Answer = [
        cuda("cudaLaunchKernel", kernel, one, big, 0, 0, stream),
        cuda("cudaLaunchKernel", kernel, _Dim3(0, 1, 1), one, 0, 0, stream),
        cuda("cudaLaunchKernel", kernel, one, one, 0, 1 << 20, stream),
        driver("cuLaunchKernel", function.value, 0, 1, 1, 32, 1, 1, 0, stream, 0, 0),
        cuda("cudaLaunchKernel", image, one, one, 0, 0, stream),
        cuda("cudaLaunchKernel", kernel, one, one, 0, 0, 0xDEADBEEF0),
    ]
    unchanged = runtime.launches == recorded
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    cuda("cudaLaunchKernel", kernel, one, one, 0, 0, stream)
    captured = calls[-1].capturing
    _, graph = cuda.end(stream)
    count = ctypes.c_size_t()
    cuda("cudaGraphGetNodes", graph, 0, ctypes.byref(count))
    runtime.listen(None)
    names = [[call.api, call.kernel] for call in calls if not call.result]
    return [codes, names, recorded, refused, unchanged, captured, count.value]


def modules(runtime: SimulatedRuntime) -> Answer:
    """An image from memory and from a file, as a module and as a library; a file that is not there; unloading."""
    _, driver, _ = faces(runtime)
    here, nowhere = ctypes.c_char_p(__file__.encode()), ctypes.c_char_p(b"nowhere.cubin")
    name = ctypes.c_char_p(b"kernel")

    def use(handle: int, get: str, unload: str) -> Answer:
        function = ctypes.c_size_t()
        return [
            driver(get, ctypes.byref(function), handle, name),
            driver("cuLaunchKernel", function.value, *[1] * 6, 0, 0, 0, 0),
            driver(unload, handle),
            driver(unload, handle),
        ]

    answers: Answer = [
        use(driver.take("cuModuleLoadData", pageable(64)), "cuModuleGetFunction", "cuModuleUnload"),
        use(driver.take("cuModuleLoad", here), "cuModuleGetFunction", "cuModuleUnload"),
        use(driver.take("cuLibraryLoadFromFile", here, *[0] * 6), "cuLibraryGetKernel", "cuLibraryUnload"),
    ]
    out = ctypes.c_size_t()
    answers += [
        driver("cuModuleLoad", ctypes.byref(out), nowhere),
        driver("cuLibraryLoadFromFile", ctypes.byref(out), nowhere, *[0] * 6),
        driver("cuModuleLoad", ctypes.byref(out), 0),
    ]
    return answers


def _fat_binary(*images: tuple[int, int, int]) -> int:
    """A wrapper as nvcc makes it, around empty images: kind (1: PTX, 2: machine code), architecture, flags."""
    entries = b"".join(
        struct.pack("<HHIQ3II2IQ2Q", kind, 0x101, 64, 8, 0, 0, 0, architecture, 0, 0, flags, 0, 0) + bytes(8)
        for kind, architecture, flags in images
    )
    data = ctypes.create_string_buffer(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries)
    keep(data)
    wrapper = ctypes.create_string_buffer(struct.pack("<iiQQ", 0x466243B1, 1, ctypes.addressof(data), 0))
    keep(wrapper)
    return ctypes.addressof(wrapper)


def images(runtime: SimulatedRuntime) -> Answer:
    """PTX and binary version of the image that an H100 takes from each of several sets."""
    cuda, _, _ = faces(runtime)
    normal, this_minor_only, ptx, code = 0x11, 0x100011, 1, 2
    answers: Answer = []
    for number, binary in enumerate(
        [
            _fat_binary((code, 80, normal), (code, 90, normal), (code, 100, normal), (ptx, 120, normal)),
            _fat_binary((code, 80, normal), (code, 86, normal), (ptx, 75, normal), (ptx, 80, normal)),
            _fat_binary((ptx, 80, normal), (code, 90, this_minor_only)),
            _fat_binary((ptx, 75, this_minor_only), (ptx, 70, normal), (ptx, 100, normal)),
            _fat_binary((code, 100, normal)),
            0,
        ]
    ):
        kernel = _kernel(cuda, f"kernel_{number}".encode(), binary)
        attributes = (ctypes.c_int * 40)()
        answers.append([cuda("cudaFuncGetAttributes", attributes, kernel), attributes[8], attributes[9]])
    return answers


SCENARIOS: tuple[Simulated, ...] = (
    events,
    event_threads,
    classes,
    unsupported,
    launches,
    modules,
    images,
)
