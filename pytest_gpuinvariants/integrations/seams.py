"""Where torch, vLLM, FlashInfer and Triton learn what card there is: one table, which the fake is laid over.

Few seams are changed; the others take their answer from those, through caches that are emptied.  All
are named all the same, with the versions that have them: a test asks each of them, under a fake and
after it, so that one that an upgrade has moved is a failure and not a truth told by mistake.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_gpuinvariants.hardware.fakes import Fake
from pytest_gpuinvariants.integrations.after_import import after_import

Undo = Callable[[], object]
_CAPABILITY = "nvmlDeviceGetCudaComputeCapability"
_HELPERS = "torch.testing._internal.common_utils"


class FakeProperties:
    """Device properties of which some are faked: torch's own object can not be written."""

    def __init__(self, true: Any, changed: dict[str, object]) -> None:
        self._true = true
        self._changed = changed

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._true, name)

    def __repr__(self) -> str:
        return f"faked {self._changed} over {self._true!r}"


def _changed(fake: Fake) -> dict[str, object]:
    major, minor = fake.capability
    changed: dict[str, object] = {"major": major, "minor": minor}
    if (profile := fake.profile) is not None:
        changed |= {
            "name": profile.name,
            "multi_processor_count": profile.sm_count,
            "total_memory": profile.memory_bytes,
            "L2_cache_size": profile.l2_bytes,
            "shared_memory_per_block_optin": profile.shared_per_block_optin,
            "shared_memory_per_multiprocessor": profile.shared_per_sm,
            "max_threads_per_multi_processor": profile.max_threads_per_sm,
            "memory_bus_width": profile.memory_bus_bits,
            "clock_rate": profile.clock_mhz * 1000,
            "memory_clock_rate": profile.memory_clock_mhz * 1000,
        }
    return changed


_answer: Callable[[Any], Any] = lambda device: None  # noqa: E731 (what torch's function asks while a fake is on)


def _asks(device: Any = None) -> Any:
    import pytest_gpuinvariants.integrations.seams as seams

    return seams._answer(device)


def _torch(module: Any, fake: Fake) -> Undo:
    """Exchange the function's code, so that names imported earlier see the fake too."""
    global _answer
    function: FunctionType = module.get_device_properties
    code = function.__code__
    true = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    changed = _changed(fake)
    _answer = lambda device: FakeProperties(true(device), changed)  # noqa: E731
    function.__code__ = _asks.__code__
    return lambda: setattr(function, "__code__", code)


def _nvml(module: Any, fake: Fake) -> Undo:
    """Stand in the bindings' table of C functions."""
    table: dict[str, Any] = module._nvmlGetFunctionPointer_cache

    def capability(handle: Any, major: Any, minor: Any) -> int:
        true = getattr(module.nvmlLib, _CAPABILITY)
        result: int = true(handle, major, minor)
        for reference, value in zip((major, minor), fake.capability, strict=True):
            reference._obj.value = value
        return result

    table[_CAPABILITY] = capability
    return lambda: table.pop(_CAPABILITY, None)


def _renew_folders(env: Any) -> None:
    """Work out FlashInfer's folders again from the environment and the card, as it does when it is imported."""
    base = type(env.FLASHINFER_BASE_DIR)(os.environ.get("FLASHINFER_WORKSPACE_BASE", os.path.expanduser("~")))
    env.FLASHINFER_BASE_DIR = base
    env.FLASHINFER_CACHE_DIR = base / ".cache" / "flashinfer"
    env.FLASHINFER_WORKSPACE_DIR = env._get_workspace_dir_name()
    env.FLASHINFER_JIT_DIR = env.FLASHINFER_WORKSPACE_DIR / "cached_ops"
    env.FLASHINFER_GEN_SRC_DIR = env.FLASHINFER_WORKSPACE_DIR / "generated"


_gates: list[tuple[Any, Callable[[], object]]] = []


def watch_lazy_gates() -> None:
    """Remember how torch's ``LazyVal`` gates (``SM90OrLater``) work themselves out: they forget it at first use.

    To be called before the test helpers are imported.
    """

    def watch() -> None:
        lazy: Any = sys.modules[_HELPERS].LazyVal
        true = lazy.__init__

        def init(gate: Any, callback: Callable[[], object]) -> None:
            true(gate, callback)
            _gates.append((gate, callback))

        lazy.__init__ = init

    if _HELPERS not in sys.modules:
        after_import(_HELPERS, watch)


def renew_lazy_gates() -> None:
    """Have the gates work themselves out again."""
    for gate, callback in _gates:
        gate._cb = callback


def _ask_properties(module: Any) -> object:
    properties = module.get_device_properties(module.torch.device("cuda", 0))
    return properties.major, properties.minor


def _ask_nvml(module: Any) -> object:
    module.nvmlInit()
    try:
        return tuple(module.nvmlDeviceGetCudaComputeCapability(module.nvmlDeviceGetHandleByIndex(0)))
    finally:
        module.nvmlShutdown()


def _ask_gate(name: str) -> Callable[[Any], object]:
    return lambda module: getattr(module, name)(module.torch.device("cuda", 0))


def _ask_backend(module: Any) -> object:
    half = module.torch.bfloat16
    return module.determine_attention_backend(module.torch.device("cuda", 0), 0, False, False, half, half)


@dataclass(frozen=True)
class Seam:
    """A place where code learns what card there is.

    Attributes:
        module: the module that has it.
        attribute: its name there, dotted for a member of a class.
        package: the distribution, and ...
        since: ... the first of its versions in which the attribute must be there.
        ask: what it answers for device 0; None where that is not a matter of the capability.
        apply: how the fake is laid over it, giving the way back; None: it follows from other seams.
        caches: attributes of the module that remember the answer, emptied on both ends.
        renew: works the answer out again from the environment and other seams, when those are laid or undone.
    """

    module: str
    attribute: str
    package: str
    since: str
    ask: Callable[[Any], object] | None = None
    apply: Callable[[Any, Fake], Undo] | None = None
    caches: tuple[str, ...] = ()
    renew: Callable[[Any], object] | None = None

    @property
    def name(self) -> str:
        """``module.attribute``."""
        return f"{self.module}.{self.attribute}"


def _flashinfer_gate(name: str) -> Seam:
    return Seam("flashinfer.utils", name, "flashinfer-python", "0.7", _ask_gate(name))


SEAMS = (
    Seam("torch.cuda", "get_device_properties", "torch", "2.0", _ask_properties, _torch),
    Seam("torch.cuda", "get_device_capability", "torch", "2.0", lambda module: module.get_device_capability(0)),
    Seam("torch.cuda", "is_available", "torch", "2.0"),  # stays true: the simulated runtime answers it
    Seam(_HELPERS, "LazyVal", "torch", "2.0"),  # renewed on both ends
    Seam("pynvml", _CAPABILITY, "nvidia-ml-py", "12", _ask_nvml, _nvml),
    Seam("vllm.third_party.pynvml", _CAPABILITY, "vllm", "0.11", _ask_nvml, _nvml),
    Seam(
        "vllm.platforms",
        "current_platform",
        "vllm",
        "0.11",
        lambda module: tuple(module.current_platform.get_device_capability()),
    ),
    Seam(
        "vllm.platforms.cuda",
        "NvmlCudaPlatform.get_device_capability",
        "vllm",
        "0.11",
        lambda module: tuple(module.NvmlCudaPlatform.get_device_capability()),
        caches=(
            "NvmlCudaPlatform.get_device_capability",
            "NvmlCudaPlatform.is_arch_support_pdl",
            "_get_backend_priorities",
        ),
    ),
    Seam(
        "vllm.platforms.cuda",
        "NonNvmlCudaPlatform.get_device_capability",
        "vllm",
        "0.11",
        lambda module: tuple(module.NonNvmlCudaPlatform.get_device_capability()),
        caches=("NonNvmlCudaPlatform.get_device_capability",),
    ),
    Seam(
        "flashinfer.utils",
        "get_device_properties",
        "flashinfer-python",
        "0.7",
        _ask_properties,
        caches=("get_device_properties",),
    ),
    Seam(
        "flashinfer.utils",
        "get_compute_capability",
        "flashinfer-python",
        "0.7",
        _ask_gate("get_compute_capability"),
        caches=("get_compute_capability", "device_support_pdl", "get_shared_bytes_per_block_optin"),
    ),
    *(
        _flashinfer_gate(f"is_sm{which}_supported")
        for which in ("90a", "100a", "100f", "110a", "120a", "120f", "121a", "12x")
    ),
    Seam("flashinfer.utils", "determine_attention_backend", "flashinfer-python", "0.7", _ask_backend),
    Seam(
        "flashinfer.jit.env",
        "FLASHINFER_JIT_DIR",
        "flashinfer-python",
        "0.7",
        lambda module: str(module.FLASHINFER_JIT_DIR),
        renew=_renew_folders,
    ),
    Seam(
        "flashinfer.jit.core",
        "current_compilation_context",
        "flashinfer-python",
        "0.7",
        lambda module: frozenset(module.current_compilation_context.TARGET_CUDA_ARCHS),
        renew=lambda module: module.refresh_current_compilation_context(),
    ),
    Seam(
        "triton.runtime",
        "driver",
        "triton",
        "3.0",
        lambda module: module.driver.active.get_current_target().arch,
    ),
)
"""Every seam."""
