"""What every correct MLA plan has in common, whatever the algorithm that made it.

These checks know nothing of chunk sizes, heaps or tie-breaking: they hold for a planner that is rewritten tomorrow.
Each returns the faults it found, empty when there are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

from .reference import PlannedWorkspace, Work


def coverage_faults(
    planned: PlannedWorkspace, q_lens: Sequence[int], kv_lens: Sequence[int], *, num_heads: int, tile_rows: int
) -> list[str]:
    """Every tile of every row must be matched with each key in ``[0, kv_len)`` exactly once, in no item's absence.

    A row without keys must have exactly one, empty item a tile, a row without queries none at all.
    """
    chunks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for work in planned.works:
        chunks[work.q_indptr, work.q_start].append((work.kv_start, work.kv_end))
    faults: list[str] = []
    for first_query, q_len, kv_len in zip([0, *accumulate(q_lens)], q_lens, kv_lens, strict=False):
        for q_start in range(0, q_len * num_heads, tile_rows):
            tile = f"tile at packed query {q_start} of the row at query {first_query}"
            end = 0
            spans = sorted(chunks.pop((first_query, q_start), []))
            if not spans:
                faults.append(f"{tile}: no work item")
                continue
            for start, stop in spans:
                if start != end:
                    faults.append(f"{tile}: keys up to {end} are covered, the next chunk starts at {start}")
                if stop <= start and (kv_len or len(spans) > 1):
                    faults.append(f"{tile}: empty chunk [{start}, {stop})")
                end = stop
            if end != kv_len:
                faults.append(f"{tile}: keys up to {end} are covered, the row has {kv_len}")
    faults += [f"work items of no tile at query {query}, packed query {start}" for query, start in chunks]
    return faults


def balance_faults(planned: PlannedWorkspace, *, tile_rows: int) -> list[str]:
    """No cluster may end up with more than its fair share and one item: what list scheduling guarantees."""
    items = [[_load(work, tile_rows) for work in cluster] for cluster in planned.clusters]
    total = sum(map(sum, items))
    bound = total // len(items) + max((load for cluster in items for load in cluster), default=0)
    return [
        f"cluster {index} has a load of {sum(loads)}, more than {bound}"
        for index, loads in enumerate(items)
        if sum(loads) > bound
    ]


def _load(work: Work, tile_rows: int) -> int:
    return 2 * tile_rows + work.kv_end - work.kv_start


def merge_faults(planned: PlannedWorkspace, *, num_heads: int, tile_rows: int, partial_capacity: int) -> list[str]:
    """Each output row of a split tile must be merged once, from exactly the partial rows that its items write.

    No partial row may be written twice or lie past the workspace's capacity, and no other output row may be merged.
    """
    written: dict[int, list[int]] = defaultdict(list)
    taken: set[int] = set()
    faults: list[str] = []
    for work in planned.works:
        if work.partial_indptr < 0:
            continue
        first = work.q_indptr * num_heads + work.q_start
        for row in range(min(tile_rows, work.q_len * num_heads - work.q_start)):
            partial = work.partial_indptr + row
            if partial in taken:
                faults.append(f"partial row {partial} is written twice")
            if partial >= partial_capacity:
                faults.append(f"partial row {partial} is past the workspace's {partial_capacity}")
            taken.add(partial)
            written[first + row].append(partial)
    for merge in planned.merges:
        if merge.packed_end > merge.packed_start and merge.partial_stride <= 0:
            faults.append(f"{merge} never ends")
            continue
        for row in range(merge.packed_start, merge.packed_end):
            start = merge.partial_start + row - merge.packed_start
            read = list(range(start, merge.partial_end, merge.partial_stride))
            wrote = sorted(written.pop(row, []))
            if read != wrote:
                faults.append(f"output row {row} merges partial rows {read[:4]}…, its items write {wrote[:4]}…")
    faults += [f"output row {row} has partial rows and is never merged" for row in written]
    return faults[:8]
