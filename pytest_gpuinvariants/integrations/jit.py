"""The environment in which FlashInfer, Triton, torch and vLLM compile, and tune, for a simulated card.

All of it is read when those packages are imported or first compile, so it is set beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_gpuinvariants.hardware.profiles import Profile
from pytest_gpuinvariants.hardware.simulate.build import SimulatorLibraries, cache_root

_CACHES = {
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
}
"""Variables that name a folder for what was compiled or measured, and whose it is."""


def _wheel_cuda_home() -> Path | None:
    """The toolkit that pip put beside torch, if it has a compiler."""
    for entry in sys.path:
        for nvcc in sorted(Path(entry or ".").glob("nvidia/cu*/bin/nvcc"), reverse=True):
            return nvcc.parent.parent
    return None


def simulated_environment(
    profile: Profile, libraries: SimulatorLibraries, current: Mapping[str, str]
) -> dict[str, str]:
    """Variables to set for a simulated card.

    * What is compiled, and what is measured to choose among kernels, peers and sizes, is cached in a folder
      that a normal run never reads: a kernel that does not run takes no time, so the fastest of them is no
      choice for a real card of the same name.
    * FlashInfer compiles for the profile's architecture; its links need ``-lcudart -lcuda``, names that
      pip's CUDA lacks.
    * ``CUDA_HOME`` names pip's compiler, which matches torch's headers, unless the user set one.
    * Triton finds the driver that it links its launcher to.
    """
    arch = profile.arch_list
    flags = current.get("FLASHINFER_EXTRA_LDFLAGS", "")
    search = f"-L{libraries.folder}"
    if search not in flags.split():  # a worker inherits its controller's
        flags = f"{flags} {search}".strip()
    card = f"simulated-sm{arch.replace('.', '')}"
    values = {variable: str(cache_root() / package / card) for variable, package in _CACHES.items()}
    values |= {
        "FLASHINFER_CUDA_ARCH_LIST": arch,
        "FLASHINFER_EXTRA_LDFLAGS": flags,
        "TRITON_LIBCUDA_PATH": str(libraries.folder),
    }
    home = _wheel_cuda_home()
    if home is not None and not current.get("CUDA_HOME"):
        values["CUDA_HOME"] = str(home)
    return values
