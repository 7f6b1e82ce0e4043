"""What a test needs of the machine: one table of gates, decided over facts.

A gate is asked when its test is about to run, never at import or collection.  Compute capabilities
and what code for an architecture runs on: CUDA Programming Guide, "Compute Capabilities"
(https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pytest_gpuinvariants.hardware.machine import Machine, MachineKind

Capability = tuple[int, int]
Arguments = Mapping[str, Any]

NAMED: dict[str, Capability] = {
    "requires_sm80": (8, 0),
    "requires_sm89": (8, 9),
    "requires_sm90": (9, 0),
    "requires_sm100": (10, 0),
    "requires_sm103": (10, 3),
    "requires_sm120": (12, 0),
}
"""Gates named after a capability: minor 0 stands for its whole major, another minor for itself alone."""

_THOR = frozenset({(10, 1), (11, 0)})  # CUDA 12 calls it 10.1, CUDA 13 calls it 11.0
_UNITS = {"B": 1} | {
    f"{letter}{middle}B": base**power
    for middle, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("KMGT", start=1)
}


class Facts(Protocol):
    """What gates compare with; each is looked up only when a gate asks.

    Sizes are in bytes.  The card is the current device, the devices are those that CUDA sees.
    """

    @property
    def machine(self) -> Machine:
        """The GPU of the run."""
        ...

    @property
    def capability(self) -> Capability | None:
        """Compute capability of the card, None without one."""
        ...

    @property
    def absence(self) -> str:
        """Why there is no card."""
        ...

    @property
    def name(self) -> str:
        """The card's name in reports."""
        ...

    @property
    def count(self) -> int:
        """Number of devices."""
        ...

    @property
    def memory_bytes(self) -> int:
        """The card's whole memory."""
        ...

    @property
    def nvlink(self) -> str | None:
        """Why the devices are not all joined by NVLink; None when they are."""
        ...

    @property
    def cuda_version(self) -> str | None:
        """The CUDA version that torch is built for, None without such a torch."""
        ...

    def package_version(self, name: str) -> str | None:
        """Version of an installed distribution, None without it."""
        ...


def in_family(capability: Capability, target: Capability) -> bool:
    """Whether code for a family-specific target (``sm_100f`` for ``(10, 0)``) runs on a device.

    That is: the same major and no smaller minor.  10.1 is apart: it is the former number of 11.0.
    """
    if target in _THOR or capability in _THOR:
        return {target, capability} <= _THOR
    return capability[0] == target[0] and capability[1] >= target[1]


def satisfies(
    capability: Capability, major: int, minor: int | None = None, or_newer: bool = False, family: bool = False
) -> bool:
    """Whether a compute capability is what ``requires_sm`` asks for.

    Args:
        capability: of the device.
        major: the major number that is needed.
        minor: the minor number; None for any.
        or_newer: any later capability will do, of whatever major.
        family: any capability will do on which code for this family-specific target runs.
    """
    if or_newer:
        return capability >= (major, minor or 0)
    if family:
        return in_family(capability, (major, minor or 0))
    return capability[0] == major and minor in (None, capability[1])


def read_memory(text: str) -> int:
    """Read an amount of memory such as ``40GiB``, in bytes.

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B)\s*", text)
    if match is None or match[2] not in _UNITS or not float(match[1]):
        raise ValueError("an amount of memory such as '40GiB' or '80GB'")
    return int(float(match[1]) * _UNITS[match[2]])


def read_versions(text: str) -> SpecifierSet:
    """Read a version range; the signs ``≥`` and ``≤`` stand for ``>=`` and ``<=``.

    Raises:
        InvalidSpecifier: it is none.
    """
    return SpecifierSet(text.replace("≥", ">=").replace("≤", "<="))


@dataclass(frozen=True)
class Gate:
    """One gate.

    ``need`` says what is needed, of real hardware where its second argument is True.  ``lacks``
    answers what there is instead, None when the need is met.  ``gpu`` tells needs of the GPU from
    those of the software: they alone are subject to the rule that kernels run on real cards only.
    """

    need: Callable[[Arguments, bool], str]
    lacks: Callable[[Arguments, Facts], str | None]
    gpu: bool = True


def _is(facts: Facts) -> str:
    capability = facts.capability
    return f"{facts.name}, SM {capability[0]}.{capability[1]}" if capability else facts.name


def _sm(fixed: Capability | None = None) -> Gate:
    def wanted(arguments: Arguments) -> dict[str, Any]:
        chosen = {name: value for name, value in arguments.items() if name != "host_only"}
        if fixed is not None:  # with or_newer, minor 0 and any minor are the same
            chosen |= {"major": fixed[0], "minor": fixed[1] or None}
        return chosen

    def need(arguments: Arguments, real: bool) -> str:
        sm = wanted(arguments)
        minor = sm.get("minor")
        number = f"{sm['major']}.{'x' if minor is None else minor}"
        if sm.get("or_newer"):
            number = f"{sm['major']}.{minor or 0} or newer"
        elif sm.get("family"):
            number = f"{sm['major']}.{minor or 0} or another of its family"
        return f"{'a real ' if real else ''}SM {number}"

    def lacks(arguments: Arguments, facts: Facts) -> str | None:
        capability = facts.capability
        assert capability is not None
        return None if satisfies(capability, **wanted(arguments)) else f"this is {_is(facts)}"

    return Gate(need, lacks)


def _gpus(arguments: Arguments, facts: Facts) -> str | None:
    return None if facts.count >= arguments["n"] else f"there {'is' if facts.count == 1 else 'are'} {facts.count}"


def _memory(arguments: Arguments, facts: Facts) -> str | None:
    if facts.memory_bytes >= read_memory(arguments["amount"]):
        return None
    return f"this is {facts.name} with {facts.memory_bytes / 2**30:.1f}GiB"


def _cuda(arguments: Arguments, facts: Facts) -> str | None:
    version = facts.cuda_version
    if version is None:
        return "there is no torch that is built for CUDA"
    return None if read_versions(arguments["versions"]).contains(version) else f"torch is built for CUDA {version}"


def _package(arguments: Arguments, facts: Facts) -> str | None:
    wanted = Requirement(arguments["requirement"])
    version = facts.package_version(wanted.name)
    if version is None:
        return f"{wanted.name} is not installed"
    if wanted.specifier.contains(version, prereleases=True):
        return None
    return f"{wanted.name} {version} is installed"


GATES: dict[str, Gate] = {
    "requires_package": Gate(lambda arguments, real: arguments["requirement"], _package, gpu=False),
    "requires_cuda": Gate(lambda arguments, real: f"CUDA {arguments['versions']}", _cuda, gpu=False),
    "requires_sm": _sm(),
    **{name: _sm(capability) for name, capability in NAMED.items()},
    "requires_gpus": Gate(
        lambda arguments, real: f"{arguments['n']} {'real ' if real else ''}GPU{'s' if arguments['n'] != 1 else ''}",
        _gpus,
    ),
    "requires_gpu_memory": Gate(
        lambda arguments, real: f"a {'real ' if real else ''}GPU with {arguments['amount']}", _memory
    ),
    "requires_nvlink": Gate(
        lambda arguments, real: f"{'real ' if real else ''}GPUs joined by NVLink", lambda arguments, facts: facts.nvlink
    ),
}
"""Every gate, in the order in which a test's are asked; the first that is not met is the reason of the skip."""


def host_only(stated: Iterable[tuple[str, Arguments]]) -> bool:
    """Whether a test declares that it launches no kernel of its own: the closest marker that says so decides."""
    return next((bool(arguments["host_only"]) for _, arguments in stated if "host_only" in arguments), False)


def refusal(facts: Facts, stated: Iterable[tuple[str, Arguments]]) -> str | None:
    """Why a test can not be checked on this machine; None when it can.

    Args:
        facts: the machine.
        stated: name and arguments of each gate of the test, the closest first; all must be met.
    """
    stated = list(stated)
    on_gpu = []
    for name in GATES:
        gate = GATES[name]
        for arguments in (given for other, given in stated if other == name):
            need = f"not verified: needs {gate.need(arguments, False)}"
            if gate.gpu and facts.capability is None:
                return f"{need}; {facts.absence}"
            if (instead := gate.lacks(arguments, facts)) is not None:
                if gate.gpu and (fake := facts.machine.fake) is not None and not host_only(stated):
                    real = f"not verified: runs kernels, and needs {gate.need(arguments, True)}"
                    return f"{real}; {instead} (faking {fake.label})"
                return f"{need}; {instead}"
            if gate.gpu:
                on_gpu.append(gate.need(arguments, True))
    if on_gpu and facts.machine.kind is MachineKind.SIMULATED and not host_only(stated):
        what = " and ".join(dict.fromkeys(on_gpu))
        return f"not verified: runs kernels, and needs {what}; this is {_is(facts)}, where kernels do not run"
    return None
