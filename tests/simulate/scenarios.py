"""Run scenarios against a CUDA runtime, each in a process of its own, and print what it answered.

    python -m tests.simulate.scenarios libcudart.so.13      # the real one
    python -m tests.simulate.scenarios simulate:h200        # the simulated one
    python -m tests.simulate.scenarios simulated:h100x2     # scenarios that only the simulator can run

``h200.json`` holds the answers of a real H200 (driver 580, CUDA 13.0).  A process each, because on
silicon some scenarios end it.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from pytest_gpuinvariants.hardware.profiles import parse_profile
from pytest_gpuinvariants.hardware.simulate.runtime import open_runtime
from tests.simulate import (
    capture_scenarios,
    memory_scenarios,
    simulated_calls,
    simulated_copies,
    simulated_faces,
    simulated_memory,
    simulated_streams,
    stream_scenarios,
)
from tests.simulate.cuda import Answer, Cuda, Scenario, Simulated

Run = Callable[[], Answer]
_TIMEOUT_S = 60
_MODULES = (memory_scenarios, stream_scenarios, capture_scenarios)
_SIMULATED = (simulated_memory, simulated_copies, simulated_streams, simulated_calls, simulated_faces)


def _on_simulator(scenario: Simulated, profile: str) -> Answer:
    return scenario(open_runtime(*parse_profile(profile)))


def _on_library(scenario: Scenario, target: str) -> Answer:
    kind, _, profile = target.partition(":")
    path = str(open_runtime(*parse_profile(profile)).libraries.faces[0]) if kind == "simulate" else target
    return scenario(Cuda(ctypes.CDLL(path)))


def runs(target: str) -> Mapping[str, Run]:
    """The scenarios for a target, by name; nothing is opened before one is called."""
    kind, _, profile = target.partition(":")
    if kind == "simulated":
        return {
            scenario.__name__: partial(_on_simulator, scenario, profile)
            for module in _SIMULATED
            for scenario in module.SCENARIOS
        }

    return {
        scenario.__name__: partial(_on_library, scenario, target)
        for module in _MODULES
        for scenario in module.SCENARIOS
    }


def _child(run: Run, writing: int) -> None:
    signal.alarm(_TIMEOUT_S)
    try:
        answer: object = run()
    except Exception:
        answer = traceback.format_exc()
    with os.fdopen(writing, "w") as out:
        out.write(json.dumps(answer))


def run_all(target: str) -> dict[str, object]:
    """The answers of every scenario by name; of one that ended its process, how."""
    answers: dict[str, object] = {}
    context = multiprocessing.get_context("fork")
    for name, run in runs(target).items():
        reading, writing = os.pipe()
        process = context.Process(target=_child, args=(run, writing))
        process.start()
        os.close(writing)
        with os.fdopen(reading) as answer:
            data = answer.read()
        process.join()
        answers[name] = json.loads(data) if data else f"ended with {process.exitcode}"
    return answers


if __name__ == "__main__":
    print(json.dumps(run_all(sys.argv[1])))
