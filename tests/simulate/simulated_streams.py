"""Stream and graph scenarios for the simulator alone: stale handles, lifetimes, devices.

They run on two simulated devices, each in a process of its own; the tests state what they answer.
"""

from __future__ import annotations

import ctypes
import threading

from pytest_gpuinvariants.hardware.simulate.runtime import SimulatedRuntime
from tests.simulate.cuda import D2H, GLOBAL, RELAXED, Answer, Cuda, Simulated, faces, pageable, text


def stale_handles(runtime: SimulatedRuntime) -> Answer:
    cuda, _, _ = faces(runtime)
    stream, event, source = cuda.stream(), cuda.event(), cuda.stream()
    device = cuda.device()
    cuda("cudaStreamBeginCapture", source, GLOBAL)
    _, graph = cuda.end(source)
    executable = cuda.take("cudaGraphInstantiate", graph, 0)
    out = ctypes.c_size_t()
    for name, handle in (
        ("cudaStreamDestroy", stream),
        ("cudaEventDestroy", event),
        ("cudaGraphDestroy", graph),
        ("cudaGraphExecDestroy", executable),
    ):
        cuda(name, handle)
    fresh = [cuda.stream() for _ in range(64)]
    return [
        stream in fresh,
        cuda("cudaStreamDestroy", stream),
        cuda("cudaStreamSynchronize", stream),
        cuda("cudaMemsetAsync", device, 0, 8, stream),
        cuda("cudaStreamSynchronize", 0xDEADBEEF0),
        cuda("cudaEventRecord", event, source),
        cuda("cudaEventSynchronize", event),
        cuda("cudaEventDestroy", event),
        cuda("cudaStreamWaitEvent", source, event, 0),
        cuda("cudaGraphLaunch", executable, source),
        cuda("cudaGraphInstantiate", ctypes.byref(out), graph, 0),
        cuda("cudaGraphDestroy", graph),
        cuda("cudaGraphExecDestroy", executable),
        cuda("cudaEventRecord", cuda.stream(), source),
    ]


def _captured_graph(cuda: Cuda, stream: int) -> int:
    status, identity, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_size_t()
    unused = [ctypes.byref(ctypes.c_size_t()) for _ in range(3)]
    cuda("cudaStreamGetCaptureInfo", stream, ctypes.byref(status), ctypes.byref(identity), ctypes.byref(graph), *unused)
    return graph.value


def lifetimes(runtime: SimulatedRuntime) -> Answer:
    """A graph destroyed during its capture, streams destroyed during theirs, a graph that the caller gave."""
    cuda, _, _ = faces(runtime)
    device, stream = cuda.device(), cuda.stream()
    cuda("cudaStreamBeginCapture", stream, GLOBAL)
    answers: Answer = [cuda("cudaGraphDestroy", _captured_graph(cuda, stream))]
    answers += [cuda("cudaMemsetAsync", device, 0, 8, stream), cuda.end(stream)[0], cuda.capturing(stream)]

    origin, joined, fork = cuda.stream(), cuda.stream(), cuda.event()
    cuda("cudaStreamBeginCapture", origin, GLOBAL)
    cuda("cudaEventRecord", fork, origin)
    cuda("cudaStreamWaitEvent", joined, fork, 0)
    answers += [
        cuda("cudaStreamDestroy", origin),
        cuda.capturing(joined),
        cuda("cudaMemsetAsync", device, 0, 8, joined),
    ]

    graph = cuda.take("cudaGraphCreate", 0)
    begin = cuda("cudaStreamBeginCaptureToGraph", stream, graph, 0, 0, 0, GLOBAL)
    answers += [begin, cuda("cudaStreamSynchronize", stream), cuda.end(stream)[0], cuda("cudaGraphDestroy", graph)]
    return answers


def nested_graphs(runtime: SimulatedRuntime) -> Answer:
    """A graph launched into a capture becomes a part of it; an external event is recorded by the replay."""
    cuda, _, _ = faces(runtime)
    device, back, stream, event = cuda.device(16), pageable(16), cuda.stream(), cuda.event()
    other = cuda.event()
    cuda("cudaStreamBeginCapture", stream, RELAXED)
    cuda("cudaMemsetAsync", device, 0x33, 16, stream)
    inner = cuda.take("cudaGraphInstantiate", cuda.end(stream)[1], 0)
    cuda("cudaStreamBeginCapture", stream, RELAXED)
    answers: Answer = [cuda("cudaGraphLaunch", inner, stream), cuda("cudaEventRecordWithFlags", event, stream, 1)]
    outer = cuda.take("cudaGraphInstantiate", cuda.end(stream)[1], 0)
    cuda("cudaGraphExecDestroy", inner)
    elapsed = ctypes.c_float()
    cuda("cudaMemcpy", back, device, 16, D2H)
    answers += [text(back, 4), cuda("cudaEventElapsedTime", ctypes.byref(elapsed), event, event)]
    answers.append(cuda("cudaGraphLaunch", outer, stream))
    cuda("cudaEventRecord", other, stream)
    cuda("cudaMemcpy", back, device, 16, D2H)
    answers += [text(back, 4), cuda("cudaEventElapsedTime", ctypes.byref(elapsed), event, other), elapsed.value >= 0]
    return answers


def devices_of_streams(runtime: SimulatedRuntime) -> Answer:
    """Streams and events of one device, used while another is current."""
    cuda, _, _ = faces(runtime)
    stream, event, device, number = cuda.stream(), cuda.event(), cuda.device(), ctypes.c_int()
    cuda("cudaSetDevice", 1)
    answers: Answer = [cuda("cudaStreamGetDevice", stream, ctypes.byref(number)), number.value]
    answers += [cuda("cudaEventRecord", event, stream), cuda("cudaEventRecord", event, cuda.stream())]
    answers += [cuda("cudaMemsetAsync", device, 0, 8, stream), cuda("cudaStreamSynchronize", stream)]
    seen: list[int] = []

    def look() -> None:
        cuda("cudaGetDevice", ctypes.byref(number))
        seen.append(number.value)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    return [*answers, seen]


SCENARIOS: tuple[Simulated, ...] = (
    stale_handles,
    lifetimes,
    nested_graphs,
    devices_of_streams,
)
