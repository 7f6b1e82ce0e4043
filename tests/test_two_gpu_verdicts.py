"""The two-GPU all-reduce suite on made-up results: a sound one passes, and each defect fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from suites.workspaces.all_reduce_rank import DTYPES, ROUNDS, SIZES, VALUES, excess, input_of
from suites.workspaces.test_all_reduce_two_gpus import TestTwoGpus as Suite
from suites.workspaces.test_all_reduce_two_gpus import leaks

Rank = dict[str, Any]


def sound_rank() -> Rank:
    workspace = {"class": "T", "backend": "trtllm", "multicast": [0, 0, 0], "gone": True, "bytes_kept": 0}
    workspace["destroy"] = ("flashinfer.comm", "Workspace.destroy", "comm.py", 1)
    turns = [{"round": number, "dtype": dtype} for dtype in DTYPES for number in range(ROUNDS)]
    records = [
        {**turn, "size": size, "values": values, "tokens": 1, "gate": size != "above", "excess": 0.0}
        for turn in turns
        for size in SIZES
        for values in VALUES
    ]
    return {
        "guard": "MulticastRefusedError: refused",
        "failures": [],
        "workspaces": [{**workspace, **turn} for turn in turns],
        "records": records,
    }


def judge(results: list[Rank]) -> None:
    suite = Suite()
    suite.test_multicast_is_refused_in_each_rank(results)
    for dtype in DTYPES:
        for size in SIZES:
            for values in VALUES:
                if size != "above":
                    suite.test_sum(results, dtype, size, values)
        suite.test_above_the_limit_is_refused(results, dtype)
        suite.test_second_creation_is_as_the_first(results, dtype)


def test_sound_results_pass() -> None:
    judge([sound_rank(), sound_rank()])
    assert leaks([sound_rank(), sound_rank()]) == ()


def test_memory_that_destroy_keeps_is_found_on_its_rank() -> None:
    """The first creation also loads the kernels, which stay."""
    first, second = sound_rank(), sound_rank()
    first["workspaces"][0].update(bytes_kept=1 << 30)
    for workspace in second["workspaces"]:
        workspace.update(bytes_kept=1 << 29)
    (found,) = leaks([first, second])
    assert found.id == "leak:flashinfer.trtllm-workspace-memory@flashinfer.comm.Workspace.destroy"
    assert found.message == "rank 1: each workspace leaves 536870912 B of the device's memory allocated"


DEFECTS: dict[str, Callable[[Rank], object]] = {
    "no refusal": lambda rank: rank.update(guard="AttributeError: no mapping"),
    "a multicast pointer": lambda rank: rank["workspaces"][0].update(multicast=[0, 1, 0]),
    "no handle looked at": lambda rank: rank["workspaces"][0].update(multicast=[]),
    "another backend": lambda rank: rank["workspaces"][1].update(backend="mnnvl"),
    "a failed creation": lambda rank: rank["failures"].append("RuntimeError"),
    "a wrong sum": lambda rank: rank["records"][0].update(excess=1.0),
    "a sum that is off": lambda rank: rank["records"][1].update(excess=1.5),
    "not a number": lambda rank: rank["records"][1].update(excess=float("inf")),
    "refused within the limit": lambda rank: rank["records"][0].update(gate=False, excess=None),
    "admitted above it": lambda rank: rank["records"][-1].update(gate=True),
    "a size that was not run": lambda rank: rank["records"].pop(0),
    "one round only": lambda rank: rank["workspaces"].pop(),
    "not destroyed": lambda rank: rank["workspaces"][0].update(gone=False),
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_fails_on_either_rank(defect: str, which: int) -> None:
    results = [sound_rank(), sound_rank()]
    DEFECTS[defect](results[which])
    with pytest.raises(AssertionError):
        judge(results)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", DTYPES)
def test_error_measure_on_the_host(name: str, values: str) -> None:
    torch: Any = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    inputs = [input_of(torch, rank, (64, 128), dtype, values, 3, "cpu") for rank in range(2)]
    exact = inputs[0].double() + inputs[1].double()
    output = exact.to(dtype)
    allowed = 0 if values == "integers" else 1
    assert excess(torch, output, 2, values, 3) <= allowed
    assert excess(torch, inputs[0], 2, values, 3) > allowed, "a rank was left out"
    assert excess(torch, inputs[0] * 2, 2, values, 3) > allowed, "a rank was taken twice"
    off = output.clone()
    off[63, 127] = (exact[63, 127] * (1 + 3 * torch.finfo(dtype).eps) + (values == "integers")).to(dtype)
    assert excess(torch, off, 2, values, 3) > allowed, "one element is three places off"
    off[63, 127] = float("nan")
    assert excess(torch, off, 2, values, 3) > allowed
