"""The reference and the property checks themselves: a case worked by hand, and that each check can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .properties import balance_faults, coverage_faults, merge_faults
from .reference import Merge, Plan, PlannedWorkspace, Work, chunk_limit, differences, plan_mla, read_workspace

HEADS = 16
Q_LENS = [1, 1, 1, 0]
KV_LENS = [100, 0, 30, 0]


def small_plan() -> Plan:
    """130 keys in three rows on four multiprocessors: 33 keys a cluster, so chunks of 192, so nothing is split."""
    return plan_mla(Q_LENS, KV_LENS, num_heads=HEADS, head_dim_ckv=512, sm_count=4)


def split_plan() -> Plan:
    """The same rows on 132 multiprocessors: 1 key a cluster, so chunks of 32, so the first row is cut in four."""
    return plan_mla(Q_LENS, KV_LENS, num_heads=HEADS, head_dim_ckv=512, sm_count=132)


def dealt(plan: Plan) -> PlannedWorkspace:
    """A workspace with the items dealt out as they must be, the first of the least loaded clusters first."""
    lists: list[list[Work]] = [[] for _ in range(plan.clusters)]
    loads = [0] * plan.clusters
    for work in plan.works:
        cluster = loads.index(min(loads))
        loads[cluster] += 2 * plan.tile_rows + work.kv_end - work.kv_start
        lists[cluster].append(work)
    padding = (Merge(0, 0, 0, 0, 0),) * (plan.clusters * plan.cluster_size - len(plan.merges))
    return PlannedWorkspace(tuple(map(tuple, lists)), plan.merges + padding)


def faults(planned: PlannedWorkspace, plan: Plan) -> list[str]:
    """Faults of the planned workspace by every property."""
    rows, capacity = plan.tile_rows, plan.partial_capacity
    return [
        *coverage_faults(planned, Q_LENS, KV_LENS, num_heads=HEADS, tile_rows=rows),
        *balance_faults(planned, tile_rows=rows),
        *merge_faults(planned, num_heads=HEADS, tile_rows=rows, partial_capacity=capacity),
    ]


def with_work(planned: PlannedWorkspace, index: int, **changes: int) -> PlannedWorkspace:
    """The workspace with one item changed."""
    old = planned.works[index]
    new = replace(old, **changes)
    clusters = tuple(tuple(new if work is old else work for work in cluster) for cluster in planned.clusters)
    return replace(planned, clusters=clusters)


def without_work(planned: PlannedWorkspace, index: int) -> PlannedWorkspace:
    """The workspace with one item missing."""
    old = planned.works[index]
    return replace(planned, clusters=tuple(tuple(w for w in c if w is not old) for c in planned.clusters))


def test_by_hand_unsplit() -> None:
    """Three live rows fit one item each."""
    plan = small_plan()
    assert (plan.cluster_size, plan.clusters, plan.chunk_keys, plan.merges) == (1, 4, 192, ())
    assert plan.works == (
        Work(0, 0, -1, q_len=1, kv_len=100, q_start=0, kv_start=0, kv_end=100),
        Work(1, 100, -1, q_len=1, kv_len=0, q_start=0, kv_start=0, kv_end=0),
        Work(2, 100, -1, q_len=1, kv_len=30, q_start=0, kv_start=0, kv_end=30),
    )


def test_by_hand_split() -> None:
    """100 keys in chunks of 32, each with 16 partial rows: one for each head."""
    plan = split_plan()
    assert plan.chunk_keys == 32
    assert [(w.kv_start, w.kv_end, w.partial_indptr) for w in plan.works] == [
        (0, 32, 0),
        (32, 64, 16),
        (64, 96, 32),
        (96, 100, 48),
        (0, 0, -1),
        (0, 30, -1),
    ]
    # 100 // 32 = 3 blocks share 16 rows: 6, 6 and 4.
    assert plan.merges == (Merge(0, 6, 0, 64, 16), Merge(6, 12, 6, 64, 16), Merge(12, 16, 12, 64, 16))


def test_by_hand_layout() -> None:
    """Numbers seen on an H200: the planner stages 592,464 bytes."""
    info = split_plan().info
    assert (info.num_blks_x, info.num_blks_y, info.q_indptr, info.kv_indptr) == (1, 132, 0, 65536)
    assert info.merge_packed_start == 3 * 65536
    assert info.q_len == 3 * 65536 + 5 * 132 * 4
    assert split_plan().staged_bytes == 592464
    assert info.partial_lse == 2 * 132 * 64 * 512 * 2


def test_pairs_of_blocks_from_65_queries_a_row() -> None:
    """64 packed queries fill one block, 65 need two."""
    assert plan_mla([1], [8], num_heads=64, head_dim_ckv=512, sm_count=132).cluster_size == 1
    assert plan_mla([1], [8], num_heads=65, head_dim_ckv=512, sm_count=132).cluster_size == 2


@pytest.mark.parametrize(("average", "keys"), [(1, 32), (8, 32), (9, 64), (33, 192), (65, 256), (256, 256), (257, 512)])
def test_chunk_limit(average: int, keys: int) -> None:
    """Small averages have steps, large ones multiples of 256."""
    assert chunk_limit(average) == keys


@pytest.mark.parametrize("plan", [small_plan(), split_plan()], ids=["unsplit", "split"])
def test_a_right_workspace_has_no_faults(plan: Plan) -> None:
    """The checks accept what is right."""
    assert differences(dealt(plan), plan) == []
    assert faults(dealt(plan), plan) == []


@pytest.mark.parametrize("plan", [small_plan(), split_plan()], ids=["unsplit", "split"])
@pytest.mark.parametrize("name", Work.__dataclass_fields__)
def test_every_number_of_an_item_is_compared(plan: Plan, name: str) -> None:
    """No field of no item may be off by one."""
    planned = dealt(plan)
    for index, work in enumerate(planned.works):
        assert differences(with_work(planned, index, **{name: getattr(work, name) + 1}), plan)


@pytest.mark.parametrize("name", Merge.__dataclass_fields__)
def test_every_number_of_a_merge_entry_is_compared(name: str) -> None:
    """No field of a merge entry, of the zero padding neither, may be off by one."""
    plan = split_plan()
    planned = dealt(plan)
    for index in (0, 2, 3):
        entry = planned.merges[index]
        wrong = replace(entry, **{name: getattr(entry, name) + 1})
        merges = (*planned.merges[:index], wrong, *planned.merges[index + 1 :])
        assert differences(replace(planned, merges=merges), plan)


def test_an_item_on_a_loaded_cluster_is_found() -> None:
    """All the right items, unfairly dealt."""
    plan = small_plan()
    first, second, *rest = dealt(plan).clusters
    assert differences(PlannedWorkspace(((*first, *second), (), *rest), dealt(plan).merges), plan)


@pytest.mark.parametrize(
    ("index", "changes", "fault"),
    [
        (1, {"kv_start": 31}, "the next chunk starts at 31"),
        (1, {"kv_start": 33}, "the next chunk starts at 33"),
        (3, {"kv_end": 99}, "the row has 100"),
        (3, {"kv_end": 101}, "the row has 100"),
        (5, {"q_indptr": 3}, "of no tile"),
        (5, {"q_start": 64}, "of no tile"),
        (1, {"partial_indptr": 0}, "written twice"),
        (1, {"partial_indptr": 64}, "merges partial rows"),
        (1, {"partial_indptr": 2 * 132 * 64 - 15}, "past the workspace"),
        (5, {"partial_indptr": 64}, "never merged"),
    ],
)
def test_properties_can_fail(index: int, changes: dict[str, int], fault: str) -> None:
    """One number of one item is wrong, and a property says so."""
    plan = split_plan()
    assert any(fault in found for found in faults(with_work(dealt(plan), index, **changes), plan))


@pytest.mark.parametrize("index", range(6))
def test_a_missing_item_is_found(index: int) -> None:
    """Also the item of the row without keys."""
    plan = split_plan()
    assert coverage_faults(without_work(dealt(plan), index), Q_LENS, KV_LENS, num_heads=HEADS, tile_rows=plan.tile_rows)


def test_an_item_done_twice_is_found() -> None:
    """Keys counted twice are as wrong as keys left out."""
    plan = small_plan()
    first, *rest = dealt(plan).clusters
    twice = PlannedWorkspace((first * 2, *rest), dealt(plan).merges)
    assert coverage_faults(twice, Q_LENS, KV_LENS, num_heads=HEADS, tile_rows=plan.tile_rows)


def test_an_overloaded_cluster_is_found() -> None:
    """Everything on one cluster."""
    plan = split_plan()
    planned = PlannedWorkspace((plan.works, *[()] * (plan.clusters - 1)), dealt(plan).merges)
    assert balance_faults(planned, tile_rows=plan.tile_rows)


def test_a_dropped_merge_entry_is_found() -> None:
    """Partial rows that nobody adds up."""
    plan = split_plan()
    planned = replace(dealt(plan), merges=dealt(plan).merges[1:])
    assert any("never merged" in fault for fault in faults(planned, plan))


def test_reading_a_workspace() -> None:
    """Write a workspace of two items in two clusters at made-up places, and read it back."""
    info = replace(small_plan().info, num_blks_y=2, work_indptr=0)
    offsets = {name: 64 + 32 * at for at, name in enumerate(list(info.__dataclass_fields__)[2:15])}
    info = replace(info, **offsets)
    words = [0, 1, 2, *[7] * 200]
    for name, offset in offsets.items():
        start = offset // 4
        words[start : start + 4] = [offset, offset + 1, 0, 0] if not name.startswith("merge") else [5, 6, 0, 0]
    planned = read_workspace(words, info, sm_count=3)
    assert [len(cluster) for cluster in planned.clusters] == [1, 1]
    assert planned.works[0] == Work(*(getattr(info, name) for name in Work.__dataclass_fields__))
    assert planned.works[1] == Work(*(getattr(info, name) + 1 for name in Work.__dataclass_fields__))
    assert planned.merges == (Merge(5, 5, 5, 5, 5), Merge(6, 6, 6, 6, 6), Merge(0, 0, 0, 0, 0))
