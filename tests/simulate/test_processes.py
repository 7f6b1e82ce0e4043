"""torch, vLLM and Triton on simulated machines of their own, in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OPEN = """
import json, os
from pytest_gpuinvariants.hardware.profiles import parse_profile
from pytest_gpuinvariants.hardware.simulate.runtime import EventClass, open_runtime
runtime = open_runtime(*parse_profile({machine!r}))
os.environ["TRITON_LIBCUDA_PATH"] = str(runtime.libraries.folder)
import torch

def error(call):
    try:
        return call()
    except Exception as raised:
        return [type(raised).__name__, str(raised).splitlines()[0]]
"""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def _run(folder: Path, machine: str, code: str, **environment: str) -> Any:
    """The JSON that the last line of a script prints, on a simulated machine."""
    script = folder / "script.py"  # Triton reads its kernels' source
    script.write_text(OPEN.format(machine=machine) + textwrap.dedent(code))
    result = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@needs_torch
def test_two_devices(tmp_path: Path) -> None:
    answers = _run(
        tmp_path,
        "h100x2",
        """
        first = torch.arange(6).to("cuda:0")
        free = [torch.cuda.mem_get_info(i)[0] for i in range(2)]
        block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
        after = [torch.cuda.mem_get_info(i)[0] for i in range(2)]
        calls = []
        runtime.listen(calls.append, EventClass.COPY_ASYNC | EventClass.COPY_STALL)
        second = first.to("cuda:1")
        runtime.listen(None)
        with torch.cuda.device(1):
            current = torch.cuda.current_device()
        print(json.dumps({
            "count": torch.cuda.device_count(),
            "peer": [torch.cuda.can_device_access_peer(0, 1), torch.cuda.can_device_access_peer(1, 0)],
            "third": error(lambda: torch.zeros(1, device="cuda:2")),
            "used": [before - now for before, now in zip(free, after)],
            "copied": [str(second.device), second.tolist()],
            "calls": [[c.api, c.source.name, c.destination.name, c.bytes] for c in calls],
            "current": [current, torch.cuda.current_device()],
            "mixed": error(lambda: first + second),
            "uuids": len({str(torch.cuda.get_device_properties(i).uuid) for i in range(2)}),
            "stream": torch.cuda.Stream(device=1).device_index,
            "oom": error(lambda: torch.empty(78 << 30, dtype=torch.uint8, device="cuda:1").numel()),
            "oom again": error(lambda: torch.empty(81 << 30, dtype=torch.uint8, device="cuda:1"))[0],
        }))
        """,
    )
    assert answers["count"] == 2
    assert answers["peer"] == [True, True]
    assert answers["third"] == ["AcceleratorError", "CUDA error: invalid device ordinal"]
    assert answers["used"] == [0, 1 << 30]
    assert answers["copied"] == ["cuda:1", [0, 1, 2, 3, 4, 5]]
    assert answers["calls"] == [["cudaMemcpyAsync", "DEVICE", "DEVICE", 48]], "torch has enabled peer access"
    assert answers["current"] == [1, 0]
    assert answers["mixed"][0] == "RuntimeError"
    assert answers["uuids"] == 2
    assert answers["stream"] == 1
    assert answers["oom"] == 78 << 30
    assert answers["oom again"] == "OutOfMemoryError"


@needs_torch
@pytest.mark.parametrize(
    ("machine", "name", "capability", "sms"),
    [
        ("b200", "NVIDIA B200", [10, 0], 148),
        ("a100", "NVIDIA A100-SXM4-80GB", [8, 0], 108),
        ("l4", "NVIDIA L4", [8, 9], 58),
    ],
)
def test_other_models(tmp_path: Path, machine: str, name: str, capability: list[int], sms: int) -> None:
    answers = _run(
        tmp_path,
        machine,
        """
        card = torch.cuda.get_device_properties(0)
        copied = torch.ones(2).cuda().tolist()
        print(json.dumps([card.name, [card.major, card.minor], card.multi_processor_count, copied]))
        """,
    )
    assert answers == [name, capability, sms, [1.0, 1.0]]


@needs_vllm
def test_vllms_cuda_platform(tmp_path: Path) -> None:
    answers = _run(
        tmp_path,
        "h100x2",
        """
        from vllm.platforms import current_platform as platform
        print(json.dumps({
            "class": type(platform).__name__,
            "cuda": platform.is_cuda(),
            "capability": list(platform.get_device_capability()),
            "has": [platform.has_device_capability(90), platform.has_device_capability(100)],
            "family": [platform.is_device_capability_family(90), platform.is_device_capability_family(100)],
            "exactly": platform.is_device_capability((9, 0)),
            "name": platform.get_device_name(1),
            "memory": platform.get_device_total_memory(),
            "uuid": platform.get_device_uuid(1).removeprefix("GPU-") == str(torch.cuda.get_device_properties(1).uuid),
            "nvlink": platform.is_fully_connected([0, 1]),
            "unsupported": list(runtime.unsupported),
        }))
        """,
    )
    assert answers == {
        "class": "NvmlCudaPlatform",
        "cuda": True,
        "capability": [9, 0],
        "has": [True, False],
        "family": [True, False],
        "exactly": True,
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 80 << 30,
        "uuid": True,
        "nvlink": True,
        "unsupported": [],
    }


@needs_triton
def test_a_triton_kernel_is_recorded(tmp_path: Path) -> None:
    answers = _run(
        tmp_path,
        "h100",
        """
        import triton
        import triton.language as tl

        @triton.jit
        def doubled(pointer, size: tl.constexpr):
            offsets = tl.arange(0, size)
            tl.store(pointer + offsets, 2 * tl.load(pointer + offsets))

        values = torch.ones(64, device="cuda")
        calls = []
        runtime.listen(calls.append, EventClass.LAUNCH)
        doubled[(1,)](values, 64)
        runtime.listen(None)
        print(json.dumps([[c.api, c.kernel, c.result] for c in calls] + [list(runtime.unsupported)]))
        """,
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
    )
    assert answers == [["cuLaunchKernelEx", "doubled", 0], []]


@needs_torch
def test_an_allocation_is_told_with_the_stack_of_its_line(tmp_path: Path) -> None:
    answers = _run(
        tmp_path,
        "h100",
        """
        import sys
        big = torch.zeros(8 << 20, device="cuda")
        lines = []

        def listener(call):
            frame = sys._getframe(2)
            while frame.f_back is not None:
                frame = frame.f_back
            lines.append([call.api, frame.f_lineno - start])

        start = sys._getframe().f_lineno
        runtime.listen(listener, EventClass.ALLOC | EventClass.SYNC)
        first = torch.empty(64 << 20, device="cuda")
        unrelated = 1
        second = big + big
        unrelated = 2
        torch.cuda.synchronize()
        unrelated = 3
        del first
        torch.cuda.empty_cache()
        runtime.listen(None)
        print(json.dumps(lines))
        """,
    )
    assert answers == [["cudaMalloc", 2], ["cudaMalloc", 4], ["cudaDeviceSynchronize", 6], ["cudaFree", 9]]


@needs_torch
def test_listening_does_not_stop_threads_that_share_torchs_allocator(tmp_path: Path) -> None:
    """The allocator's mutex and Python's lock, taken in both orders, once stopped both threads for ever."""
    answers = _run(
        tmp_path,
        "h100",
        """
        import faulthandler, threading, time
        faulthandler.dump_traceback_later(30, exit=True)
        torch.zeros(1, device="cuda")
        calls, rounds = [], [0, 0]
        runtime.listen(calls.append, EventClass.ALLOC | EventClass.SYNC)
        end = time.monotonic() + 1

        def allocate():
            while time.monotonic() < end or not rounds[0]:
                torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
                torch.cuda.empty_cache()
                rounds[0] += 1

        def ask():
            while time.monotonic() < end or not rounds[1]:
                torch.empty(100, device="cuda")
                torch.cuda.memory_allocated()
                rounds[1] += 1

        threads = [threading.Thread(target=target) for target in (allocate, ask, ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runtime.listen(None)
        print(json.dumps([min(rounds) > 0, sum(call.api == "cudaMalloc" for call in calls) > 0]))
        """,
    )
    assert answers == [True, True]
