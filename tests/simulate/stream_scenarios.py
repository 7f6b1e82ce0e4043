"""Streams, events, graphs, host functions, fork."""

from __future__ import annotations

import ctypes
import json
import os

from tests.simulate.cuda import D2H, GLOBAL, H2D, NO_TIMING, Answer, Cuda, Scenario, keep, pageable, text


def handles(cuda: Cuda) -> Answer:
    stream, event = cuda.stream(), cuda.event()
    out = ctypes.c_size_t()
    return [
        cuda("cudaStreamQuery", stream),
        cuda("cudaStreamSynchronize", stream),
        cuda("cudaStreamSynchronize", 0),
        cuda("cudaStreamSynchronize", 1),
        cuda("cudaStreamSynchronize", 2),
        cuda("cudaEventQuery", event),
        cuda("cudaEventSynchronize", event),
        cuda("cudaEventRecord", event, stream),
        cuda("cudaEventQuery", event),
        cuda("cudaStreamWaitEvent", stream, event, 0),
        cuda("cudaDeviceSynchronize"),
        cuda("cudaEventDestroy", event),
        cuda("cudaStreamDestroy", stream),
        cuda("cudaStreamDestroy", 0),
        cuda("cudaStreamCreateWithFlags", ctypes.byref(out), 9),
        cuda("cudaEventCreateWithFlags", ctypes.byref(out), 64),
        cuda("cudaStreamCreateWithPriority", ctypes.byref(out), 1, -100),
        cuda("cudaStreamSynchronize", out.value),
    ]


def timing(cuda: Cuda) -> Answer:
    stream, start, end, untimed = cuda.stream(), cuda.event(), cuda.event(), cuda.event(NO_TIMING)
    elapsed = ctypes.c_float(-1)
    answers: Answer = [cuda("cudaEventElapsedTime", ctypes.byref(elapsed), start, end)]
    for event in (start, end, untimed):
        answers.append(cuda("cudaEventRecord", event, stream))
    answers.append(cuda("cudaStreamSynchronize", stream))
    answers.append(cuda("cudaEventElapsedTime", ctypes.byref(elapsed), start, end))
    answers.append(elapsed.value >= 0)
    answers.append(cuda("cudaEventElapsedTime", ctypes.byref(elapsed), start, untimed))
    return answers


def priorities(cuda: Cuda) -> Answer:
    least, greatest, priority = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    code = cuda("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    stream = cuda.take("cudaStreamCreateWithPriority", 1, ctypes.c_int(-2))
    return [
        code,
        least.value,
        greatest.value,
        cuda("cudaStreamGetPriority", stream, ctypes.byref(priority)),
        priority.value,
    ]


def replay(cuda: Cuda) -> Answer:
    """A replay repeats copies and fills with the host's values at that time."""
    device, pinned, back, stream = cuda.device(64), cuda.pinned(64), pageable(64), cuda.stream()
    ctypes.memset(pinned, 1, 64)
    cuda("cudaMemset", device, 0, 64)
    cuda("cudaDeviceSynchronize")
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    cuda("cudaMemcpyAsync", device, pinned, 8, H2D, stream)
    cuda("cudaMemsetAsync", device + 8, 0x7, 4, stream)
    _, graph = cuda.end(stream)
    answers: Answer = [cuda("cudaMemcpy", back, device, 16, D2H), text(back, 16)]
    executable = cuda.take("cudaGraphInstantiate", graph, 0)
    answers.append(cuda("cudaGraphDestroy", graph))
    for value in (2, 3):
        ctypes.memset(pinned, value, 64)
        cuda("cudaMemset", device, 0, 64)
        answers.append(cuda("cudaGraphLaunch", executable, stream))
        answers.append(cuda("cudaStreamSynchronize", stream))
        cuda("cudaMemcpy", back, device, 16, D2H)
        answers.append(text(back, 16))
    answers += [cuda("cudaGraphExecDestroy", executable)]
    return answers


def host_functions(cuda: Cuda) -> Answer:
    stream, calls = cuda.stream(), []
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    function = prototype(lambda data: calls.append(data))
    keep(function)
    pointer = ctypes.cast(function, ctypes.c_void_p)
    answers: Answer = [
        cuda("cudaLaunchHostFunc", stream, pointer, 5),
        cuda("cudaStreamSynchronize", stream),
        list(calls),
    ]
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    answers.append(cuda("cudaLaunchHostFunc", stream, pointer, 6))
    _, graph = cuda.end(stream)
    answers.append(list(calls))
    executable = cuda.take("cudaGraphInstantiate", graph, 0)
    answers += [cuda("cudaGraphLaunch", executable, stream), cuda("cudaStreamSynchronize", stream), list(calls)]
    return answers


def after_fork(cuda: Cuda) -> Answer:
    """What a child of a process that used CUDA is told."""
    cuda.device()
    count, out, device = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        codes = [
            cuda("cudaGetDeviceCount", ctypes.byref(count)),
            cuda("cudaMalloc", ctypes.byref(out), 64),
            cuda("cudaGetDevice", ctypes.byref(device)),
            cuda("cudaDeviceSynchronize"),
            cuda("cudaStreamCreateWithFlags", ctypes.byref(out), 1),
            cuda("cudaSetDevice", 0),
        ]
        os.write(writing, json.dumps(codes).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    codes = json.loads(os.read(reading, 4096))
    assert isinstance(codes, list)
    return [*codes, cuda("cudaDeviceSynchronize")]


SCENARIOS: tuple[Scenario, ...] = (
    handles,
    timing,
    priorities,
    replay,
    host_functions,
    after_fork,
)
