"""What FlashInfer's MLA planner must compute, worked out with plain Python lists.

Words, as FlashInfer uses them:

*row*: one entry of the batch, ``q_len`` query tokens that attend ``kv_len`` keys. *Packed* query index: token and head
fused, ``token * num_heads + head``. *Tile*: up to ``64 * cluster_size`` consecutive packed queries of one row.
*Work item*: one tile against one chunk of the row's keys. *Cluster*: one or two thread blocks that work through a list
of items. *Partial row*: one packed query's unfinished output of one chunk; *merge entries* say which partial rows make
up which output rows.

Which of several equally loaded clusters gets the next item is not specified: it depends on the C++ library's heap. So
the reference computes the items, in the order in which they are handed out, and everything else exactly; for a given
assignment of items to clusters it says whether each item went to a least loaded cluster.

Only the non-causal plan with a page size of 1 is covered, the one that sparse MLA uses: causality is encoded in the
top-k selection, and the selected slots are the page table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise

TILE_ROWS_PER_BLOCK = 64
MAX_WORK_ITEMS = 16384
INT_BYTES = 4
ALIGNMENT = 16
PARTIAL_OUTPUT_BYTES = 2
PARTIAL_LSE_BYTES = 4

# Average keys per cluster, up to which a chunk has so many keys. Above the last, multiples of 256.
_CHUNK_STEPS = ((8, 32), (16, 64), (32, 128), (64, 192))
_CHUNK_MULTIPLE = 256


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """The planner's 18 numbers, in its order: the grid, and byte offsets into the int and the float workspace."""

    num_blks_x: int
    num_blks_y: int
    q_indptr: int
    kv_indptr: int
    partial_indptr: int
    merge_packed_start: int
    merge_packed_end: int
    merge_partial_start: int
    merge_partial_end: int
    merge_partial_stride: int
    q_len: int
    kv_len: int
    q_start: int
    kv_start: int
    kv_end: int
    work_indptr: int
    partial_o: int
    partial_lse: int


@dataclass(frozen=True, order=True, slots=True)
class Work:
    """One work item.

    ``q_indptr`` and ``kv_indptr`` are the row's first query token and first slot in the page table, ``q_start`` the
    tile's first packed query within the row, ``[kv_start, kv_end)`` the chunk of the row's keys. ``partial_indptr`` is
    the first partial row that the item writes, or -1 when it writes the output itself.
    """

    q_indptr: int
    kv_indptr: int
    partial_indptr: int
    q_len: int
    kv_len: int
    q_start: int
    kv_start: int
    kv_end: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Packed output rows ``[packed_start, packed_end)`` and the partial rows that they are made of.

    Row ``packed_start + i`` adds up partial rows ``partial_start + i``, ``+ partial_stride``, … below ``partial_end``.
    """

    packed_start: int
    packed_end: int
    partial_start: int
    partial_end: int
    partial_stride: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The expected plan; ``works`` in the order in which they are handed to the clusters."""

    info: PlanInfo
    cluster_size: int
    clusters: int
    chunk_keys: int
    works: tuple[Work, ...]
    merges: tuple[Merge, ...]
    staged_bytes: int

    @property
    def tile_rows(self) -> int:
        """Most packed queries of one tile."""
        return TILE_ROWS_PER_BLOCK * self.cluster_size

    @property
    def partial_capacity(self) -> int:
        """Partial rows that the float workspace has room for."""
        return 2 * self.clusters * self.tile_rows


@dataclass(frozen=True, slots=True)
class PlannedWorkspace:
    """The live part of an int workspace: one work list per cluster, and the merge entries with their zero padding."""

    clusters: tuple[tuple[Work, ...], ...]
    merges: tuple[Merge, ...]

    @property
    def works(self) -> tuple[Work, ...]:
        """Every item, in workspace order: cluster by cluster."""
        return tuple(work for cluster in self.clusters for work in cluster)


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def chunk_limit(average_keys: int) -> int:
    """Most keys of one work item, when the clusters would get ``average_keys`` each."""
    for most, keys in _CHUNK_STEPS:
        if average_keys <= most:
            return keys
    return ceil_div(average_keys, _CHUNK_MULTIPLE) * _CHUNK_MULTIPLE


def plan_mla(
    q_lens: Sequence[int], kv_lens: Sequence[int], *, num_heads: int, head_dim_ckv: int, sm_count: int
) -> Plan:
    """The plan for rows of ``q_lens`` query tokens and ``kv_lens`` keys (both ``[batch]``), packed back to back."""
    packed = [q_len * num_heads for q_len in q_lens]
    cluster_size = 2 if sum(packed) // len(packed) > TILE_ROWS_PER_BLOCK else 1
    clusters = sm_count // cluster_size
    tile_rows = TILE_ROWS_PER_BLOCK * cluster_size

    keys = sum(ceil_div(rows, tile_rows) * kv_len for rows, kv_len in zip(packed, kv_lens, strict=True))
    limit = chunk_limit(max(ceil_div(keys, clusters), 1))

    works: list[Work] = []
    merges: list[Merge] = []
    partial_rows = 0
    first_query = [0, *accumulate(q_lens)]
    first_key = [0, *accumulate(kv_lens)]
    for row, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        for q_start in reversed(range(0, packed[row], tile_rows)):
            rows = min(tile_rows, packed[row] - q_start)
            # A row without keys still needs an item: somebody must write its empty output.
            starts = list(range(0, kv_len, limit)) or [0]
            split = len(starts) > 1
            if split:
                packed_start = first_query[row] * num_heads + q_start
                merges += _merge_entries(packed_start, rows, partial_rows, len(starts), kv_len * cluster_size // limit)
            for kv_start in starts:
                works.append(
                    Work(
                        q_indptr=first_query[row],
                        kv_indptr=first_key[row],
                        partial_indptr=partial_rows if split else -1,
                        q_len=q_len,
                        kv_len=kv_len,
                        q_start=q_start,
                        kv_start=kv_start,
                        kv_end=min(kv_start + limit, kv_len),
                    )
                )
                partial_rows += rows if split else 0
    info, staged_bytes = _layout(cluster_size, clusters, sm_count, head_dim_ckv)
    return Plan(info, cluster_size, clusters, limit, tuple(works), tuple(merges), staged_bytes)


def _merge_entries(packed_start: int, rows: int, partial_start: int, chunks: int, workers: int) -> Iterable[Merge]:
    """Spread the merging of one tile's ``rows`` output rows over about ``workers`` thread blocks."""
    step = ceil_div(rows, max(workers, 1))
    for start in range(0, rows, step):
        yield Merge(
            packed_start=packed_start + start,
            packed_end=packed_start + min(start + step, rows),
            partial_start=partial_start + start,
            partial_end=partial_start + chunks * rows,
            partial_stride=rows,
        )


def _layout(cluster_size: int, clusters: int, sm_count: int, head_dim_ckv: int) -> tuple[PlanInfo, int]:
    """Where the arrays lie, which depends on the grid alone and never on the lengths; and the bytes staged."""
    work, merge = MAX_WORK_ITEMS * INT_BYTES, sm_count * INT_BYTES
    int_offsets, staged_bytes = _back_to_back([work] * 3 + [merge] * 5 + [work] * 6)
    # Two partial tiles a cluster are enough: a chunk is no shorter than the average share.
    partial_rows = 2 * clusters * TILE_ROWS_PER_BLOCK * cluster_size
    float_offsets, _ = _back_to_back(
        [partial_rows * head_dim_ckv * PARTIAL_OUTPUT_BYTES, partial_rows * PARTIAL_LSE_BYTES]
    )
    return PlanInfo(cluster_size, clusters, *int_offsets, *float_offsets), staged_bytes


def _back_to_back(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Aligned offsets of arrays of ``sizes`` bytes, and the end of the last."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(ceil_div(end, ALIGNMENT) * ALIGNMENT)
        end = offsets[-1] + size
    return offsets, end


def read_workspace(words: Sequence[int], info: PlanInfo, sm_count: int) -> PlannedWorkspace:
    """Read an int workspace (``words``: its int32 content) with the planner's own offsets."""

    def array(name: str, count: int) -> Sequence[int]:
        start = getattr(info, name) // INT_BYTES
        return words[start : start + count]

    bounds = array("work_indptr", info.num_blks_y + 1)
    columns = [array(field.name, bounds[-1]) for field in fields(Work)]
    works = [Work(*values) for values in zip(*columns, strict=True)]
    merges = [Merge(*v) for v in zip(*(array(f"merge_{f.name}", sm_count) for f in fields(Merge)), strict=True)]
    return PlannedWorkspace(clusters=tuple(tuple(works[a:b]) for a, b in pairwise(bounds)), merges=tuple(merges))


def differences(planned: PlannedWorkspace, expected: Plan) -> list[str]:
    """Where a planned workspace departs from the reference; empty when it is what must be computed."""
    found = _first_differences("work item", sorted(planned.works), sorted(expected.works))
    padding = [Merge(0, 0, 0, 0, 0)] * (len(planned.merges) - len(expected.merges))
    found += _first_differences("merge entry", planned.merges, [*expected.merges, *padding])
    if len(planned.clusters) != expected.clusters:
        found.append(f"{len(planned.clusters)} clusters planned, {expected.clusters} expected")
    return found or assignment_faults(planned, expected)


def _first_differences(what: str, planned: Sequence[object], expected: Sequence[object]) -> list[str]:
    if len(planned) != len(expected):
        return [f"{len(planned)} {what}s planned, {len(expected)} expected"]
    wrong = [
        f"{what} {index}: {a} planned, {b} expected"
        for index, (a, b) in enumerate(zip(planned, expected, strict=True))
        if a != b
    ]
    return wrong[:4]


def assignment_faults(planned: PlannedWorkspace, expected: Plan) -> list[str]:
    """Items that did not go, in their turn, to a least loaded cluster.

    The load of an item is its keys plus twice the queries of a full tile. Sums stay below 2**24, so the planner's
    float32 is exact.
    """
    owner = {work: index for index, cluster in enumerate(planned.clusters) for work in cluster}
    loads = [0] * expected.clusters
    lists: list[list[Work]] = [[] for _ in loads]
    for work in expected.works:
        cluster = owner[work]
        if loads[cluster] > min(loads):
            return [f"{work} went to cluster {cluster}, loaded {loads[cluster]}; the least loaded has {min(loads)}"]
        loads[cluster] += 2 * expected.tile_rows + work.kv_end - work.kv_start
        lists[cluster].append(work)
    return [
        f"cluster {index} has its items out of order"
        for index, (a, b) in enumerate(zip(planned.clusters, lists, strict=True))
        if list(a) != b
    ]
