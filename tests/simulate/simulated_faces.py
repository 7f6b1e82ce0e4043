"""The driver's and NVML's faces of the simulator.

They run on two simulated devices, each in a process of its own; the tests state what they answer.
"""

from __future__ import annotations

import ctypes

from pytest_gpuinvariants.hardware.simulate.runtime import SimulatedRuntime
from tests.simulate.cuda import Answer, Simulated, faces, pageable

_GIB = 1 << 30


def driver_answers(runtime: SimulatedRuntime) -> Answer:
    cuda, driver, _ = faces(runtime)
    name, number, size = ctypes.create_string_buffer(96), ctypes.c_int(), ctypes.c_size_t()
    context, current, word = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_char_p()
    device, pinned, host = cuda.device(), cuda.pinned(), pageable()
    answers: Answer = [
        driver("cuInit", 0),
        driver("cuDeviceGetName", name, 96, 1),
        name.value.decode(),
        driver("cuDeviceTotalMem_v2", ctypes.byref(size), 0),
        size.value == runtime.profile.memory_bytes,
        driver("cuDeviceGetAttribute", ctypes.byref(number), 13, 0),
        number.value,
        driver("cuDeviceGetAttribute", ctypes.byref(number), 36, 0),
        number.value,
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1),
        driver("cuCtxPushCurrent_v2", context.value),
        driver("cuCtxGetDevice", ctypes.byref(number)),
        number.value,
        driver("cuCtxPopCurrent_v2", ctypes.byref(current)),
        current.value == context.value,
        driver("cuCtxGetDevice", ctypes.byref(number)),
        number.value,
        driver("cuCtxSetCurrent", 0x1000),
        driver("cuGetErrorName", 2, ctypes.byref(word)),
        (word.value or b"").decode(),
    ]
    for address in (device, pinned, host):
        code = driver("cuPointerGetAttribute", ctypes.byref(number), 2, address)
        answers.append([code, number.value])
    base = ctypes.c_size_t()
    answers += [
        driver("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), device + 5),
        base.value == device,
    ]
    return answers


def nvml_answers(runtime: SimulatedRuntime) -> Answer:
    cuda, _, nvml = faces(runtime)
    count, name, uuid = ctypes.c_uint(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    memory, processes, room = (ctypes.c_ulonglong * 3)(), (ctypes.c_ulonglong * 3)(), ctypes.c_uint(1)
    cuda.device(1 << 20)
    answers: Answer = [nvml("nvmlDeviceGetCount_v2", ctypes.byref(count)), nvml("nvmlInit_v2")]
    answers += [nvml("nvmlDeviceGetCount_v2", ctypes.byref(count)), count.value]
    handle = ctypes.c_size_t()
    answers.append(nvml("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle)))
    device = handle.value
    answers += [nvml("nvmlDeviceGetName", device, name, 96), name.value.decode()]
    answers += [nvml("nvmlDeviceGetUUID", device, uuid, 96), uuid.value[:4].decode(), len(uuid.value)]
    answers += [nvml("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(handle)), handle.value == device]
    answers += [nvml("nvmlDeviceGetMemoryInfo", device, memory), memory[0] // _GIB, memory[2]]
    answers += [
        nvml("nvmlDeviceGetComputeRunningProcesses", device, ctypes.byref(room), processes),
        room.value,
        processes[1],
    ]
    answers += [
        nvml("nvmlDeviceGetHandleByIndex_v2", 9, ctypes.byref(handle)),
        nvml("nvmlDeviceGetName", 0x1000, name, 96),
    ]
    return [*answers, nvml("nvmlShutdown"), nvml("nvmlShutdown")]


SCENARIOS: tuple[Simulated, ...] = (
    driver_answers,
    nvml_answers,
)
