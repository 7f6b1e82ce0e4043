"""Capability gates and their skip reasons."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.hardware.gates import needs_sm90, refusal_sm90
from pytest_gpuinvariants.hardware.machine import UNUSED, Machine, MachineKind

CAPABILITIES = [
    (7, 0),
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 7),
    (8, 9),
    (9, 0),
    (10, 0),
    (10, 1),
    (10, 3),
    (11, 0),
    (12, 0),
    (12, 1),
]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda pair: f"sm{pair[0]}{pair[1]}")
def test_sm90_is_exactly_9_or_from_9_on(capability: tuple[int, int]) -> None:
    assert needs_sm90(capability, or_newer=False) is (capability[0] == 9)
    assert needs_sm90(capability, or_newer=True) is (capability >= (9, 0))


def machine(kind: MachineKind, label: str, capability: tuple[int, int] | None) -> Machine:
    return Machine(kind, label, "why", capability, 1 if capability else 0)


H100 = machine(MachineKind.SIMULATED, "simulated H100", (9, 0))
L4 = machine(MachineKind.SIMULATED, "simulated L4", (8, 9))
GB300 = machine(MachineKind.REAL, "real NVIDIA GB300", (10, 3))
H200 = machine(MachineKind.REAL, "real NVIDIA H200", (9, 0))
NOTHING = machine(MachineKind.NONE, "none", None)


@pytest.mark.parametrize(
    ("where", "or_newer", "host_only", "reason"),
    [
        (H200, False, False, None),
        (H200, False, True, None),
        (GB300, True, False, None),
        (GB300, True, True, None),
        (GB300, False, True, "not verified: needs SM 9.x; this is real NVIDIA GB300, SM 10.3"),
        (H100, False, True, None),
        (H100, True, True, None),
        (
            H100,
            False,
            False,
            "not verified: runs kernels, and needs a real SM 9.x; this is simulated H100, SM 9.0, "
            "where kernels do not run",
        ),
        (L4, False, True, "not verified: needs SM 9.x; this is simulated L4, SM 8.9"),
        (L4, True, False, "not verified: needs SM 9.0 or newer; this is simulated L4, SM 8.9"),
        (NOTHING, False, True, "not verified: needs SM 9.x; there is no GPU (why)"),
        (UNUSED, True, True, f"not verified: needs SM 9.0 or newer; no GPU was looked for ({UNUSED.why})"),
    ],
)
def test_refusal_says_both_sides(where: Machine, or_newer: bool, host_only: bool, reason: str | None) -> None:
    assert refusal_sm90(where, where.capability, or_newer=or_newer, host_only=host_only) == reason
