"""Copies and fills of every form: bytes, refusals, events; and no form of them that is forgotten."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware.simulate.build import build

Answers = dict[str, object]

RECORDED = Path(__file__).parents[2] / "pytest_gpuinvariants" / "recorders" / "csrc" / "cupti_apis.h"
ARRAYS = re.compile("Array|AtoH|HtoA")  # copies from and into CUDA arrays, which are not simulated


def test_copies_within_a_structure_are_byte_exact(simulated: Answers) -> None:
    assert simulated["driver_areas"] == [0, 0, True, 0, 0, True]


def test_areas_that_are_refused(simulated: Answers) -> None:
    *codes, before, arrays, told, unsupported = _list(simulated["refused_areas"])
    assert codes == [1, 1, 1, 1, 1, 0, 1, 1, 1, 1, [12, 0]], "one slice needs no height; an empty copy is none"
    names = ["cuMemcpy2D with a CUDA array", "cuMemcpy2DAsync with a CUDA array"]
    assert (before, arrays, unsupported) == ([], [801, 801], names)
    assert told == [[name, "COPY_STALL|NOT_SIMULATED"] for name in names]


def test_areas_between_two_devices(simulated: Answers) -> None:
    assert simulated["peer_areas"] == [0, 0, 0, True, 0, True, 0, True, 201, 201, 0, True, 0, 101]


def test_batches_of_the_driver_and_of_boxes(simulated: Answers) -> None:
    new, old, failed, worked, none, no_stream, empty, *rest = _list(simulated["batches"])
    assert (new, old, failed, worked, none) == (0, 1, 1, 0, True)
    assert (no_stream, empty) == (1, 1), "not on the legacy default stream, not of nothing"
    assert rest == [True, True, 0, True, 1, 1, 1, 801, ["cudaMemcpy3DBatchAsync with a CUDA array"]]


def test_fills_of_areas(simulated: Answers) -> None:
    bytes_of = "7f7f7f007f7f7f" + "00" * 5 + "7f7f7f007f7f7f"  # two rows of four bytes, a third is left, twice
    assert simulated["fills_of_areas"] == [
        [0, "0000" + "3412" * 2],
        [0, "555555" + "00" + "555555"],
        [0, "3412" * 2 + "0000" + "3412" * 2],
        [0, "78563412" + "00" * 4 + "78563412"],
        [1, ""],  # the pitch is no multiple of a word
        [1, ""],  # the pitch is less than a row
        [0, "555555"],  # and not used of one row
        [0, bytes_of],
        [0, bytes_of],
        [1, ""],
        [1, ""],  # past the allocation's end
        [0, ""],
    ]


def test_what_is_told_of_every_form(simulated: Answers) -> None:
    assert simulated["told_copies"] == [
        ["cuMemcpy2D", "COPY_STALL", 32, 4, "DEVICE", "PAGEABLE", True, 0],
        ["cuMemcpy2DUnaligned", "COPY_STALL", 32, 4, "DEVICE", "PINNED", True, 0],
        ["cuMemcpy2DAsync", "COPY_ASYNC", 32, 4, "PINNED", "DEVICE", False, 0],
        ["cuMemcpy3DAsync", "COPY_STALL", 30, 6, "PAGEABLE", "DEVICE", False, 0],
        ["cuMemcpy3DPeerAsync", "COPY_ASYNC", 30, 6, "DEVICE", "DEVICE", False, 0],
        ["cudaMemcpy3DPeer", "COPY_STALL", 30, 6, "PINNED", "DEVICE", True, 0],
        ["cuMemcpyPeerAsync", "COPY_ASYNC", 64, 1, "DEVICE", "DEVICE", False, 0],
        ["cuMemcpyHtoDAsync", "COPY_STALL", 64, 1, "DEVICE", "PAGEABLE", False, 0],
        ["cuMemcpy", "COPY_STALL", 64, 1, "DEVICE", "PINNED", True, 0],
        ["cudaMemcpy3DBatchAsync", "COPY_STALL", 30, 6, "DEVICE", "PAGEABLE", False, 0],
        ["cuMemsetD2D16", "COPY_ASYNC", 64, 4, "DEVICE", "DEVICE", True, 0],
        ["cuMemsetD16Async", "COPY_ASYNC", 16, 1, "DEVICE", "DEVICE", False, 0],
        ["cudaMemset3D", "COPY_STALL", 30, 6, "PINNED", "PINNED", True, 0],
        ["cudaMemcpyToSymbol", "COPY_ASYNC", 8, 1, "DEVICE", "DEVICE", True, 0],
        ["cudaMemcpyToSymbolAsync", "COPY_STALL", 8, 1, "DEVICE", "PAGEABLE", False, 0],
        ["cudaMemcpyFromSymbol", "COPY_STALL", 8, 1, "PINNED", "DEVICE", True, 0],
        ["cudaMemcpyFromSymbolAsync", "COPY_ASYNC", 8, 1, "PINNED", "DEVICE", False, 0],
    ]


def test_copies_are_captured_and_replayed(simulated: Answers) -> None:
    *captured, called, untouched, nodes, launched, called_by_then, value, again, at_last = _list(
        simulated["captured_copies"]
    )
    assert (captured, called, untouched, nodes) == ([0] * 6, [], True, 4)
    assert (launched, called_by_then, again, at_last) == (0, [5], 0, [5, 6])
    assert value == "00010203" + "00" * 4 + "04050607" + "00" * 4 + "7f7f" + "00" * 6 + "7f7f"


def test_a_capture_refuses_batches(simulated: Answers) -> None:
    *answers, value = _list(simulated["captured_batches"])
    names = ["cudaMemcpyBatchAsync", "cuMemcpyBatchAsync", "cudaMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync"]
    assert answers == [[900, [[name, "COPY_STALL", True, 900]], 2, 901] for name in names], "told once, then invalid"
    assert value == "1111"


def test_entry_points_are_those_of_the_callers_version(simulated: Answers) -> None:
    *found, codes, told = _list(simulated["entry_points"])
    assert found == [[True, True]] * 6
    assert codes == [0, 201, 900, 901]
    assert told == [["cuCtxSynchronize", 1, False], ["cuCtxSynchronize", 0, True]]


def _exports(library: Path) -> dict[str, str]:
    """Kind of each exported name, as ``nm`` writes it: W for a stub."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    listed = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {name.partition("@")[0]: kind for _, kind, name in (line.split() for line in listed.splitlines())}


def test_no_recorded_form_is_a_stub() -> None:
    """What a recorder of a real card tells of copies, fills, waits and launches happens on the simulated card, too."""
    libraries = build()
    if libraries.cuda_major < 13:
        pytest.skip("CUDA 12 has batches of another form")
    kinds = "SYNC|FILL|COPY|AREA|BATCH|BATCH_3D|LAUNCH"
    recorded = set(re.findall(rf"^(?:{kinds})\(\w+, \d+, (\w+)", RECORDED.read_text(), re.MULTILINE))
    missing = []
    for face in libraries.faces[:2]:
        exports = _exports(face)
        assert len(exports) > 300
        for name, kind in exports.items():
            plain = re.sub(r"(_v\d+)?(_pt[ds][sz])?$", "", name)
            # The first form of a call that has two, and none for per-thread streams: its addresses have 32 bits.
            first = f"{name}_v2" in exports and not {f"{name}_ptds", f"{name}_ptsz"} & set(exports)
            if kind == "W" and plain in recorded and not first and not ARRAYS.search(name):
                missing.append(name)
    assert missing == []


def _list(value: object) -> list[object]:
    assert isinstance(value, list), value
    return value
