"""Copies and fills of every form: what they move, what they refuse, what they tell.

They run on two simulated devices, each in a process of its own; the tests state what they answer.
"""

from __future__ import annotations

import ctypes

from pytest_gpuinvariants.hardware.simulate.runtime import EventClass, SimulatedCall, SimulatedRuntime
from tests.simulate.cuda import (
    D2H,
    GLOBAL,
    H2D,
    Answer,
    Cuda,
    Simulated,
    counting,
    faces,
    pageable,
    text,
)

_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4
_COPIES = EventClass.COPY_STALL | EventClass.COPY_ASYNC | EventClass.NOT_SIMULATED


def _words(*values: int) -> ctypes.Array[ctypes.c_size_t]:
    return (ctypes.c_size_t * len(values))(*values)


def _side_2d(kind: int, address: int, pitch: int, x: int = 0, y: int = 0) -> tuple[int, ...]:
    """One side of a CUDA_MEMCPY2D: offsets, type, host, device, array, pitch."""
    return x, y, kind, address * (kind == _HOST), address * (kind != _HOST), address * (kind == _ARRAY), pitch


def _side_3d(kind: int, address: int, pitch: int, height: int, *at: int, context: int = 0) -> tuple[int, ...]:
    """One side of a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER, as of 2D with a level of detail, a context, a height."""
    x, y, z = at or (0, 0, 0)
    _, _, _, host, device, array, _ = _side_2d(kind, address, pitch)
    return x, y, z, 0, kind, host, device, array, context, pitch, height


def _box(address: int, pitch: int, rows: int, *extent: int, x: int = 0, y: int = 0) -> bytes:
    """The bytes of a box in host memory, row by row."""
    width, height, depth = extent
    return b"".join(
        ctypes.string_at(address + (slice_ * rows + y + row) * pitch + x, width)
        for slice_ in range(depth)
        for row in range(height)
    )


def _heard(runtime: SimulatedRuntime) -> list[SimulatedCall]:
    calls: list[SimulatedCall] = []
    runtime.listen(calls.append, _COPIES)
    return calls


def _told(calls: list[SimulatedCall]) -> Answer:
    return [
        [c.api, c.event_class.name, c.bytes, c.rows, c.destination.name, c.source.name, c.blocking, c.result]
        for c in calls
    ]


def driver_areas(runtime: SimulatedRuntime) -> Answer:
    """2D into the middle of device memory and back; 3D likewise, by addresses that are either's; codes, then bytes."""
    cuda, driver, _ = faces(runtime)
    device, host, back = cuda.device(4096), counting(4096), pageable(4096)
    up = _words(*_side_2d(_HOST, host, 32, x=2, y=1), *_side_2d(_DEVICE, device, 64, x=4, y=3), 8, 4)
    down = _words(*_side_2d(_DEVICE, device, 64, x=4, y=3), *_side_2d(_HOST, back, 8), 8, 4)
    answers: Answer = [driver("cuMemcpy2D_v2", up), driver("cuMemcpy2DAsync_v2", down, 0)]
    answers.append(text(back, 32) == _box(host, 32, 0, 8, 4, 1, x=2, y=1).hex())
    up = _words(*_side_3d(_HOST, host, 16, 8, 2, 1, 0), *_side_3d(_UNIFIED, device, 32, 4), 5, 3, 2)
    down = _words(*_side_3d(_DEVICE, device, 32, 4), *_side_3d(_UNIFIED, back, 8, 3), 5, 3, 2)
    answers += [driver("cuMemcpy3D_v2", up), driver("cuMemcpy3DAsync_v2_ptsz", down, 0)]
    answers.append(_box(back, 8, 3, 5, 3, 2) == _box(host, 16, 8, 5, 3, 2, x=2, y=1))
    return answers


def refused_areas(runtime: SimulatedRuntime) -> Answer:
    """A narrow pitch, few rows, no such memory, a level of detail, nothing; then what is empty; then an array."""
    cuda, driver, _ = faces(runtime)
    device, host = cuda.device(4096), pageable(4096)
    fits, flat = _side_3d(_DEVICE, device, 32, 4), _side_3d(_HOST, host, 16, 0)

    def copy(source: tuple[int, ...], to: tuple[int, ...], *extent: int) -> int:
        return driver("cuMemcpy3D_v2", _words(*source, *to, *extent))

    answers: Answer = [
        driver("cuMemcpy2D_v2", _words(*_side_2d(_HOST, host, 32, x=25), *_side_2d(_DEVICE, device, 64), 8, 4)),
        driver("cuMemcpy2DUnaligned_v2", _words(*_side_2d(_HOST, host, 32), *_side_2d(_DEVICE, device, 4), 8, 4)),
        copy(_side_3d(_HOST, host, 4, 4), fits, 5, 3, 2),
        copy(_side_3d(_HOST, host, 16, 2), fits, 5, 3, 2),
        copy(flat, fits, 5, 3, 2),
        copy(flat, fits, 5, 3, 1),
        copy(_side_3d(7, host, 16, 4), fits, 5, 3, 2),
        copy((0, 0, 0, 1, *flat[4:]), fits, 5, 3, 1),
        driver("cuMemcpy2D_v2", 0),
        cuda("cudaMemcpy3DPeer", 0),
    ]
    narrow = _words(0, 0, 0, 0, host, 4, 4, 4, 0, 0, 0, 0, device, 16, 16, 4, 8, 2, 2, H2D)
    answers.append([cuda("cudaMemcpy3D", narrow), copy(fits, fits, 0, 3, 2)])
    before, calls = list(runtime.unsupported), _heard(runtime)
    source, to = _side_2d(_ARRAY, host, 0), _side_2d(_DEVICE, device, 64)
    codes = [
        driver("cuMemcpy2D_v2", _words(*source, *to, 8, 4)),
        driver("cuMemcpy2DAsync_v2", _words(*source, *to, 8, 4), 0),
    ]
    return [*answers, before, codes, [[c.api, c.event_class.name] for c in calls], list(runtime.unsupported)]


def peer_areas(runtime: SimulatedRuntime) -> Answer:
    """Between two devices: linear by context, boxes by context and by device; a context and a device that are none."""
    cuda, driver, _ = faces(runtime)
    here, there = driver.take("cuDevicePrimaryCtxRetain", 0), driver.take("cuDevicePrimaryCtxRetain", 1)
    host, back, first = counting(4096), pageable(4096), cuda.device(4096)
    answers: Answer = [cuda("cudaMemcpy", first, host, 4096, H2D), cuda("cudaSetDevice", 1)]
    second = cuda.device(4096)

    def brought() -> str:
        cuda("cudaMemcpy", back, second, 64, D2H)
        return text(back, 64)

    answers += [driver("cuMemcpyPeer", second, there, first + 64, here, 64), brought() == text(host + 64, 64)]
    answers += [driver("cuMemcpyPeerAsync", second, there, first, here, 64, 0), brought() == text(host, 64)]
    source = _side_3d(_DEVICE, first, 16, 8, 2, 1, 0, context=here)
    sides = *source, *_side_3d(_DEVICE, second, 8, 4, context=there)
    answers += [
        driver("cuMemcpy3DPeer", _words(*sides, 8, 4, 2)),
        brought() == _box(host, 16, 8, 8, 4, 2, x=2, y=1).hex(),
    ]
    answers += [driver("cuMemcpyPeer", second, 0x1000, first, here, 64)]
    answers += [driver("cuMemcpy3DPeer", _words(*source, *_side_3d(_DEVICE, second, 8, 4), 8, 4, 2))]

    def parms(device: int) -> ctypes.Array[ctypes.c_size_t]:
        return _words(0, 0, 0, 0, first, 16, 16, 8, 0, 0, 0, 0, 0, second, 8, 8, 4, device, 8, 4, 2)

    answers += [cuda("cudaMemcpy3DPeer", parms(1)), brought() == _box(host, 16, 8, 8, 4, 2).hex()]
    return [*answers, cuda("cudaMemcpy3DPeerAsync", parms(1), 0), cuda("cudaMemcpy3DPeer", parms(7))]


def _operation(source: tuple[int, ...], to: tuple[int, ...], *extent: int) -> tuple[int, ...]:
    """One copy of a 3D batch, of two operands: kind, address, row's length, layer's height."""
    return *source, 0, *to, 0, *extent, 3


def batches(runtime: SimulatedRuntime) -> Answer:
    """Linear ones by the driver's two forms, boxes by the runtime; the index of one that fails; what is refused."""
    cuda, driver, _ = faces(runtime)
    device, host, back, stream = cuda.device(256), counting(256), pageable(256), cuda.stream()
    to, sizes, failed = _words(device, device + 100), _words(8, 16), ctypes.c_size_t(7)
    source, bad = _words(host + 50, host), _words(host + 50, 0)
    rest = (_words(3, 0, 0), _words(0), 1)
    answers: Answer = [
        driver("cuMemcpyBatchAsync_v2", to, source, sizes, 2, *rest, stream),
        driver("cuMemcpyBatchAsync", to, bad, sizes, 2, *rest, ctypes.byref(failed), stream),
        failed.value,
        driver("cuMemcpyBatchAsync_ptsz", to, source, sizes, 2, *rest, ctypes.byref(failed), stream),
        failed.value == ctypes.c_size_t(-1).value,
        driver("cuMemcpyBatchAsync_v2", to, source, sizes, 2, *rest, 0),
        driver("cuMemcpyBatchAsync_v2", to, source, sizes, 0, *rest, stream),
    ]
    cuda("cudaMemcpy", back, device, 128, D2H)
    answers += [text(back, 8) == text(host + 50, 8), text(back + 100, 16) == text(host, 16)]
    up = _operation((1, host, 16, 4), (1, device, 0, 0), 5, 3, 2)
    down = _operation((1, device, 0, 0), (1, back, 8, 3), 5, 3, 2)
    answers += [cuda("cudaMemcpy3DBatchAsync", 2, _words(*up, *down), 0, stream)]
    answers += [_box(back, 8, 3, 5, 3, 2) == _box(host, 16, 4, 5, 3, 2)]
    narrow, flat = (
        _operation((1, host, 4, 0), (1, device, 0, 0), 5, 3, 2),
        _operation((1, host, 0, 0), (1, device, 0, 0), 5, 3, 0),
    )
    array = _operation((2, host, 0, 0), (1, device, 0, 0), 5, 3, 2)
    answers += [
        driver("cuMemcpy3DBatchAsync", 2, _words(*up, *narrow), ctypes.byref(failed), 0, stream),
        driver("cuMemcpy3DBatchAsync_v2", 1, _words(*flat), 0, stream),
        driver("cuMemcpy3DBatchAsync_v2", 1, _words(*up), 1, stream),
        cuda("cudaMemcpy3DBatchAsync", 1, _words(*array), 0, stream),
    ]
    return [*answers, list(runtime.unsupported)]


class _Pitched(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("ptr", "pitch", "xsize", "ysize")]


class _Extent(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("width", "height", "depth")]


def fills_of_areas(runtime: SimulatedRuntime) -> Answer:
    cuda, driver, _ = faces(runtime)
    device, back = cuda.device(64), pageable(64)

    def filled(name: str, *arguments: object) -> Answer:
        cuda("cudaMemset", device, 0, 64)
        code = (cuda if name.startswith("cuda") else driver)(name, *arguments)
        cuda("cudaMemcpy", back, device, 64, D2H)
        return [code, text(back, 64).rstrip("0")]

    def box(pitch: int, depth: int = 2) -> tuple[object, ...]:
        return _Pitched(device, pitch, 4, 3), 0x7F, _Extent(3, 2, depth)

    return [
        filled("cuMemsetD16Async", device + 2, 0x1234, 2, 0),
        filled("cuMemsetD2D8_v2", device, 4, 0x55, 3, 2),
        filled("cuMemsetD2D16Async", device, 6, 0x1234, 2, 2, 0),
        filled("cuMemsetD2D32_v2", device, 8, 0x12345678, 1, 2),
        filled("cuMemsetD2D32_v2", device, 6, 0x12345678, 1, 2),
        filled("cuMemsetD2D8_v2", device, 2, 0x55, 3, 2),
        filled("cuMemsetD2D8_v2", device, 0, 0x55, 3, 1),
        filled("cudaMemset3D", *box(4)),
        filled("cudaMemset3DAsync", *box(4), 0),
        filled("cudaMemset3D", *box(2)),
        filled("cudaMemset3D", *box(4, 6)),
        filled("cudaMemset3D", *box(4, 0)),
    ]


def told_copies(runtime: SimulatedRuntime) -> Answer:
    """One line for each call: api, class, bytes, rows, kinds, blocking, result."""
    cuda, driver, _ = faces(runtime)
    device, host, pinned, stream = cuda.device(4096), pageable(), cuda.pinned(), cuda.stream()
    context = driver.take("cuDevicePrimaryCtxRetain", 0)
    calls = _heard(runtime)
    driver("cuMemcpy2D_v2_ptds", _words(*_side_2d(_HOST, host, 32), *_side_2d(_DEVICE, device, 64), 8, 4))
    driver("cuMemcpy2DUnaligned_v2", _words(*_side_2d(_HOST, pinned, 32), *_side_2d(_DEVICE, device, 64), 8, 4))
    driver("cuMemcpy2DAsync_v2", _words(*_side_2d(_DEVICE, device, 64), *_side_2d(_UNIFIED, pinned, 32), 8, 4), stream)
    box = _side_3d(_DEVICE, device, 16, 4, context=context)
    driver("cuMemcpy3DAsync_v2", _words(*box, *_side_3d(_HOST, host, 8, 4), 5, 3, 2), stream)
    driver("cuMemcpy3DPeerAsync_ptsz", _words(*box, *box, 5, 3, 2), stream)
    cuda("cudaMemcpy3DPeer_ptds", _words(0, 0, 0, 0, device, 16, 16, 4, 0, 0, 0, 0, 0, pinned, 8, 8, 4, 0, 5, 3, 2))
    driver("cuMemcpyPeerAsync_ptsz", device, context, device + 64, context, 64, stream)
    driver("cuMemcpyHtoDAsync_v2_ptsz", device, host, 64, 0)
    driver("cuMemcpy_ptds", device, pinned, 64)
    cuda("cudaMemcpy3DBatchAsync", 1, _words(*_operation((1, host, 0, 0), (1, device, 0, 0), 5, 3, 2)), 0, stream)
    driver("cuMemsetD2D16_v2_ptds", device, 64, 1, 8, 4)
    driver("cuMemsetD16Async_ptsz", device, 1, 8, stream)
    cuda("cudaMemset3D", _Pitched(pinned, 16, 16, 4), 0, _Extent(5, 3, 2))
    symbol = pageable(16)
    cuda("cudaMemcpyToSymbol", symbol, device, 8, 0, H2D)
    cuda("cudaMemcpyToSymbolAsync_ptsz", symbol, host, 8, 0, H2D, stream)
    cuda("cudaMemcpyFromSymbol", pinned, symbol, 8, 0, D2H)
    cuda("cudaMemcpyFromSymbolAsync", pinned, symbol, 8, 0, D2H, stream)
    cuda("cudaMemcpyFromSymbolAsync", pinned, symbol, 0, 0, D2H, stream)
    runtime.listen(None)
    return _told(calls)


def captured_copies(runtime: SimulatedRuntime) -> Answer:
    """A 2D copy, a 3D fill and a symbol's copy, captured through the driver and replayed; a host function likewise."""
    cuda, driver, _ = faces(runtime)
    device, host, back, stream = cuda.device(64), counting(64), pageable(64), cuda.stream()
    called: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(data or 0))
    cuda("cudaMemset", device, 0, 64)
    answers: Answer = [
        driver("cuStreamBeginCapture_v2", stream, GLOBAL),
        driver("cuMemcpy2DAsync_v2", _words(*_side_2d(_HOST, host, 4), *_side_2d(_DEVICE, device, 8), 4, 2), stream),
        cuda("cudaMemset3DAsync", _Pitched(device + 16, 4, 4, 2), 0x7F, _Extent(2, 1, 2), stream),
        cuda("cudaMemcpyToSymbolAsync", back, host, 8, 0, H2D, stream),
        driver("cuLaunchHostFunc", stream, function, 5),
    ]
    graph, count, ready = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    answers += [driver("cuStreamEndCapture", stream, ctypes.byref(graph)), list(called)]
    cuda("cudaMemcpy", back, device, 64, D2H)
    answers.append(text(back, 64) == bytes(64).hex())
    cuda("cudaGraphGetNodes", graph.value, 0, ctypes.byref(count))
    cuda("cudaGraphInstantiate", ctypes.byref(ready), graph.value, 0)
    answers += [count.value, cuda("cudaGraphLaunch", ready.value, stream), list(called)]
    cuda("cudaMemcpy", back, device, 64, D2H)
    return [*answers, text(back, 26), driver("cuLaunchHostFunc", stream, function, 6), called]


def captured_batches(runtime: SimulatedRuntime) -> Answer:
    """Each form refused by its stream's capture, which is then invalid; what is told of it; the bytes stay."""
    cuda, driver, _ = faces(runtime)
    device, pinned, back, stream = cuda.device(64), cuda.pinned(64), pageable(64), cuda.stream()
    cuda("cudaMemset", device, 0x11, 64)
    to, source, sizes, rest = (
        _words(device, device),
        _words(pinned, pinned),
        _words(8, 8),
        (_words(3, 0, 0), _words(0), 1),
    )
    boxes = _words(*_operation((1, pinned, 0, 0), (1, device, 0, 0), 5, 3, 1))
    answers: Answer = []

    def within_capture(face: Cuda, name: str, *arguments: object) -> None:
        cuda("cudaStreamBeginCapture", stream, GLOBAL)
        calls = _heard(runtime)
        code = face(name, *arguments, stream)
        runtime.listen(None)
        told = [[c.api, c.event_class.name, c.capturing, c.result] for c in calls]
        answers.append([code, told, cuda.capturing(stream), cuda.end(stream)[0]])

    within_capture(cuda, "cudaMemcpyBatchAsync", to, source, sizes, 2, *rest)
    within_capture(driver, "cuMemcpyBatchAsync_v2", to, source, sizes, 2, *rest)
    within_capture(cuda, "cudaMemcpy3DBatchAsync", 1, boxes, 0)
    within_capture(driver, "cuMemcpy3DBatchAsync_v2", 1, boxes, 0)
    cuda("cudaMemcpy", back, device, 64, D2H)
    return [*answers, text(back, 2)]


def entry_points(runtime: SimulatedRuntime) -> Answer:
    """The form that a caller of CUDA 12 and one of CUDA 13 gets, by driver and runtime; a wait for a context."""
    cuda, driver, _ = faces(runtime)
    context = driver.take("cuDevicePrimaryCtxRetain", 1)
    answers: Answer = []
    for name, old, new in (
        ("cuCtxSynchronize", "cuCtxSynchronize", "cuCtxSynchronize_v2"),
        ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"),
        ("cuMemcpy2D", "cuMemcpy2D_v2", "cuMemcpy2D_v2"),
    ):
        for version, form in ((12080, old), (13000, new)):
            want = ctypes.cast(getattr(driver.library, form), ctypes.c_void_p).value
            out = ctypes.c_size_t()
            driver("cuGetProcAddress_v2", ctypes.c_char_p(name.encode()), ctypes.byref(out), version, 0, 0)
            found = out.value
            cuda("cudaGetDriverEntryPointByVersion", ctypes.c_char_p(name.encode()), ctypes.byref(out), version, 0, 0)
            answers.append([found == want, out.value == want])
    calls: list[SimulatedCall] = []
    runtime.listen(calls.append, EventClass.SYNC)
    codes = [driver("cuCtxSynchronize_v2", context), driver("cuCtxSynchronize_v2", 0x1000)]
    stream = cuda.stream()
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    codes += [driver("cuCtxSynchronize_v2", driver.take("cuDevicePrimaryCtxRetain", 0)), cuda.end(stream)[0]]
    return [*answers, codes, [[c.api, c.device, c.capturing] for c in calls]]


SCENARIOS: tuple[Simulated, ...] = (
    driver_areas,
    refused_areas,
    peer_areas,
    batches,
    fills_of_areas,
    told_copies,
    captured_copies,
    captured_batches,
    entry_points,
)
