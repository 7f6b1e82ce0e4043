"""GPU models: what a simulated card declares, and what a skip reason compares with.

Sources, all NVIDIA's public pages: SM counts, memory and bus widths from the "H100 Tensor Core GPU
Architecture", "A100 Tensor Core GPU Architecture", "Ada GPU Architecture" and "Blackwell
Architecture" documents and the H200, B200, GB300 and L4 product pages; shared memory per SM and per
block, threads and blocks per SM from the CUDA C++ Programming Guide, table "Technical
Specifications per Compute Capability":

- https://resources.nvidia.com/en-us-tensor-core (H100), https://www.nvidia.com/en-us/data-center/h200/
- https://www.nvidia.com/en-us/data-center/dgx-b200/, https://www.nvidia.com/en-us/data-center/gb300-nvl72/
- https://www.nvidia.com/en-us/data-center/a100/, https://www.nvidia.com/en-us/data-center/l4/
- https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities

Memory is the product page's nominal size; a real card reports slightly less to programs.  Clocks
are the highest that ``nvidia-smi -q -d CLOCK`` shows; the H200's clocks, bus width and L2 cache
were read off a card (driver 580), those of the others are nominal and only feed estimates.  NVLink
is that of the product pages: the H100, H200, A100 and B200 here are the boards with it, the L4 has
none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


@dataclass(frozen=True)
class Profile:
    """The declared properties of one GPU model.

    ``name`` is what CUDA and NVML answer; ``label`` what reports say.  Sizes are in bytes, the bus
    width in bits.
    """

    key: str
    label: str
    name: str
    major: int
    minor: int
    sm_count: int
    l2_bytes: int
    shared_per_block_optin: int
    shared_per_sm: int
    memory_bytes: int
    memory_bus_bits: int
    clock_mhz: int
    memory_clock_mhz: int
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    nvlink: bool = True

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, for example ``(9, 0)``."""
        return self.major, self.minor

    @property
    def arch_list(self) -> str:
        """The entry of ``FLASHINFER_CUDA_ARCH_LIST`` for this card, for example ``9.0a``.

        From SM90 on, FlashInfer compiles for the architecture-specific feature set.
        """
        return f"{self.major}.{self.minor}{'a' if self.major >= 9 else ''}"


def _profile(
    key: str,
    label: str,
    name: str,
    capability: str,
    sms: int,
    l2_mib: int,
    memory_gib: int,
    bus: int,
    clocks: tuple[int, int],
    shared: tuple[int, int],
    threads: int = 2048,
    blocks: int = 32,
    nvlink: bool = True,
) -> Profile:
    major, minor = (int(part) for part in capability.split("."))
    return Profile(
        key=key,
        label=label,
        name=name,
        major=major,
        minor=minor,
        sm_count=sms,
        l2_bytes=l2_mib * _MIB,
        shared_per_block_optin=shared[0] * _KIB,
        shared_per_sm=shared[1] * _KIB,
        memory_bytes=memory_gib * _GIB,
        memory_bus_bits=bus,
        clock_mhz=clocks[0],
        memory_clock_mhz=clocks[1],
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        nvlink=nvlink,
    )


_HOPPER = _BLACKWELL = (227, 228)  # KiB of shared memory: per block (opt-in), per SM
PROFILES: dict[str, Profile] = {
    profile.key: profile
    for profile in (
        _profile("h100", "H100", "NVIDIA H100 80GB HBM3", "9.0", 132, 50, 80, 5120, (1980, 2619), _HOPPER),
        _profile("h200", "H200", "NVIDIA H200", "9.0", 132, 60, 141, 6016, (1980, 3201), _HOPPER),
        _profile("b200", "B200", "NVIDIA B200", "10.0", 148, 126, 180, 8192, (1965, 3996), _BLACKWELL),
        _profile("gb300", "GB300", "NVIDIA GB300", "10.3", 152, 126, 279, 8192, (1920, 3996), _BLACKWELL),
        _profile("a100", "A100", "NVIDIA A100-SXM4-80GB", "8.0", 108, 40, 80, 5120, (1410, 1593), (163, 164)),
        _profile("l4", "L4", "NVIDIA L4", "8.9", 58, 48, 24, 192, (2040, 6251), (99, 100), 1536, 24, nvlink=False),
    )
}


class UnknownProfileError(ValueError):
    """A profile name that is not in the table, or a device count out of range."""


def parse_profile(text: str) -> tuple[Profile, int]:
    """Read ``h100`` or ``h100x2`` as a profile and a number of devices (1 to 16).

    Raises:
        UnknownProfileError: the name or the count is not one of the accepted ones.
    """
    match = re.fullmatch(r"(?P<key>[a-z]+\d+)(?:x(?P<count>\d+))?", text.strip().lower())
    profile = PROFILES.get(match["key"]) if match else None
    if match is None or profile is None:
        known = ", ".join(PROFILES)
        raise UnknownProfileError(f"unknown GPU profile {text!r}; known: {known} (h100x2 means two devices)")
    count = int(match["count"] or 1)
    if not 1 <= count <= 16:
        raise UnknownProfileError(f"GPU profile {text!r}: a simulated machine has 1 to 16 devices")
    return profile, count
