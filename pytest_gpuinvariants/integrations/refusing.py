"""Kernels that are refused while a fake is on: what was chosen or compiled for an architecture that is not there.

They are stopped in Python, before the driver hears of them, at the places through which each family
is launched.  Copies, fills, and torch's own kernels, which are the true card's, run.  The simulated
card refuses in its ``cudaLaunchKernel`` too, so that nothing gets past it in C++.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

from pytest_gpuinvariants.integrations.after_import import once_imported

Refuse = Callable[[str, str], NoReturn]
"""Takes the kernel's name and the library's, and raises."""
Undo = Callable[[], object]

VLLM = frozenset({"_C", "_C_cache_ops", "_moe_C", "_C_custom_ar", "_vllm_fa2_C", "_vllm_fa3_C", "_flashmla_C"})
"""Namespaces of vLLM's compiled operators."""
NO_KERNEL = frozenset({"weak_ref_tensor"})
"""Operators of them that take tensors of the device and launch nothing."""
CUBLAS = (
    *("mm", "bmm", "addmm", "baddbmm", "addmv", "dot", "vdot", "_int_mm", "_scaled_mm"),
    *("mm.out", "bmm.out", "addmm.out", "baddbmm.out", "addmv.out", "_int_mm.out", "_scaled_mm.out"),
)
"""Operators of torch that are cuBLAS calls."""
HOST_SIDE = ("plan", "workspace", "get_", "init")
"""What is in the names of functions of FlashInfer's modules that launch nothing."""


class LaunchRefusedError(RuntimeError):
    """A kernel was about to be launched while the card is made to look like another."""


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Undo:
    true = vars(owner)[name]
    setattr(owner, name, functools.wraps(true)(wrap(true)))
    return lambda: setattr(owner, name, true)


def _triton(module: Any, refuse: Refuse) -> Undo:
    def wrap(true: Any) -> Any:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("warmup"):
                refuse(self.fn.__name__, "Triton")
            return true(self, *args, **kwargs)

        return run

    return _replace(module.JITFunction, "run", wrap)


def _triton_compiled(module: Any, refuse: Refuse) -> Undo:
    """Kernels that were compiled beforehand, as torch.compile does it, are handed to the driver here."""

    def wrap(true: Any) -> Any:
        def handles(self: Any) -> Any:
            if self.module is None:
                refuse(self.name, "Triton")
            return true(self)

        return handles

    return _replace(module.CompiledKernel, "_init_handles", wrap)


class _Module:
    """A module of FlashInfer of which only what is known to launch nothing can be called."""

    def __init__(self, true: Any, name: str, refuse: Refuse) -> None:
        self._true, self._name, self._refuse = true, name, refuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._true, name)
        if not callable(found) or any(part in name for part in HOST_SIDE):
            return found
        return lambda *args, **kwargs: self._refuse(f"{self._name}.{name}", "FlashInfer")

    __getitem__ = __getattr__


def _flashinfer(module: Any, refuse: Refuse) -> Undo:
    def wrap(true: Any) -> Any:
        return lambda self: _Module(true(self), self.name, refuse)

    return _replace(module.JitSpec, "build_and_load", wrap)


def _on_device(argument: object) -> bool:
    return bool(getattr(argument, "is_cuda", False)) or (
        isinstance(argument, list | tuple) and any(_on_device(one) for one in argument)
    )


def _vllm(module: Any, refuse: Refuse) -> Undo:
    def wrap(true: Any) -> Any:
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            name = getattr(self, "_qualified_op_name", None) or self.name()
            namespace, _, operator = name.partition("::")
            on_device = namespace in VLLM and operator.partition(".")[0] not in NO_KERNEL
            if on_device and any(_on_device(one) for one in (*args, *kwargs.values())):
                refuse(operator, "vLLM")
            return true(self, *args, **kwargs)

        return call

    undo = ExitStack()
    for owner in (module._ops.OpOverloadPacket, module._ops.OpOverload):
        undo.callback(_replace(owner, "__call__", wrap))
    return undo.close


def _cublas(module: Any, refuse: Refuse) -> Undo:
    library = module.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch warn of the first operator that is overridden
        for name in CUBLAS:
            library.impl(name, functools.partial(_stop, name, refuse), "CUDA")
    undo: Undo = library._destroy
    return undo


def _stop(name: str, refuse: Refuse, *args: object, **kwargs: object) -> NoReturn:
    refuse(f"aten::{name}", "cuBLAS")


LAUNCHERS: dict[str, tuple[Callable[[Any, Refuse], Undo], ...]] = {
    "triton.runtime.jit": (_triton,),
    "triton.compiler.compiler": (_triton_compiled,),
    "flashinfer.jit.core": (_flashinfer,),
    "torch": (_vllm, _cublas),
}
"""Where kernels are launched, by module, and how that is stopped; since Triton 3.0, FlashInfer 0.7 and torch 2.8."""


def install(refuse: Refuse) -> Undo:
    """Refuse from now on, also in modules that are imported later; the result ends it."""
    undo = ExitStack()

    def lay(name: str) -> None:
        for stop in LAUNCHERS[name]:
            undo.callback(stop(sys.modules[name], refuse))

    for name in LAUNCHERS:
        undo.callback(once_imported(name, functools.partial(lay, name)))
    return undo.close
