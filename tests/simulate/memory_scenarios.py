"""Memory: allocation, registration, directions, bounds, fills, what a pointer is."""

from __future__ import annotations

import ctypes

from tests.simulate.cuda import D2D, D2H, H2D, Answer, Cuda, Scenario, pageable, text, unmapped


def frees(cuda: Cuda) -> Answer:
    device, pinned = cuda.device(), cuda.pinned()
    host = pageable()
    return [
        cuda("cudaFree", 0),
        cuda("cudaFreeHost", 0),
        cuda("cudaFree", device + 512),
        cuda("cudaFree", pinned),
        cuda("cudaFree", host),
        cuda("cudaFreeHost", device),
        cuda("cudaFreeHost", pinned + 64),
        cuda("cudaFreeHost", host),
        cuda("cudaFree", device),
        cuda("cudaFree", device),
        cuda("cudaFreeHost", pinned),
        cuda("cudaFreeHost", pinned),
        cuda("cudaFree", 0x1234),
        cuda("cudaFree", 0x7F0000000000),
    ]


def zero_sizes(cuda: Cuda) -> Answer:
    out = ctypes.c_size_t(7)
    host = ctypes.c_size_t(7)
    device, pinned = cuda.device(), cuda.pinned()
    return [
        cuda("cudaMalloc", ctypes.byref(out), 0),
        out.value,
        cuda("cudaHostAlloc", ctypes.byref(host), 0, 0),
        host.value,
        cuda("cudaMemcpy", device, pinned, 0, H2D),
        cuda("cudaMemcpyAsync", 0, 0, 0, D2H, 0),
        cuda("cudaMemset", device, 1, 0),
        cuda("cudaMemset", 0, 1, 0),
        cuda("cudaMemcpy2D", device, 64, pinned, 64, 0, 4, H2D),
    ]


def out_of_memory(cuda: Cuda) -> Answer:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    info = cuda("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    out = ctypes.c_size_t(7)
    return [
        info,
        cuda("cudaMalloc", ctypes.byref(out), total.value + 1),
        cuda("cudaGetLastError"),
        cuda("cudaGetLastError"),
        cuda("cudaMalloc", ctypes.byref(out), total.value * 1024),
        cuda("cudaPeekAtLastError"),
        cuda("cudaPeekAtLastError"),
        cuda("cudaMalloc", ctypes.byref(out), 1 << 20),
        cuda("cudaPeekAtLastError"),
        cuda("cudaMalloc", 0, 512),
    ]


def directions(cuda: Cuda) -> Answer:
    """Every direction against every pair of kinds: destination, source, then the five directions."""
    memory = {"device": cuda.device(), "pinned": cuda.pinned(), "pageable": pageable()}
    other = {"device": cuda.device(), "pinned": cuda.pinned(), "pageable": pageable()}
    answers: Answer = []
    for to in memory:
        for source in other:
            codes = [cuda("cudaMemcpy", memory[to], other[source], 64, kind) for kind in range(5)]
            codes += [cuda("cudaMemcpyAsync", memory[to], other[source], 64, kind, 0) for kind in range(5)]
            answers.append([to, source, *codes])
    answers.append(cuda("cudaMemcpy", memory["device"], other["pinned"], 64, 5))
    return answers


def bounds(cuda: Cuda) -> Answer:
    device, pinned = cuda.device(1 << 21), cuda.pinned(1 << 21)
    huge = (1 << 64) - 1
    return [
        cuda("cudaMemcpy", device, pinned, (1 << 21) + 1, H2D),
        cuda("cudaMemcpy", device + 4096, pinned, 1 << 21, H2D),
        cuda("cudaMemcpy", device, pinned, huge, H2D),
        cuda("cudaMemset", device, 0, (1 << 30)),
        cuda("cudaMemset", device + (1 << 21) - 16, 0, 16),
    ]


def null_operands(cuda: Cuda) -> Answer:
    device, pinned = cuda.device(), cuda.pinned()
    return [
        cuda("cudaMemcpy", 0, pinned, 8, H2D),
        cuda("cudaMemcpy", device, 0, 8, D2D),
        cuda("cudaMemcpyAsync", 0, device, 8, D2D, 0),
        cuda("cudaMemset", 0, 0, 8),
    ]


def null_host(cuda: Cuda) -> Answer:
    device = cuda.device()
    return [cuda("cudaMemcpy", device, 0, 8, H2D), cuda("cudaMemcpy", 0, device, 8, D2H)]


def unmapped_host(cuda: Cuda) -> Answer:
    device, gone = cuda.device(), unmapped()
    return [cuda("cudaMemcpy", device, gone, 64, H2D), cuda("cudaMemcpy", gone, device, 64, D2H)]


def freed_operands(cuda: Cuda) -> Answer:
    device, gone = cuda.device(1 << 22), cuda.device(1 << 22)
    answers: Answer = [cuda("cudaFree", gone)]
    answers.append(cuda("cudaMemcpy", device, gone, 64, D2D))
    answers.append(cuda("cudaMemset", gone, 0, 64))
    return answers


def fills(cuda: Cuda) -> Answer:
    device, pinned, host = cuda.device(256), cuda.pinned(256), pageable(256)
    answers: Answer = [
        cuda("cudaMemset", device, 0, 256),
        cuda("cudaMemset", device + 3, 0x1AB, 5),
        cuda("cudaMemset2D", device + 64, 16, 0x7F, 4, 3),
        cuda("cudaMemsetAsync", device + 128, 0x55, 4, 0),
        cuda("cudaMemset", pinned, 0x11, 4),
        cuda("cudaMemset", host, 0x11, 4),
        cuda("cudaMemcpy", host, device, 256, D2H),
    ]
    return [*answers, text(host, 12), text(host + 64, 40), text(host + 126, 8), text(pinned, 4)]


def pointers(cuda: Cuda) -> Answer:
    """Type and device that ``cudaPointerGetAttributes`` reports, for each kind."""
    device, pinned, host = cuda.device(), cuda.pinned(), pageable(1 << 14)
    page = (host + 4095) & ~4095
    registered = cuda("cudaHostRegister", page, 4096, 0)
    answers: Answer = [registered]
    for address in (device, device + 100, pinned, pinned + 5, page, page + 4095, pageable(), 0x1234):
        out = (ctypes.c_int * 64)()
        code = cuda("cudaPointerGetAttributes", ctypes.byref(out), address)
        answers.append([code, out[0]] if code else [code, out[0], out[1]])
    return answers


def registration(cuda: Cuda) -> Answer:
    host = pageable(1 << 16)
    page = (host + 4095) & ~4095
    pinned = cuda.pinned()
    device = cuda.device()
    return [
        cuda("cudaHostRegister", page, 8192, 0),
        cuda("cudaHostRegister", page, 8192, 0),
        cuda("cudaHostRegister", page + 4096, 8192, 0),
        cuda("cudaHostUnregister", page + 4096),
        cuda("cudaMemcpyAsync", device, page + 100, 4000, H2D, 0),
        cuda("cudaMemcpyAsync", device, page + 4096, 8192, H2D, 0),
        cuda("cudaHostUnregister", page),
        cuda("cudaHostUnregister", page),
        cuda("cudaHostUnregister", pinned),
        cuda("cudaHostRegister", pinned, 4096, 0),
        cuda("cudaHostRegister", device, 4096, 0),
        cuda("cudaHostRegister", 0, 4096, 0),
        cuda("cudaHostRegister", page, 0, 0),
        cuda("cudaHostRegister", unmapped(), 4096, 0),
        cuda("cudaHostRegister", page, 4096, 0xF000),
    ]


def host_pointer(cuda: Cuda) -> Answer:
    pinned, out, flags = cuda.pinned(), ctypes.c_size_t(), ctypes.c_uint()
    return [
        cuda("cudaHostGetDevicePointer", ctypes.byref(out), pinned, 0),
        out.value == pinned,
        cuda("cudaHostGetDevicePointer", ctypes.byref(out), pageable(), 0),
        cuda("cudaHostGetFlags", ctypes.byref(flags), pinned),
        cuda("cudaHostGetFlags", ctypes.byref(flags), pageable()),
    ]


def pitched(cuda: Cuda) -> Answer:
    device, host, back = cuda.device(4096), pageable(4096), pageable(4096)
    for i in range(4096):
        ctypes.c_ubyte.from_address(host + i).value = i % 251
    answers: Answer = [
        cuda("cudaMemset", device, 0, 4096),
        cuda("cudaMemcpy2D", device, 64, host, 32, 8, 4, H2D),
        cuda("cudaMemcpy2D", back, 16, device, 64, 8, 4, D2H),
        cuda("cudaMemcpy2D", device, 4, host, 32, 8, 4, H2D),
        cuda("cudaMemcpy2DAsync", device, 64, host, 32, 8, 4, H2D, 0),
        cuda("cudaMemcpy2D", device, 64, host, 32, 8, 1000, H2D),
    ]
    return [*answers, text(back, 64)]


def devices(cuda: Cuda) -> Answer:
    can, out = ctypes.c_int(-1), ctypes.c_int(-1)
    count = ctypes.c_int()
    return [
        cuda("cudaGetDeviceCount", ctypes.byref(count)),
        cuda("cudaSetDevice", 99),
        cuda("cudaSetDevice", 0),
        cuda("cudaDeviceCanAccessPeer", ctypes.byref(can), 0, 0),
        can.value,
        cuda("cudaDeviceCanAccessPeer", ctypes.byref(can), 0, 99),
        cuda("cudaDeviceEnablePeerAccess", 0, 0),
        cuda("cudaDeviceGetAttribute", ctypes.byref(out), 75, 0),
        out.value,
        cuda("cudaDeviceGetAttribute", ctypes.byref(out), 75, 99),
        cuda("cudaDeviceGetAttribute", ctypes.byref(out), 9999, 0),
    ]


def launches(cuda: Cuda) -> Answer:
    """Attributes of something that is no kernel."""
    attributes = (ctypes.c_int * 64)()
    return [cuda("cudaFuncGetAttributes", ctypes.byref(attributes), pageable(64))]


SCENARIOS: tuple[Scenario, ...] = (
    frees,
    zero_sizes,
    out_of_memory,
    directions,
    bounds,
    null_operands,
    null_host,
    unmapped_host,
    freed_operands,
    fills,
    pointers,
    registration,
    host_pointer,
    pitched,
    devices,
    launches,
)
