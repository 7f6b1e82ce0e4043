"""What needs the card itself: the clamp of the planned ends, and that a pinned plan drives the attention kernel."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuinvariants import no_implicit_sync, requires_sm90

from .harness import BATCHES, KERNELS, KV_LORA_RANK, NOPE_BF16, SMALL, Kernel, Planner
from .reference import PlannedWorkspace, Work, differences

pytestmark = [
    requires_sm90,
    # vLLM 0.33.0 calls the wrapper in an older form, which is not what is tested here.
    pytest.mark.filterwarnings("ignore:(Positional MLA|Passing flat|Legacy).*deprecated:DeprecationWarning"),
]

# Keys by which vLLM plans past its upper bound, so that a plan serves several decode steps.
SLACK = 32
CACHE_SLOTS = 4096


class Requests:
    """A batch of requests on the device, and what vLLM must make of it: each with so many keys, queries included."""

    def __init__(self, planner: Planner, seq_lens: list[int], q_lens: list[int]) -> None:
        torch, state = planner.torch, planner.state
        ends = [sum(q_lens[: index + 1]) for index in range(len(q_lens))]
        rows = [
            (request, row)
            for request, q_len in enumerate(q_lens)
            for row in range(ends[request] - q_len, ends[request])
        ]
        contexts = [seq_lens[request] - ends[request] + row + 1 for request, row in rows]
        topk, pool = state.index_topk, state.index_kpool
        self.valid = [keys if keys <= topk else topk + keys % pool for keys in contexts]
        self.upper = [min(keys, state.max_valid) for keys in contexts]
        self.upper_tensor = planner.lens_tensor(self.upper)
        self.cam = SimpleNamespace(
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device="cuda"),
            query_start_loc=torch.tensor([0, *ends], dtype=torch.int32, device="cuda"),
        )
        self.req_id_per_token = torch.tensor([request for request, _ in rows], dtype=torch.int32, device="cuda")

    def plan(self, planner: Planner) -> None:
        """Plan from the host's upper bounds; the device clamps to what is valid."""
        planner.state.plan(len(self.upper), self.upper_tensor, self.cam, self.req_id_per_token)


def clamped(planned: PlannedWorkspace, valid: list[int]) -> list[Work]:
    """The items with their ends cut to each row's valid keys; rows have one query, so a row's number is its query's."""
    return [replace(work, kv_end=max(min(work.kv_end, valid[work.q_indptr]), work.kv_start)) for work in planned.works]


@pytest.mark.parametrize("index_kpool", [1, 4])
def test_ends_are_clamped_to_the_valid_keys(index_kpool: int) -> None:
    """Plan once from upper bounds, then clamp on the device, step by step, without waiting for it."""
    planner = Planner(NOPE_BF16, SMALL, index_kpool=index_kpool)
    planner.pin()
    planner.warm_up()
    plans: list[int] = []
    replan = planner.state.wrapper.plan

    def count(*args: Any, **kwargs: Any) -> None:
        plans.append(len(plans))
        replan(*args, **kwargs)

    planner.state.wrapper.plan = count
    q_lens = [1, 4, 1, 2, 1]
    steps = [[3, 40, 255, 1000, 1], [4, 41, 256, 1001, 2], [30, 70, 280, 1031, 30]]
    batches = [Requests(planner, seq_lens, q_lens) for seq_lens in steps]
    far = Requests(planner, [90, 130, 340, 1090, 90], q_lens)
    batches[0].plan(planner)
    planner.torch.cuda.synchronize()

    planned_lens = [min(keys + SLACK, planner.state.max_valid) for keys in batches[0].upper]
    expected = planner.expected(planned_lens)
    for requests in batches:
        with no_implicit_sync():
            requests.plan(planner)
        works = planner.workspace()
        ends = iter(planner.saved_kv_end())
        unclamped = replace(
            works, clusters=tuple(tuple(replace(w, kv_end=next(ends)) for w in cluster) for cluster in works.clusters)
        )
        assert differences(unclamped, expected) == []
        assert list(works.works) == clamped(unclamped, requests.valid)
    assert len(plans) == 1, "a plan within the slack must serve the following steps"

    with no_implicit_sync():
        far.plan(planner)
    assert len(plans) == 2
    assert all(w.kv_end <= far.valid[w.q_indptr] or w.kv_end == w.kv_start for w in planner.workspace().works)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.label)
@pytest.mark.parametrize("batch", ["one-token", "many-tokens", "max-keys"])
def test_attention_from_a_pinned_plan(kernel: Kernel, batch: str) -> None:
    """The kernel's output against attention in float32 over each row's own slots."""
    planner = Planner(kernel, SMALL)
    planner.pin()
    planner.warm_up()
    torch = planner.torch
    torch.manual_seed(0)
    lens = BATCHES[batch](SMALL)
    head_size = KV_LORA_RANK + kernel.rope_dim
    cache = torch.randn(CACHE_SLOTS, 1, head_size, device="cuda").to(planner.state.kv_dtype)
    query = torch.randn(len(lens), planner.num_heads, head_size, device="cuda").to(torch.bfloat16)
    slots = torch.full((len(lens), SMALL.topk), -1, dtype=torch.int32, device="cuda")
    for row, keys in enumerate(lens):
        slots[row, :keys] = torch.randperm(CACHE_SLOTS, device="cuda")[:keys]

    tensor = planner.lens_tensor(lens)
    with no_implicit_sync():
        planner.plan_tensor(tensor)
    planner.state.pack_indices(slots)
    scales = {} if kernel.kv_dtype == "bfloat16" else {"ckv_scale": 1.0, "kpe_scale": 1.0}
    out = planner.state.wrapper.run(
        query[..., :KV_LORA_RANK].contiguous(),
        query[..., KV_LORA_RANK:].contiguous(),
        cache[..., :KV_LORA_RANK],
        cache[..., KV_LORA_RANK:],
        **scales,
    )

    keys_and_values = cache[:, 0].float()
    for row, keys in enumerate(lens):
        selected = keys_and_values[slots[row, :keys].long()]
        weights = (query[row].float() @ selected.T * planner.state.sm_scale).softmax(-1)
        torch.testing.assert_close(out[row].float(), weights @ selected[:, :KV_LORA_RANK], rtol=2e-2, atol=2e-2)
