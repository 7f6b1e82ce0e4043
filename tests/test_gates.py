"""Gates and their skip reasons."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinvariants.hardware import gates
from pytest_gpuinvariants.hardware.gates import GATES, NAMED, Capability, in_family, read_memory, refusal, satisfies
from pytest_gpuinvariants.hardware.machine import UNUSED, Machine, MachineKind
from tests.made_facts import Made

CAPABILITIES: list[Capability] = [
    *((7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 8), (8, 9), (9, 0)),
    *((10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)),
]
EXACT: dict[str, set[Capability]] = {
    "requires_sm80": {(8, 0), (8, 6), (8, 7), (8, 8), (8, 9)},
    "requires_sm89": {(8, 9)},
    "requires_sm90": {(9, 0)},
    "requires_sm100": {(10, 0), (10, 1), (10, 3)},
    "requires_sm103": {(10, 3)},
    "requires_sm120": {(12, 0), (12, 1)},
}


def made(kind: MachineKind, label: str, capability: Capability | None, **facts: Any) -> Made:
    return Made(Machine(kind, label, "why", capability, 1 if capability else 0), capability, **facts)


H100 = made(MachineKind.SIMULATED, "simulated H100", (9, 0))
H100X2 = made(MachineKind.SIMULATED, "simulated H100", (9, 0), count=2, nvlink=None)
L4 = made(MachineKind.SIMULATED, "simulated L4", (8, 9), memory_bytes=24 << 30)
GB300 = made(MachineKind.REAL, "real NVIDIA GB300", (10, 3))
H200 = made(MachineKind.REAL, "real NVIDIA H200", (9, 0))
H200X2 = made(MachineKind.REAL, "real NVIDIA H200", (9, 0), count=2, nvlink=None)
NOTHING = made(MachineKind.NONE, "none", None)
NO_CUDA = made(MachineKind.NONE, "none", None, cuda_version=None)
PACKAGED = made(MachineKind.NONE, "none", None, packages={"flashinfer-python": "0.7.2.post1"})


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda pair: f"sm{pair[0]}{pair[1]}")
def test_named_gates_hold_exactly_there(name: str, capability: Capability) -> None:
    here = made(MachineKind.REAL, "real card", capability)
    assert (refusal(here, [(name, {})]) is None) is (capability in EXACT[name])
    assert (refusal(here, [(name, {"or_newer": True})]) is None) is (capability >= NAMED[name])


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda pair: f"sm{pair[0]}{pair[1]}")
def test_a_capability_is_any_minor_or_exactly_one(capability: Capability) -> None:
    major, minor = capability
    assert {one for one in CAPABILITIES if satisfies(one, major)} == {one for one in CAPABILITIES if one[0] == major}
    assert [one for one in CAPABILITIES if satisfies(one, major, minor)] == [capability]
    assert [one for one in CAPABILITIES if satisfies(one, major, minor, or_newer=True)] == [
        one for one in CAPABILITIES if one >= capability
    ]


@pytest.mark.parametrize(
    ("target", "runs_on"),
    [
        ((10, 0), {(10, 0), (10, 3)}),
        ((10, 3), {(10, 3)}),
        ((10, 1), {(10, 1), (11, 0)}),
        ((11, 0), {(10, 1), (11, 0)}),
        ((12, 0), {(12, 0), (12, 1)}),
        ((12, 1), {(12, 1)}),
    ],
)
def test_families_are_those_of_the_f_suffix(target: Capability, runs_on: set[Capability]) -> None:
    assert {one for one in CAPABILITIES if in_family(one, target)} == runs_on
    assert {one for one in CAPABILITIES if satisfies(one, *target, family=True)} == runs_on


SM90 = "requires_sm90"


@pytest.mark.parametrize(
    ("where", "stated", "reason"),
    [
        (H200, [(SM90, {})], None),
        (H200, [(SM90, {"host_only": True})], None),
        (GB300, [(SM90, {"or_newer": True})], None),
        (GB300, [(SM90, {"host_only": True})], "needs SM 9.x; this is real NVIDIA GB300, SM 10.3"),
        (GB300, [("requires_sm100", {})], None),
        (GB300, [("requires_sm", {"major": 10, "minor": 0})], "needs SM 10.0; this is real NVIDIA GB300, SM 10.3"),
        (GB300, [("requires_sm", {"major": 10, "minor": 0, "family": True})], None),
        (
            H200,
            [("requires_sm", {"major": 10, "family": True})],
            "needs SM 10.0 or another of its family; this is real NVIDIA H200, SM 9.0",
        ),
        (H100, [(SM90, {"host_only": True})], None),
        (H100, [(SM90, {"host_only": True, "or_newer": True})], None),
        (
            H100,
            [(SM90, {})],
            "runs kernels, and needs a real SM 9.x; this is simulated H100, SM 9.0, where kernels do not run",
        ),
        (L4, [(SM90, {"host_only": True})], "needs SM 9.x; this is simulated L4, SM 8.9"),
        (L4, [("requires_sm90", {"or_newer": True})], "needs SM 9.0 or newer; this is simulated L4, SM 8.9"),
        (NOTHING, [(SM90, {"host_only": True})], "needs SM 9.x; there is no GPU (why)"),
        (H200, [("requires_gpus", {"n": 2})], "needs 2 GPUs; there is 1"),
        (H200X2, [("requires_gpus", {"n": 3})], "needs 3 GPUs; there are 2"),
        (H200X2, [("requires_gpus", {"n": 2})], None),
        (H100X2, [("requires_gpus", {"n": 2, "host_only": True})], None),
        (
            H100X2,
            [("requires_gpus", {"n": 2})],
            "runs kernels, and needs 2 real GPUs; this is simulated H100, SM 9.0, where kernels do not run",
        ),
        # What one gate declares is declared of the test: a launch would fail it.
        (H100X2, [("requires_gpus", {"n": 2}), (SM90, {"host_only": True})], None),
        (
            H100X2,
            [("requires_gpus", {"n": 2, "host_only": False}), (SM90, {"host_only": True})],
            "runs kernels, and needs a real SM 9.x and 2 real GPUs; this is simulated H100, SM 9.0, "
            "where kernels do not run",
        ),
        (
            L4,
            [("requires_gpu_memory", {"amount": "40GiB"})],
            "needs a GPU with 40GiB; this is simulated L4 with 24.0GiB",
        ),
        (H200, [("requires_gpu_memory", {"amount": "80GiB"})], None),
        (
            H200,
            [("requires_gpu_memory", {"amount": "86GB"})],
            "needs a GPU with 86GB; this is real NVIDIA H200 with 80.0GiB",
        ),
        (H200, [("requires_nvlink", {})], "needs GPUs joined by NVLink; there is 1 GPU"),
        (H200X2, [("requires_nvlink", {})], None),
        (H200, [("requires_cuda", {"versions": "≥12.8"})], None),
        (H200, [("requires_cuda", {"versions": "<13"})], "needs CUDA <13; torch is built for CUDA 13.0"),
        (NOTHING, [("requires_cuda", {"versions": ">=12.8"})], None),
        (NO_CUDA, [("requires_cuda", {"versions": ">=1"})], "needs CUDA >=1; there is no torch that is built for CUDA"),
        (PACKAGED, [("requires_package", {"requirement": "flashinfer-python>=0.7"})], None),
        (
            PACKAGED,
            [("requires_package", {"requirement": "flashinfer-python>=0.8"})],
            "needs flashinfer-python>=0.8; flashinfer-python 0.7.2.post1 is installed",
        ),
        (NOTHING, [("requires_package", {"requirement": "x>=0.8"})], "needs x>=0.8; x is not installed"),
        # Each of them holds: also two of the same name.
        (
            PACKAGED,
            [("requires_package", {"requirement": "flashinfer-python"}), ("requires_package", {"requirement": "x"})],
            "needs x; x is not installed",
        ),
        (H200, [(SM90, {"or_newer": True}), ("requires_gpus", {"n": 2})], "needs 2 GPUs; there is 1"),
        (
            GB300,
            [(SM90, {"or_newer": True}), (SM90, {})],
            "needs SM 9.x; this is real NVIDIA GB300, SM 10.3",
        ),
    ],
)
def test_refusal_says_both_sides(where: Made, stated: list[tuple[str, dict[str, Any]]], reason: str | None) -> None:
    assert refusal(where, stated) == (None if reason is None else f"not verified: {reason}")


def test_a_machine_that_was_not_looked_for() -> None:
    nowhere = Made(UNUSED, None)
    expected = f"not verified: needs SM 9.0 or newer; no GPU was looked for ({UNUSED.why})"
    assert refusal(nowhere, [(SM90, {"or_newer": True})]) == expected


class Costly(Made):
    """Facts of which only some may be asked for."""

    def __getattribute__(self, name: str) -> Any:
        assert name not in ("memory_bytes", "nvlink", "count", "cuda_version", "package_version"), name
        return super().__getattribute__(name)


def test_facts_are_looked_up_only_for_the_gates_that_are_stated() -> None:
    costly = Costly(H200.machine, (9, 0))
    assert refusal(costly, [(SM90, {})]) is None
    with pytest.raises(AssertionError, match="memory_bytes"):
        refusal(costly, [("requires_gpu_memory", {"amount": "1GiB"})])


@pytest.mark.parametrize(
    ("text", "amount"),
    [("40GiB", 40 << 30), ("80GB", 80 * 10**9), ("1.5 TiB", 3 << 39), ("512MiB", 512 << 20), ("7B", 7), ("2KB", 2000)],
)
def test_amounts_of_memory(text: str, amount: int) -> None:
    assert read_memory(text) == amount


@pytest.mark.parametrize("text", ["", "40", "GiB", "-1GiB", "0GiB", "1iB", "1 gib", "1GiB2"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="an amount of memory such as '40GiB'"):
        read_memory(text)


def test_software_gates_are_no_gates_of_the_gpu() -> None:
    assert [name for name, gate in GATES.items() if not gate.gpu] == ["requires_package", "requires_cuda"]
    assert gates.host_only([]) is False
