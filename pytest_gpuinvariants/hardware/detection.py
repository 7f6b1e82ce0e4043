"""What this machine has, found out without importing torch and without touching CUDA in this process.

A CUDA context in the test process would break every test that forks, so the driver is asked by a
short-lived child, which sees the same CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_PROBE = """
import ctypes, json
def ask():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"why": "no NVIDIA driver (libcuda.so.1) is installed"}
    if error := cuda.cuInit(0):
        return {"why": "the NVIDIA driver finds no usable GPU (cuInit answers %d)" % error}
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return {"why": "no GPU is visible (see CUDA_VISIBLE_DEVICES)"}
    name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetName(name, 256, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)
    return {"name": name.value.decode(), "major": major.value, "minor": minor.value, "count": count.value}
print(json.dumps(ask()))
"""


@dataclass(frozen=True)
class RealGpu:
    """The first visible GPU: its name, compute capability, and how many are visible."""

    name: str
    capability: tuple[int, int]
    count: int


class NoGpuError(RuntimeError):
    """There is no usable GPU; the message says why."""


class NoCudaTorchError(RuntimeError):
    """There is no CUDA build of torch for Linux here; the message says what there is."""


def find_real_gpu() -> RealGpu:
    """Ask the NVIDIA driver for its devices.

    Raises:
        NoGpuError: there is no driver, no device, or none is visible.
    """
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        answer = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NoGpuError(f"the NVIDIA driver could not be asked ({error})") from error
    if "why" in answer:
        raise NoGpuError(answer["why"])
    return RealGpu(answer["name"], (answer["major"], answer["minor"]), answer["count"])


def require_cuda_torch() -> None:
    """Check that torch is installed as a CUDA build on Linux; it is not imported.

    Raises:
        NoCudaTorchError: it is not.
    """
    if platform.system() != "Linux":
        raise NoCudaTorchError(f"CUDA can neither be used nor simulated on {platform.system()}")
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoCudaTorchError("torch is not installed")
    if not (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").is_file():
        raise NoCudaTorchError("the installed torch has no CUDA (a CPU build)")
