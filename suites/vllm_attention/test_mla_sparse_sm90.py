"""Host-side planning of vLLM's FLASHINFER_MLA_SPARSE_SM90, with FlashInfer's real planner: no kernel of either runs."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinvariants import InvariantViolation, known_fault, no_implicit_sync, requires_sm90

from .harness import (
    BACKEND_MODULE,
    BATCHES,
    BUFFERS,
    KERNELS,
    NOPE_BF16,
    SMALL,
    Buffers,
    Kernel,
    Planner,
    import_or_skip,
)
from .properties import balance_faults, coverage_faults, merge_faults
from .reference import MAX_WORK_ITEMS, differences

pytestmark = [
    requires_sm90(host_only=True),
    # vLLM 0.33.0 calls the wrapper in an older form, which is not what is tested here.
    pytest.mark.filterwarnings("ignore:(Positional MLA|Passing flat Batch).*deprecated:DeprecationWarning"),
]

STAGING_COPY = (
    "pageable-copy:cudaMemcpyAsync:H2D"
    "@flashinfer.mla._batch_mla._backends._fa_common._BatchMLAGeneratedFaMechanics._stage_metadata"
)
# Positions in wrapper.plan's arguments.
QO_INDPTR, KV_INDPTR, KV_LENS = 0, 1, 3

each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
each_size = pytest.mark.parametrize("buffers", BUFFERS, ids=lambda buffers: buffers.label)


@known_fault(
    STAGING_COPY,
    package="vllm",
    versions=">=0.33.0,<0.34",
    called_from=f"{BACKEND_MODULE}._SM90State._plan",
    reason="vLLM stages qo_indptr, kv_indptr and kv_len_arr in pageable CPU tensors",
)
@each_kernel
@each_size
@pytest.mark.parametrize("batch", ["one-token", "many-tokens", "max-tokens"])
def test_planning_as_released(kernel: Kernel, buffers: Buffers, batch: str) -> None:
    """The three metadata tensors are pageable: their copies may hold the host until the stream has drained."""
    planner = Planner(kernel, buffers)
    planner.warm_up()
    lens = planner.lens_tensor(BATCHES[batch](buffers))
    with no_implicit_sync():
        planner.plan_tensor(lens)


@each_kernel
@each_size
@pytest.mark.parametrize("batch", BATCHES)
def test_planning_from_fresh_pinned_tensors(kernel: Kernel, buffers: Buffers, batch: str) -> None:
    """The fixed form never waits, and still plans the right numbers."""
    planner = Planner(kernel, buffers)
    planner.pin()
    planner.warm_up()
    lens = BATCHES[batch](buffers)
    tensor = planner.lens_tensor(lens)
    with no_implicit_sync():
        planner.plan_tensor(tensor)
    assert planner.metadata_faults(lens) == []
    assert differences(planner.workspace(), planner.expected(lens)) == []


@pytest.mark.parametrize("position", [QO_INDPTR, KV_INDPTR, KV_LENS], ids=["qo_indptr", "kv_indptr", "kv_len_arr"])
def test_one_tensor_left_pageable_is_found(position: int) -> None:
    """Each of the three must be pinned: the check is not satisfied by two."""
    planner = Planner(NOPE_BF16, SMALL)
    planner.pin(pageable=[position])
    planner.warm_up()
    lens = planner.lens_tensor(BATCHES["many-tokens"](SMALL))
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync():
        planner.plan_tensor(lens)
    assert [finding.id for finding in caught.value.findings] == [STAGING_COPY]


@each_kernel
@each_size
def test_replanning_from_fresh_pinned_tensors(kernel: Kernel, buffers: Buffers) -> None:
    """Batches of all sizes in turn, into the same buffers: nothing of an earlier plan may survive."""
    planner = Planner(kernel, buffers)
    planner.pin()
    planner.warm_up()
    addresses = planner.addresses()
    for batch in ("max-tokens", "one-token", "empty-rows", "many-tokens", "no-token", "max-keys", "one-key"):
        lens = BATCHES[batch](buffers)
        tensor = planner.lens_tensor(lens)
        with no_implicit_sync():
            planner.plan_tensor(tensor)
        assert planner.metadata_faults(lens) == [], batch
        assert differences(planner.workspace(), planner.expected(lens)) == [], batch
        assert planner.addresses() == addresses, f"{batch}: a captured graph would read the old buffers"


@each_size
def test_replanning_the_same_lengths_changes_nothing(buffers: Buffers) -> None:
    """Pinned and pageable tensors give one plan, and so does planning again."""
    lens = BATCHES["many-tokens"](buffers)
    planner = Planner(NOPE_BF16, buffers)
    planner.plan(lens)
    released = planner.info, planner.workspace(), planner.saved_kv_end()
    planner.pin()
    planner.warm_up()
    tensor = planner.lens_tensor(lens)
    for _ in range(2):
        with no_implicit_sync():
            planner.plan_tensor(tensor)
        assert (planner.info, planner.workspace(), planner.saved_kv_end()) == released


def test_pinned_tensors_are_fresh_in_every_call() -> None:
    """Reusing pinned staging buffers would pass the sync check and corrupt the transfer still in flight."""
    planner = Planner(NOPE_BF16, SMALL)
    calls: list[list[Any]] = []
    plan = planner.state.wrapper.plan

    def keep(*args: Any, **kwargs: Any) -> None:
        calls.append([args[QO_INDPTR], args[KV_INDPTR], args[KV_LENS]])
        plan(*args, **kwargs)

    planner.state.wrapper.plan = keep
    planner.pin()
    first, second = BATCHES["many-tokens"](SMALL), BATCHES["one-token"](SMALL)
    planner.plan(first)
    planner.plan(second)

    assert all(tensor.is_pinned() for call in calls for tensor in call)
    assert len({tensor.data_ptr() for call in calls for tensor in call}) == 2 * 3
    assert [call[2].tolist() for call in calls] == [planner.padded(first), planner.padded(second)]


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("pinned", [False, True], ids=["as-released", "pinned"])
def test_planning_inside_capture_is_refused(pinned: bool) -> None:
    """The refusal is plan()'s own, not CUDA's; it leaves the plan before it untouched."""
    planner = Planner(NOPE_BF16, SMALL)
    if pinned:
        planner.pin()
    lens = BATCHES["many-tokens"](SMALL)
    planner.plan(lens)
    before = planner.info, planner.workspace()
    graph = planner.torch.cuda.CUDAGraph()
    with (
        planner.torch.cuda.graph(graph),
        pytest.raises(RuntimeError, match=r"plan\(\) called inside CUDA graph capture"),
    ):
        planner.plan(BATCHES["one-token"](SMALL))
    assert (planner.info, planner.workspace()) == before
    planner.plan(BATCHES["one-token"](SMALL))
    assert differences(planner.workspace(), planner.expected(BATCHES["one-token"](SMALL))) == []


@each_kernel
@each_size
@pytest.mark.parametrize("batch", BATCHES)
def test_numbers(kernel: Kernel, buffers: Buffers, batch: str) -> None:
    """All that the planner leaves behind, for every kernel, size and batch."""
    check_numbers(Planner(kernel, buffers), BATCHES[batch](buffers))


@pytest.mark.parametrize("num_heads", [1, 8, 64, 96, 128])
@pytest.mark.parametrize("batch", BATCHES)
def test_numbers_by_heads(num_heads: int, batch: str) -> None:
    """From 65 packed queries a row on average, blocks work in pairs and tiles double; 96 leaves a tile half full."""
    check_numbers(Planner(NOPE_BF16, SMALL, num_heads), BATCHES[batch](SMALL))


@pytest.mark.parametrize("keys", [1, 32, 33, 511, 512, 1023, 1024, 2047, 2048])
def test_numbers_of_one_row(keys: int) -> None:
    """One row is split over many clusters: every step of the chunk limit, and its edges."""
    check_numbers(Planner(NOPE_BF16, Buffers("one-row", 8, 2048)), [keys])


def check_numbers(planner: Planner, lens: list[int]) -> None:
    """Plan rows of ``lens`` keys; compare all that the planner left behind with the reference."""
    planner.plan(lens)
    expected, planned = planner.expected(lens), planner.workspace()

    assert planner.info == expected.info
    assert differences(planned, expected) == []
    assert planner.saved_kv_end() == [work.kv_end for work in planned.works]
    assert planner.metadata_faults(lens) == []
    assert planner.state.wrapper._planned_backend._staged_int_workspace_bytes == expected.staged_bytes

    heads, tile_rows = planner.num_heads, expected.tile_rows
    q_lens, kv_lens = planner.q_lens(lens), planner.padded(lens)
    assert coverage_faults(planned, q_lens, kv_lens, num_heads=heads, tile_rows=tile_rows) == []
    assert balance_faults(planned, tile_rows=tile_rows) == []
    capacity = expected.partial_capacity
    assert merge_faults(planned, num_heads=heads, tile_rows=tile_rows, partial_capacity=capacity) == []
    assert all(work.kv_end - work.kv_start <= expected.chunk_keys for work in planned.works)


def test_more_items_than_the_workspace_holds_are_refused() -> None:
    """FlashInfer's workspace holds 16,384 items: more must be an error, not a write past the arrays.

    So many rows are vLLM's default batch for offline use of an H100. Planned from exact lengths, a few long rows among
    short prompts are split, and then the batch does not fit. The plan before stays as it was.
    """
    planner = Planner(NOPE_BF16, Buffers("offline", MAX_WORK_ITEMS, 2048))
    prompts = [1 + row % 16 for row in range(MAX_WORK_ITEMS)]
    planner.plan(prompts)
    before = planner.workspace()
    assert len(before.works) == MAX_WORK_ITEMS
    assert differences(before, planner.expected(prompts)) == []
    with pytest.raises(ValueError, match=str(MAX_WORK_ITEMS)):
        planner.plan([*prompts[:-32], *[2048] * 32])
    assert planner.workspace() == before


def test_the_backend_is_the_registered_one() -> None:
    """The state under test belongs to the backend that vLLM resolves by this name, and it takes this device."""
    module = import_or_skip(BACKEND_MODULE)
    registry = import_or_skip("vllm.v1.attention.backends.registry")
    capability = import_or_skip("vllm.platforms").current_platform.get_device_capability()
    backend = registry.AttentionBackendEnum.FLASHINFER_MLA_SPARSE_SM90.get_class()
    assert backend is module.FlashInferMLASparseSM90Backend
    assert module._SM90State.__module__ == backend.__module__
    assert backend.supports_compute_capability(capability)
