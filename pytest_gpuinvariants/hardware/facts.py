"""What gates are answered with: looked up when a test is about to run, and not before."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpuinvariants import versions
from pytest_gpuinvariants.hardware.detection import NoGpuError, RealGpus, find_real_gpus
from pytest_gpuinvariants.hardware.identity import Device
from pytest_gpuinvariants.hardware.machine import Machine, MachineKind
from pytest_gpuinvariants.hardware.profiles import parse_profile
from pytest_gpuinvariants.integrations import torch_build


@dataclass(frozen=True)
class MachineFacts:
    """The facts of a run's machine.

    A real one is asked through the driver, in another process, so that no gate initializes CUDA here;
    the current device is that of torch, once torch has initialized CUDA, unless ``device`` is its index.
    """

    machine: Machine
    device: int | None = None

    @property
    def _real(self) -> RealGpus | None:
        if self.machine.kind is not MachineKind.REAL:
            return None
        try:
            return find_real_gpus()
        except NoGpuError:  # hidden since the start of the run, by CUDA_VISIBLE_DEVICES
            return RealGpus(())

    @property
    def _device(self) -> Device | None:
        real = self._real
        index = torch_build.current_device() if self.device is None else self.device
        return real.devices[index] if real is not None and index < len(real.devices) else None

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the current device, or what it is made to look like."""
        if self.machine.kind is not MachineKind.REAL or self.machine.faking:
            return self.machine.capability
        return self._device.capability if self._device is not None else None

    @property
    def absence(self) -> str:
        """Why there is no capability to speak of."""
        if self.machine.kind is MachineKind.REAL:
            return "no GPU is visible any more (see CUDA_VISIBLE_DEVICES)"
        return self.machine.absence

    @property
    def name(self) -> str:
        """The current device in words, for example ``real NVIDIA H200``."""
        if self._device is None or self.machine.faking:
            return self.machine.label
        return f"real {self._device.name}"

    @property
    def count(self) -> int:
        """Number of visible devices."""
        return len(self._real.devices) if self._real is not None else self.machine.count

    @property
    def memory_bytes(self) -> int:
        """All memory of the current device: of a simulated or wholly faked one, what its profile declares."""
        if self.machine.faking and self.machine.fake is not None and self.machine.fake.profile is not None:
            return self.machine.fake.profile.memory_bytes
        if self.machine.profile is not None:
            return parse_profile(self.machine.profile)[0].memory_bytes
        return self._device.memory_bytes if self._device is not None else 0

    @property
    def nvlink(self) -> str | None:
        """Why the visible devices are not known to be joined by NVLink, each to each; None when they are."""
        if self.count < 2:
            return f"there is {self.count} GPU"
        if self.machine.profile is not None:
            profile = parse_profile(self.machine.profile)[0]
            return None if profile.nvlink else f"{profile.label} has no NVLink"
        return self._real.unlinked if self._real is not None else "there is no GPU"

    @property
    def cuda_version(self) -> str | None:
        """The CUDA version that torch is built for."""
        return torch_build.cuda_version()

    def package_version(self, name: str) -> str | None:
        """Version of an installed distribution, None without it."""
        return versions.installed(name)
