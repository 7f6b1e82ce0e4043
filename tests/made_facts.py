"""Facts of a machine for gates, made up."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_gpuinvariants.hardware.gates import Capability
from pytest_gpuinvariants.hardware.machine import Machine


@dataclass(frozen=True)
class Made:
    """Facts made up."""

    machine: Machine
    capability: Capability | None
    count: int = 1
    memory_bytes: int = 80 << 30
    nvlink: str | None = "there is 1 GPU"
    cuda_version: str | None = "13.0"
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.machine.label

    @property
    def absence(self) -> str:
        return self.machine.absence

    def package_version(self, name: str) -> str | None:
        return self.packages.get(name)
