"""Stream capture: what it forbids, how it ends, forks and joins."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from tests.simulate.cuda import (
    D2H,
    EXTERNAL,
    GLOBAL,
    H2D,
    NO_TIMING,
    NON_BLOCKING,
    RELAXED,
    THREAD_LOCAL,
    Answer,
    Cuda,
    Scenario,
    pageable,
)


def capture_states(cuda: Cuda) -> Answer:
    stream, graph = cuda.stream(), ctypes.c_size_t()
    answers: Answer = [
        cuda("cudaStreamBeginCapture", 0, GLOBAL),
        cuda.capturing(stream),
        cuda("cudaStreamEndCapture", stream, ctypes.byref(graph)),
        cuda("cudaStreamBeginCapture", stream, GLOBAL),
        cuda("cudaStreamBeginCapture", stream, GLOBAL),
        cuda.capturing(stream),
    ]
    code, handle = cuda.end(stream)
    return [*answers, code, handle != 0, cuda.capturing(stream), cuda("cudaGraphDestroy", handle)]


def _unsafe(cuda: Cuda, mode: int, call: Callable[[int], int], flags: int = NON_BLOCKING) -> Answer:
    stream = cuda.stream(flags)
    begin = cuda("cudaStreamBeginCapture", stream, mode)
    code = call(stream)
    status = cuda.capturing(stream)
    end, graph = cuda.end(stream)
    return [begin, code, status, end, graph != 0]


def unsafe_calls(cuda: Cuda) -> Answer:
    """Code of the call, capture status after it, code of the end and whether there is a graph; by mode."""
    device, pinned, host, spare = cuda.device(), cuda.pinned(), pageable(), cuda.stream()
    event = cuda.event()
    out = ctypes.c_size_t()
    calls: dict[str, Callable[[int], int]] = {
        "malloc": lambda _: cuda("cudaMalloc", ctypes.byref(out), 4096),
        "free": lambda _: cuda("cudaFree", cuda_scratch.pop()),
        "free null": lambda _: cuda("cudaFree", 0),
        "host alloc": lambda _: cuda("cudaHostAlloc", ctypes.byref(out), 4096, 0),
        "memcpy": lambda _: cuda("cudaMemcpy", device, pinned, 64, H2D),
        "memset": lambda _: cuda("cudaMemset", device, 0, 64),
        "device sync": lambda _: cuda("cudaDeviceSynchronize"),
        "sync of the stream": lambda stream: cuda("cudaStreamSynchronize", stream),
        "sync of another": lambda _: cuda("cudaStreamSynchronize", spare),
        "sync of the legacy stream": lambda _: cuda("cudaStreamSynchronize", 0),
        "query of the stream": lambda stream: cuda("cudaStreamQuery", stream),
        "query of another": lambda _: cuda("cudaStreamQuery", spare),
        "event query": lambda _: cuda("cudaEventQuery", event),
        "event sync": lambda _: cuda("cudaEventSynchronize", event),
        "pinned copy": lambda stream: cuda("cudaMemcpyAsync", device, pinned, 64, H2D, stream),
        "pageable copy": lambda stream: cuda("cudaMemcpyAsync", device, host, 64, H2D, stream),
        "pageable copy back": lambda stream: cuda("cudaMemcpyAsync", host, device, 64, D2H, stream),
        "copy on another": lambda _: cuda("cudaMemcpyAsync", device, pinned, 64, H2D, spare),
        "copy on the legacy stream": lambda _: cuda("cudaMemcpyAsync", device, pinned, 64, H2D, 0),
        "async memset": lambda stream: cuda("cudaMemsetAsync", device, 0, 64, stream),
        "register": lambda _: cuda("cudaHostRegister", (pageable(16384) + 4095) & ~4095, 4096, 0),
        "event create": lambda _: cuda("cudaEventCreateWithFlags", ctypes.byref(out), 0),
        "stream create": lambda _: cuda("cudaStreamCreateWithFlags", ctypes.byref(out), 1),
        "mem info": lambda _: cuda("cudaMemGetInfo", ctypes.byref(out), ctypes.byref(ctypes.c_size_t())),
        "event elapsed": lambda _: cuda("cudaEventElapsedTime", ctypes.byref(ctypes.c_float()), event, event),
        "stream destroy": lambda stream: cuda("cudaStreamDestroy", cuda.stream()),
    }
    cuda_scratch = [cuda.device() for _ in range(3)]
    cuda("cudaEventRecord", event, spare)
    cuda("cudaDeviceSynchronize")
    answers: Answer = []
    for name, call in calls.items():
        answers.append([name, *(_unsafe(cuda, mode, call)[1:] for mode in (GLOBAL, THREAD_LOCAL, RELAXED))])
    return answers


def blocking_stream(cuda: Cuda) -> Answer:
    """The legacy stream while a blocking stream captures."""
    device, pinned = cuda.device(), cuda.pinned()
    calls: list[Callable[[int], int]] = [
        lambda _: cuda("cudaMemcpyAsync", device, pinned, 64, H2D, 0),
        lambda _: cuda("cudaMemsetAsync", device, 0, 64, 0),
        lambda _: cuda("cudaEventRecord", cuda.event(), 0),
        lambda _: cuda("cudaStreamSynchronize", 0),
        lambda _: cuda("cudaMemcpy", device, pinned, 64, H2D),
        lambda _: cuda("cudaStreamQuery", 0),
    ]
    return [_unsafe(cuda, mode, call, 0)[1:] for call in calls for mode in (THREAD_LOCAL, RELAXED)]


def fork_and_join(cuda: Cuda) -> Answer:
    device, pinned = cuda.device(), cuda.pinned()
    first, second, fork, join = cuda.stream(), cuda.stream(), cuda.event(NO_TIMING), cuda.event(NO_TIMING)
    answers: Answer = [
        cuda("cudaStreamBeginCapture", first, GLOBAL),
        cuda("cudaEventRecord", fork, first),
        cuda.capturing(second),
        cuda("cudaStreamWaitEvent", second, fork, 0),
        cuda.capturing(second),
        cuda("cudaMemcpyAsync", device, pinned, 64, H2D, second),
        cuda("cudaEventRecord", join, second),
        cuda("cudaStreamWaitEvent", first, join, 0),
    ]
    code, graph = cuda.end(first)
    count = ctypes.c_size_t()
    answers += [code, graph != 0, cuda("cudaGraphGetNodes", graph, 0, ctypes.byref(count)), count.value]
    return [*answers, cuda.capturing(second)]


def unjoined(cuda: Cuda) -> Answer:
    """A fork without work needs no join; one with work does; one joined too early is not."""
    device, pinned = cuda.device(), cuda.pinned()
    answers: Answer = []
    for work_before, join, work_after in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)):
        first, second, fork, joined = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
        cuda("cudaStreamBeginCapture", first, GLOBAL)
        cuda("cudaEventRecord", fork, first)
        cuda("cudaStreamWaitEvent", second, fork, 0)
        if work_before:
            cuda("cudaMemcpyAsync", device, pinned, 64, H2D, second)
        if join:
            cuda("cudaEventRecord", joined, second)
            cuda("cudaStreamWaitEvent", first, joined, 0)
        if work_after:
            cuda("cudaMemcpyAsync", device, pinned, 64, H2D, second)
        code, graph = cuda.end(first)
        answers.append([code, graph != 0, cuda.capturing(first), cuda.capturing(second)])
    return answers


def crossing(cuda: Cuda) -> Answer:
    """Dependencies across a capture's boundary, ends from the wrong place, events last recorded in a capture."""
    answers: Answer = []
    outside, stream, event, never = cuda.stream(), cuda.stream(), cuda.event(), cuda.event()
    cuda("cudaEventRecord", event, outside)
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    answers.append(
        ["wait on an event never recorded", cuda("cudaStreamWaitEvent", stream, never, 0), cuda.capturing(stream)]
    )
    answers.append(["wait on one from outside", cuda("cudaStreamWaitEvent", stream, event, 0), cuda.capturing(stream)])
    answers.append(["end", cuda.end(stream)[0]])

    a, b, ea = cuda.stream(), cuda.stream(), cuda.event()
    cuda("cudaStreamBeginCapture", a, RELAXED)
    cuda("cudaStreamBeginCapture", b, RELAXED)
    cuda("cudaEventRecord", ea, a)
    answers.append(["merge", cuda("cudaStreamWaitEvent", b, ea, 0), cuda.capturing(a), cuda.capturing(b)])
    answers.append(["ends", cuda.end(a)[0], cuda.end(b)[0]])

    c, d, ec = cuda.stream(), cuda.stream(), cuda.event()
    cuda("cudaStreamBeginCapture", c, RELAXED)
    cuda("cudaEventRecord", ec, c)
    cuda("cudaStreamWaitEvent", d, ec, 0)
    answers.append(["end of a joined stream", cuda.end(d)[0], cuda.capturing(c)])
    answers.append(["query of a captured event", cuda("cudaEventQuery", ec), cuda.capturing(c)])
    answers.append(["end", cuda.end(c)[0]])
    answers.append(["query after the end", cuda("cudaEventQuery", ec), cuda("cudaEventSynchronize", ec)])
    elapsed = ctypes.c_float()
    answers.append(["elapsed", cuda("cudaEventElapsedTime", ctypes.byref(elapsed), ec, ec)])
    answers.append(["wait after the end", cuda("cudaStreamWaitEvent", d, ec, 0), cuda.capturing(d)])

    e, ee = cuda.stream(), cuda.event()
    cuda("cudaStreamBeginCapture", e, RELAXED)
    cuda("cudaEventRecord", ee, e)
    answers.append(["sync of a captured event", cuda("cudaEventSynchronize", ee), cuda.capturing(e), cuda.end(e)[0]])

    f, ef = cuda.stream(), cuda.event()
    cuda("cudaStreamBeginCapture", f, RELAXED)
    answers.append(["external record", cuda("cudaEventRecordWithFlags", ef, f, EXTERNAL), cuda.capturing(f)])
    answers.append(["external wait", cuda("cudaStreamWaitEvent", f, ef, EXTERNAL), cuda.capturing(f), cuda.end(f)[0]])

    g, codes = cuda.stream(), []
    cuda("cudaStreamBeginCapture", g, GLOBAL)
    thread = threading.Thread(target=lambda: codes.append(cuda.end(g)[0]))
    thread.start()
    thread.join()
    answers.append(["end on another thread", *codes, cuda.capturing(g)])
    h = cuda.stream()
    cuda("cudaStreamBeginCapture", h, RELAXED)
    answers.append(["destroy while capturing", cuda("cudaStreamDestroy", h)])
    return answers


def other_threads(cuda: Cuda) -> Answer:
    """What another thread's call does to a capture, by the capture's mode and the thread's own."""
    answers: Answer = []
    for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
        for own in (GLOBAL, THREAD_LOCAL, RELAXED):
            stream = cuda.stream()
            codes: list[int] = []
            cuda("cudaStreamBeginCapture", stream, mode)

            def work(own: int = own, codes: list[int] = codes) -> None:
                value = ctypes.c_int(own)
                cuda("cudaThreadExchangeStreamCaptureMode", ctypes.byref(value))
                codes.append(value.value)
                codes.append(cuda("cudaMalloc", ctypes.byref(ctypes.c_size_t()), 4096))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            answers.append([mode, own, *codes, cuda.capturing(stream), cuda.end(stream)[0]])
    return answers


SCENARIOS: tuple[Scenario, ...] = (
    capture_states,
    unsafe_calls,
    blocking_stream,
    fork_and_join,
    unjoined,
    crossing,
    other_threads,
)
