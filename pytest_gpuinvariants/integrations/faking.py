"""Lay a fake over what torch, vLLM, FlashInfer and Triton are told of the card, and take it off again.

Names imported earlier must see it too, so nothing is rebound: the two places are changed from which
all of them take their answer, and the caches in between are emptied on both ends.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import sysconfig
from collections.abc import Callable
from contextlib import ExitStack
from types import FunctionType, ModuleType
from typing import Any

from pytest_gpuinvariants import environment
from pytest_gpuinvariants.hardware.fakes import Fake
from pytest_gpuinvariants.hardware.native_build import cache_root
from pytest_gpuinvariants.integrations.after_import import after_import

_CAPABILITY = "nvmlDeviceGetCudaComputeCapability"
_CACHES = ("vllm", "flashinfer", "triton", "torch.cuda", "torch._inductor", "torch.backends", "torch.utils._triton")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


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
    import pytest_gpuinvariants.integrations.faking as faking

    return faking._answer(device)


def _torch(fake: Fake) -> Callable[[], None]:
    """Since torch 1.x: every name for the properties or the capability ends in ``get_device_properties``."""
    global _answer
    function: FunctionType = sys.modules["torch.cuda"].get_device_properties
    code = function.__code__
    true = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    changed = _changed(fake)
    _answer = lambda device: FakeProperties(true(device), changed)  # noqa: E731
    function.__code__ = _asks.__code__
    return lambda: setattr(function, "__code__", code)


def _nvml(fake: Fake, name: str) -> Callable[[], None]:
    """The bindings' table of C functions; vLLM carries a copy of them (``vllm.third_party.pynvml``)."""
    module: Any = sys.modules[name]
    table: dict[str, Any] = module._nvmlGetFunctionPointer_cache

    def capability(handle: Any, major: Any, minor: Any) -> int:
        true = getattr(module.nvmlLib, _CAPABILITY)
        result: int = true(handle, major, minor)
        for reference, value in zip((major, minor), fake.capability, strict=True):
            reference._obj.value = value
        return result

    table[_CAPABILITY] = capability
    return lambda: (table.pop(_CAPABILITY, None), None)[1]


_gates: list[tuple[Any, Callable[[], object]]] = []
_HELPERS = "torch.testing._internal.common_utils"


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


def _folders(env: Any) -> None:
    """Work out FlashInfer's folders again from the environment, as it does when it is imported."""
    base = type(env.FLASHINFER_BASE_DIR)(os.environ.get("FLASHINFER_WORKSPACE_BASE", os.path.expanduser("~")))
    env.FLASHINFER_BASE_DIR = base
    env.FLASHINFER_CACHE_DIR = base / ".cache" / "flashinfer"
    env.FLASHINFER_WORKSPACE_DIR = env._get_workspace_dir_name()
    env.FLASHINFER_JIT_DIR = env.FLASHINFER_WORKSPACE_DIR / "cached_ops"
    env.FLASHINFER_GEN_SRC_DIR = env.FLASHINFER_WORKSPACE_DIR / "generated"


def _flashinfer() -> None:
    """FlashInfer 0.7: folders and compile flags are module attributes, worked out at import."""
    core: Any = sys.modules.get("flashinfer.jit.core")
    if core is not None and hasattr(core, "current_compilation_context"):
        _folders(sys.modules["flashinfer.jit.env"])
        core.refresh_current_compilation_context()


def _is_library(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or str(file).startswith(_LIBRARIES)


def clear_caches() -> None:
    """Empty every functools cache of vLLM, FlashInfer, Triton and torch's device layers, and of the user's own code."""
    for gate, callback in _gates:
        gate._cb = callback
    cache = type(functools.cache(lambda: None))
    for found in gc.get_objects():
        if type(found) is not cache or not found.cache_info().currsize:
            continue
        name = getattr(found, "__module__", None) or ""
        ours = name.startswith(("pytest_gpuinvariants", "_pytest", "pluggy"))
        if name.startswith(_CACHES) or (not ours and name in sys.modules and not _is_library(sys.modules[name])):
            found.cache_clear()


def _own_attributes() -> dict[tuple[str, str], object]:
    own = [(name, module) for name, module in list(sys.modules.items()) if not _is_library(module)]
    return {
        (name, attribute): value
        for name, module in own
        if not name.startswith("pytest_gpuinvariants")
        for attribute, value in list(vars(module).items())
    }


class Faking:
    """A fake in force, in the whole process."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake
        self._undo = ExitStack()
        self._before = _own_attributes()
        folder = cache_root() / "flashinfer" / f"faked-sm{fake.arch.replace('.', '')}"
        self._variables = {"FLASHINFER_CUDA_ARCH_LIST": fake.arch, "FLASHINFER_WORKSPACE_BASE": str(folder)}
        self._undo.callback(environment.restore, environment.set_variables(self._variables))
        self._seam("torch", lambda: _torch(fake))
        for name in ("pynvml", "vllm.third_party.pynvml"):
            self._seam(name, functools.partial(_nvml, fake, name))
        _flashinfer()
        clear_caches()

    def _seam(self, module: str, apply: Callable[[], Callable[[], None]]) -> None:
        if module in sys.modules:
            self._undo.callback(apply())
        else:
            self._undo.callback(after_import(module, lambda: self._late(apply)))

    def _late(self, apply: Callable[[], Callable[[], None]]) -> None:
        self._undo.callback(apply())

    def leave(self) -> None:
        """Take the fake off; every cache that may hold it is empty afterwards."""
        self._undo.close()
        # Libraries derive variables of their own when they are imported.
        folder = self._variables["FLASHINFER_WORKSPACE_BASE"]
        true = os.environ.get("FLASHINFER_WORKSPACE_BASE", os.path.expanduser("~"))
        os.environ.update({name: value.replace(folder, true) for name, value in os.environ.items() if folder in value})
        _flashinfer()
        clear_caches()

    def leftovers(self) -> list[str]:
        """What still holds the fake after :meth:`leave`: attributes of the user's modules, environment variables."""
        found = [
            f"{module}.{attribute} = {value!r}"
            for (module, attribute), value in _own_attributes().items()
            if isinstance(value, FakeProperties)
            or (
                type(value) is tuple
                and value == self._fake.capability
                and self._before.get((module, attribute)) != value
            )
        ]
        folder = self._variables["FLASHINFER_WORKSPACE_BASE"]
        return found + [f"environment variable {name}" for name, value in os.environ.items() if folder in value]
