"""What this machine has, found out without importing torch and without touching CUDA in this process.

A CUDA context in the test process would break every test that forks, so the driver is asked by a
short-lived child, which sees the same CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.hardware.identity import ORDER, VISIBLE, Device

_PROBE = """
import ctypes, json, os
def text(size, ask, *arguments):
    buffer = ctypes.create_string_buffer(size)
    return "" if ask(*arguments[:1], buffer, size, *arguments[1:]) else buffer.value.decode()
def of_cuda(cuda, index):
    major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, index)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, index)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), index)
    raw = (ctypes.c_ubyte * 16)()
    getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)(raw, index)
    code = bytes(raw).hex()
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, index)
    uuid = "-".join((code[:8], code[8:12], code[12:16], code[16:20], code[20:]))
    return [uuid, name.value.decode(), [major.value, minor.value], memory.value]
def of_nvml(nvml, handle):
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    uuid = text(96, nvml.nvmlDeviceGetUUID, handle).removeprefix("GPU-")
    return [uuid, text(96, nvml.nvmlDeviceGetName, handle), [major.value, minor.value]]
def unlinked(nvml, handles):
    status = ctypes.c_int()
    for one in handles:
        for other in handles:
            if one is not other and (nvml.nvmlDeviceGetP2PStatus(one, other, 2, ctypes.byref(status)) or status.value):
                return True
    return False
def ask_nvml(visible):
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {"unlinked": "NVML (libnvidia-ml.so.1) is not installed, so it can not be told"}
    if error := nvml.nvmlInit_v2():
        return {"unlinked": "NVML answers error %d, so it can not be told" % error}
    count, handles = ctypes.c_uint(), {}
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    cards = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            cards.append(of_nvml(nvml, handle))
            handles[cards[-1][0]] = handle
    known = [handles[uuid] for uuid in visible if uuid in handles]
    if len(known) < len(visible):
        why = "NVML does not know all of the devices by their UUIDs, so it can not be told"
    else:
        why = "NVML reports no NVLink between them" if unlinked(nvml, known) else None
    return {"nvml": cards, "unlinked": why}
def ask():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"why": "no NVIDIA driver (libcuda.so.1) is installed"}
    if error := cuda.cuInit(0):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if hidden is None else "; CUDA_VISIBLE_DEVICES is %r" % hidden
        return {"why": "the NVIDIA driver finds no usable GPU (cuInit answers %d%s)" % (error, hint)}
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return {"why": "no GPU is visible (see CUDA_VISIBLE_DEVICES)"}
    devices = [of_cuda(cuda, index) for index in range(count.value)]
    return {"devices": devices, **ask_nvml([device[0] for device in devices])}
print(json.dumps(ask()))
"""


@dataclass(frozen=True)
class RealGpus:
    """What the NVIDIA driver answers: the visible devices, in CUDA's order, and NVML's cards, in its own.

    ``unlinked`` says why the visible devices are not known to be joined by NVLink, each to each.
    """

    devices: tuple[Device, ...]
    nvml: tuple[Device, ...] = ()
    unlinked: str | None = None


class NoGpuError(RuntimeError):
    """There is no usable GPU; the message says why."""


class NoCudaTorchError(RuntimeError):
    """There is no CUDA build of torch for Linux here; the message says what there is."""


def find_real_gpus() -> RealGpus:
    """Ask the NVIDIA driver for its devices, as the environment now lets CUDA see them.

    Raises:
        NoGpuError: there is no driver, no device, or none is visible.
    """
    return _ask(os.environ.get(VISIBLE), os.environ.get(ORDER))


@functools.cache
def _ask(visible: str | None, order: str | None) -> RealGpus:
    """The driver's answer, once for each value of the variables that decide it, which the child inherits."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        answer = json.loads(result.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NoGpuError(f"the NVIDIA driver could not be asked ({error})") from error
    if "why" in answer:
        raise NoGpuError(answer["why"])
    return RealGpus(_devices(answer["devices"]), _devices(answer.get("nvml", ())), answer.get("unlinked"))


def _devices(rows: Iterable[list[Any]]) -> tuple[Device, ...]:
    return tuple(Device(uuid, name, (capability[0], capability[1]), *rest) for uuid, name, capability, *rest in rows)


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
