"""The GPU of a run: chosen once, named in every report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_gpuinvariants.hardware.detection import (
    NoCudaTorchError,
    NoGpuError,
    find_real_gpus,
    require_cuda_torch,
)
from pytest_gpuinvariants.hardware.fakes import FORMS, Fake, parse_layers
from pytest_gpuinvariants.hardware.identity import VISIBLE, disagreements, resolve
from pytest_gpuinvariants.hardware.profiles import Profile, parse_profile


class MachineKind(StrEnum):
    """How the run comes by its GPU."""

    REAL = "real"
    SIMULATED = "simulated"
    NONE = "none"
    UNUSED = "unused"


class MachineError(RuntimeError):
    """The GPU that was asked for can not be had; the message says why and what to do."""


@dataclass(frozen=True)
class Machine:
    """The GPU that tests of this run see.

    ``label`` names it in outcomes (``simulated H100``); ``why`` says how it was chosen, or what is
    missing.  ``capability`` is that of the first device, None when there is none.
    """

    kind: MachineKind
    label: str
    why: str
    capability: tuple[int, int] | None = None
    count: int = 0
    profile: str | None = None
    """What is simulated, for example ``h100x2``."""
    warnings: tuple[str, ...] = ()
    """What makes other programs take one card for another."""
    fake: Fake | None = None
    """What collection and host-only tests see instead of ``capability``."""
    faking: bool = False
    """Whether ``capability`` and ``label`` are those of the fake."""

    def seen(self, host_only: bool) -> Machine:
        """The machine as a test sees it: a host-only one sees the fake, any other the true card."""
        if self.fake is None or not host_only:
            return self
        label = f"{self.label} faking {self.fake.label}"
        return replace(self, label=label, capability=self.fake.capability, faking=True)

    @property
    def absence(self) -> str:
        """Why there is no capability to speak of."""
        if self.kind is MachineKind.UNUSED:
            return f"no GPU was looked for ({self.why})"
        return f"there is no GPU ({self.why})"

    @property
    def header(self) -> str:
        """The line of the report's header."""
        capability = f" (SM {self.capability[0]}.{self.capability[1]})" if self.capability else ""
        devices = f", {self.count} devices" if self.count > 1 else ""
        fake = f"; {self.fake.faked}" if self.fake else ""
        return f"gpu: {self.label}{capability}{devices}: {self.why}{fake}"


UNUSED = Machine(MachineKind.UNUSED, "not needed", "no test file here uses an invariant (--gpu simulate:h100 to force)")


def _simulate(profile: Profile, count: int, why: str) -> Machine:
    # Imported here: a run that needs no simulator does not pay for it.
    from pytest_gpuinvariants.hardware.simulate.build import SimulatorBuildError
    from pytest_gpuinvariants.hardware.simulate.runtime import SimulatorTooLateError, device_uuid, open_runtime

    try:
        open_runtime(profile, count)
    except (SimulatorTooLateError, SimulatorBuildError) as error:
        raise MachineError(str(error)) from error
    label = f"simulated {profile.label}"
    why = f"{why}; kernels are recorded, not run"
    told = _unread(os.environ.get(VISIBLE), [device_uuid(profile, index) for index in range(count)])
    return Machine(
        MachineKind.SIMULATED, label, why, profile.capability, count, f"{profile.key}x{count}", warnings=told
    )


def _unread(visible: str | None, uuids: list[str]) -> tuple[str, ...]:
    """That simulated CUDA shows all its devices, where CUDA_VISIBLE_DEVICES has others in mind."""
    devices = resolve(visible, uuids)
    if devices == tuple(range(len(uuids))):
        return ()
    meant = ", ".join(f"cuda:{index}" for index in devices) or "no device"
    return (
        f"{VISIBLE}={visible!r} means {meant} of the {len(uuids)} simulated, which are all visible: what counts "
        "devices by the variable, as torch does, disagrees; unset it, or set their number by --gpu simulate:PROFILExN",
    )


def choose(choice: str, used: bool) -> Machine:
    """The machine for a ``--gpu`` choice, fakes included; a simulated one is open when this returns.

    Args:
        choice: a base and fakes, as :func:`check_choice` accepts them.
        used: whether anything to be collected uses an invariant; ``auto`` touches nothing when not.

    Raises:
        MachineError: what was asked for is not there, or torch was imported too early to simulate.
    """
    base, fake = parse_layers(choice)
    machine = _choose(base, used)
    if fake is None or machine.kind is MachineKind.UNUSED:
        return machine
    if machine.kind is MachineKind.NONE:
        raise MachineError(f"--gpu {choice}: there is no card to lay a fake over: {machine.why}")
    return replace(machine, fake=fake)


def _choose(choice: str, used: bool) -> Machine:
    if choice == "auto" and not used:
        return UNUSED
    try:
        require_cuda_torch()
        if choice.startswith("simulate:"):
            profile, count = parse_profile(choice.removeprefix("simulate:"))
            return _simulate(profile, count, f"--gpu {choice}")
        try:
            gpus = find_real_gpus()
        except NoGpuError as error:
            if choice == "real":
                raise
            profile, count = parse_profile("h100")
            return _simulate(profile, count, str(error))
        first = gpus.devices[0]
        why = "found by the NVIDIA driver"
        told = tuple(disagreements(gpus.devices, gpus.nvml, os.environ.get(VISIBLE)))
        return Machine(MachineKind.REAL, f"real {first.name}", why, first.capability, len(gpus.devices), warnings=told)
    except (NoGpuError, NoCudaTorchError) as error:
        if choice != "auto":
            raise MachineError(f"--gpu {choice}: {error}") from error
        return Machine(MachineKind.NONE, "none", str(error))


def check_choice(choice: str) -> str:
    """Return a valid ``--gpu`` choice.

    Raises:
        ValueError: it is none; the message lists the accepted forms.
    """
    base, _ = parse_layers(choice)
    if base.startswith("simulate:"):
        parse_profile(base.removeprefix("simulate:"))
    elif base not in ("auto", "real"):
        raise ValueError(f"{base!r} is not {FORMS}")
    return choice
