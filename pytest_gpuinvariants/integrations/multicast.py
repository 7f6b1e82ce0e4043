"""NVLink multicast: who creates such objects, and how each of them is kept from it.

A multicast object is made by several processes together and belongs to the machine's fabric, not to
a process alone: a test run makes none unless it is told to.  Libraries that create them in C++ heed
an environment variable; those that do it from Python are stopped at the function that does it.
Nothing is imported here: a module is changed after somebody else has imported it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pytest_gpuinvariants.integrations.after_import import once_imported

OPTION = "--gpu-allow-multicast"
VARIABLE = "PYTEST_GPUINVARIANTS_MULTICAST"
REFUSE = "refuse"
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    VARIABLE: REFUSE,  # for child processes, see join()
}
"""What keeps NCCL, NVSHMEM and torch's symmetric memory from multicast."""


class MulticastRefusedError(RuntimeError):
    """An NVLink multicast object was about to be created in a run that does not allow it."""


def _always(arguments: Mapping[str, Any]) -> bool:
    return True


def _enabled(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("enable_multicast", True))


@dataclass(frozen=True)
class Seam:
    """A function that creates, joins or fills a multicast object.

    ``owner`` is a class of the module, empty for a function of its own; ``asks`` tells by the bound
    arguments whether a call wants multicast.
    """

    module: str
    owner: str
    function: str
    asks: Callable[[Mapping[str, Any]], bool] = _always

    @property
    def label(self) -> str:
        """What a message calls it: the class for a constructor, else the function."""
        names = (self.owner, "" if self.function == "__init__" else self.function)
        return ".".join(filter(None, names))


_DRIVER_CALLS = (
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastBindMem_v2",
    "cuMulticastBindAddr",
    "cuMulticastBindAddr_v2",
)
SEAMS: tuple[Seam, ...] = (
    # Before anything that other ranks wait for: only rank 0 gets as far as cuMulticastCreate.
    Seam("flashinfer.comm.trtllm_mnnvl_ar", "MNNVLAllReduceFusionWorkspace", "__init__"),
    Seam("flashinfer.comm.mnnvl_cutedsl_ar", "MNNVLCuteDSLAllReduceFusionWorkspace", "__init__"),
    Seam("flashinfer.comm.mixed_comm", "MixedCommHandler", "init_virtual_memory"),
    Seam("flashinfer.comm.mnnvl", "McastGPUBuffer", "__init__"),
    Seam("flashinfer.comm.mnnvl", "SymmDeviceMemory", "__init__", _enabled),
    # Whoever else does it through NVIDIA's Python bindings, under both of their names.
    *(Seam("cuda.bindings.driver", "", call) for call in _DRIVER_CALLS),
    *(Seam("cuda.cuda", "", call) for call in _DRIVER_CALLS),
)
"""A version that lacks one is left as it is."""

Refuse = Callable[[str], None]
"""Told of a call by its label; raises."""


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # no signature, or a call that the function itself will refuse
        return kwargs
    return bound.arguments


def _guarded(seam: Seam, original: Callable[..., Any], refuse: Refuse) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if seam.asks(_bound(original, args, kwargs)):
            refuse(seam.label)
        return original(*args, **kwargs)

    return guarded


def _change(seam: Seam, refuse: Refuse, restored: ExitStack) -> None:
    module = sys.modules.get(seam.module)
    owner = getattr(module, seam.owner, None) if seam.owner else module
    original = vars(owner).get(seam.function) if owner is not None else None
    if original is None:
        return
    stand_in = _guarded(seam, original, refuse)
    setattr(owner, seam.function, stand_in)

    def restore() -> None:
        if vars(owner).get(seam.function) is stand_in:  # what someone put there after us is left alone
            setattr(owner, seam.function, original)

    restored.callback(restore)


def install(refuse: Refuse) -> ExitStack:
    """Stand in the way at every seam, of modules imported by now or later.

    Args:
        refuse: called with a seam's label before it creates anything; must raise.

    Returns:
        What puts everything back when it is closed.
    """
    restored = ExitStack()
    for name in dict.fromkeys(seam.module for seam in SEAMS):

        def change(name: str = name) -> None:
            for seam in SEAMS:
                if seam.module == name:
                    _change(seam, refuse, restored)

        restored.callback(once_imported(name, change))
    return restored


def refusal(label: str) -> MulticastRefusedError:
    """The error for a call, with the test under way and the option that allows it."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] or "no test (collection, or a fixture's end)"
    return MulticastRefusedError(
        f"{label} creates an NVLink multicast object, which is refused in {test}: give {OPTION} to allow it"
    )


def _refuse(label: str) -> None:
    raise refusal(label)


_joined = False


def join() -> None:
    """Refuse in this process, too, where the run that it descends from does.  A second call does nothing."""
    global _joined
    if os.environ.get(VARIABLE) == REFUSE and not _joined:
        _joined = True
        install(_refuse)
