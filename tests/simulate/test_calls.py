"""What the simulator tells its listener, and what it says of calls that it does not simulate."""

from __future__ import annotations

Answers = dict[str, object]

# api, class, bytes, rows, destination, source, blocking, device, capturing, result
EVENTS = [
    ["cudaMalloc", "ALLOC", 4096, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaHostAlloc", "ALLOC", 4096, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_STALL", 100, 1, "DEVICE", "PAGEABLE", False, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_ASYNC", 100, 1, "DEVICE", "PINNED", False, 0, False, 0],
    ["cudaMemcpy", "COPY_STALL", 100, 1, "DEVICE", "PINNED", True, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_STALL", 100, 1, "PAGEABLE", "DEVICE", False, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_ASYNC", 100, 1, "PINNED", "DEVICE", False, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_STALL", 100, 1, "PAGEABLE", "PAGEABLE", False, 0, False, 0],
    ["cudaMemcpy", "COPY_ASYNC", 100, 1, "DEVICE", "DEVICE", True, 0, False, 0],
    ["cudaMemcpy2DAsync", "COPY_STALL", 32, 4, "DEVICE", "PAGEABLE", False, 0, False, 0],
    ["cudaMemsetAsync", "COPY_ASYNC", 100, 1, "DEVICE", "DEVICE", False, 0, False, 0],
    ["cudaMemset", "COPY_STALL", 100, 1, "PINNED", "PINNED", True, 0, False, 0],
    ["cudaMemcpy", "COPY_STALL", 4097, 1, "DEVICE", "PINNED", True, 0, False, 1],
    ["cudaStreamSynchronize", "SYNC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaEventSynchronize", "SYNC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaDeviceSynchronize", "SYNC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaMemcpyAsync", "COPY_ASYNC", 100, 1, "DEVICE", "PINNED", False, 0, True, 0],
    ["cudaStreamSynchronize", "SYNC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, True, 900],
    ["cudaMemcpyAsync", "COPY_STALL", 100, 1, "DEVICE", "PINNED", False, 0, True, 901],
    ["cudaFree", "ALLOC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaFree", "ALLOC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 1],
    ["cudaFreeHost", "ALLOC", 0, 1, "PAGEABLE", "PAGEABLE", True, 0, False, 0],
    ["cudaMemcpy", "COPY_STALL", 8, 1, "PAGEABLE", "PAGEABLE", True, 1, False, 1],
]


def test_events_carry_call_size_kinds_and_result(simulated: Answers) -> None:
    assert simulated["events"] == EVENTS


def test_the_listener_runs_on_the_calling_thread(simulated: Answers) -> None:
    assert simulated["event_threads"] == [[True, True], True]


def test_only_classes_that_were_asked_for_reach_python(simulated: Answers) -> None:
    answer = simulated["classes"]
    assert isinstance(answer, list)
    nobody, sync, stall, asynchronous, alloc, nested, after = answer
    assert nobody == []
    assert sync == ["cudaDeviceSynchronize"]
    assert stall == ["cudaMemcpy"]
    assert asynchronous == ["cudaMemcpyAsync"]
    assert alloc == ["cudaMalloc", "cudaFree"]
    assert nested == ["cudaStreamSynchronize"], "calls of the listener itself are not events"
    assert after == 1, "and none comes after listen(None)"


def test_what_is_not_simulated_is_named_once(simulated: Answers) -> None:
    answer = simulated["unsupported"]
    assert isinstance(answer, list)
    before, nvml, driver, untouched, ipc, remembered, ipc_again, attribute, value, names = answer
    assert before == []
    assert (nvml, driver, ipc, ipc_again, attribute) == (3, 801, 801, 801, 801)
    assert (untouched, remembered, value) == (0, 801, 0), "only the runtime's own calls set its last error"
    assert names == ["nvmlDeviceGetGpuFabricInfoV", "cuMemCreate", "cudaIpcGetMemHandle", "cuDeviceGetAttribute(21)"]


def test_launches_of_every_form_are_recorded_and_not_run(simulated: Answers) -> None:
    answer = simulated["launches"]
    assert isinstance(answer, list)
    codes, calls, recorded, refused, unchanged, captured, nodes = answer
    assert codes == [0] * 7
    assert calls == [
        ["cudaLaunchKernel", "my_kernel"],
        ["cudaLaunchCooperativeKernel", "my_kernel"],
        ["cudaLaunchKernelExC", "my_kernel"],
        ["cudaLaunchKernel", "my_kernel"],  # __cudaLaunchKernel, to which CUDA 13 compiles the <<<>>> syntax
        ["cuLaunchKernel", "jitted"],
        ["cuLaunchCooperativeKernel", "jitted"],
        ["cuLaunchKernelEx", "jitted"],
        ["cudaLaunchKernel", "my_kernel"],
    ]
    assert (recorded, unchanged) == (7, True)
    assert refused == [9, 9, 1, 1, 400, 400], "1024 threads, no blocks, too much shared memory, no kernel, no stream"
    assert (captured, nodes) == (True, 1)


def test_kernels_come_from_images_in_memory_and_in_files(simulated: Answers) -> None:
    loaded = [0, 0, 0, 400]  # its kernel, a launch, unloaded, unloaded twice
    assert simulated["modules"] == [loaded, loaded, loaded, 301, 301, 1]


def test_a_kernel_has_the_versions_of_the_image_that_the_card_takes(simulated: Answers) -> None:
    assert simulated["images"] == [
        [0, 90, 90],
        [0, 80, 90],  # compiled at load, from the newest PTX
        [0, 90, 90],
        [0, 70, 90],  # not from PTX for one minor version only
        [0, 90, 90],  # none fits, none is known: as if there were one for the card
        [0, 90, 90],
    ]


def test_the_driver_knows_device_context_and_pointers(simulated: Answers) -> None:
    assert simulated["driver_answers"] == [
        0, 0, "NVIDIA H100 80GB HBM3", 0, True, 0, 1980000, 0, 2619000,
        0, 0, 0, 1, 0, True, 0, 0, 201, 0, "CUDA_ERROR_OUT_OF_MEMORY",
        [0, 2], [0, 1], [1, 1], 0, True,
    ]  # fmt: skip


def test_nvml_knows_the_same_devices(simulated: Answers) -> None:
    mebibyte = 1 << 20
    assert simulated["nvml_answers"] == [
        1, 0, 0, 2, 0, 0, "NVIDIA H100 80GB HBM3", 0, "GPU-", 40, 0, True,
        0, 80, mebibyte, 0, 1, mebibyte, 2, 2, 0, 1,
    ]  # fmt: skip
