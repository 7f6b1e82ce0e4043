"""Capability gates: pure decisions over compute capabilities."""

from __future__ import annotations

from pytest_gpuinvariants.hardware.machine import Machine, MachineKind


def needs_sm90(capability: tuple[int, int], or_newer: bool) -> bool:
    """Whether a compute capability satisfies ``requires_sm90``: exactly 9.x, or 9.0 and later."""
    return capability >= (9, 0) if or_newer else capability[0] == 9


def refusal_sm90(machine: Machine, capability: tuple[int, int] | None, or_newer: bool, host_only: bool) -> str | None:
    """Why a ``requires_sm90`` test can not be checked on this machine; None when it can.

    Args:
        machine: what the run has.
        capability: that of the device in use, None when there is none.
        or_newer: the marker's argument.
        host_only: the marker's argument.
    """
    need = "SM 9.0 or newer" if or_newer else "SM 9.x"
    if capability is None:
        return f"not verified: needs {need}; {machine.absence}"
    has = f"{machine.label}, SM {capability[0]}.{capability[1]}"
    if not needs_sm90(capability, or_newer):
        return f"not verified: needs {need}; this is {has}"
    if machine.kind is MachineKind.SIMULATED and not host_only:
        return f"not verified: runs kernels, and needs a real {need}; this is {has}, where kernels do not run"
    return None
