"""Lay a fake over what torch, vLLM, FlashInfer and Triton are told of the card, and take it off again.

Names imported earlier must see it too, so nothing is rebound: the seams are changed from which all
of them take their answer (:mod:`~pytest_gpuinvariants.integrations.seams`), and the caches in between
are emptied on both ends.
"""

from __future__ import annotations

import functools
import gc
import operator
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from pytest_gpuinvariants import environment
from pytest_gpuinvariants.hardware.fakes import Fake
from pytest_gpuinvariants.hardware.native_build import cache_root
from pytest_gpuinvariants.integrations import constants
from pytest_gpuinvariants.integrations.after_import import once_imported
from pytest_gpuinvariants.integrations.seams import SEAMS, FakeProperties, Seam, renew_lazy_gates

_CACHES = ("vllm", "flashinfer", "triton", "torch.cuda", "torch._inductor", "torch.backends", "torch.utils._triton")
_KNOWN = frozenset(name.partition(".")[0] for name in _CACHES)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


def _is_library(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or str(file).startswith(_LIBRARIES)


_CACHE = type(functools.cache(lambda: None))
_known: weakref.WeakSet[Any] = weakref.WeakSet()
_looked_at: frozenset[str] = frozenset()


def _caches() -> list[Any]:
    """Every functools cache of vLLM, FlashInfer, Triton and torch's device layers, and of the user's own code.

    Looking at all objects takes a tenth of a second beside vLLM: it is done when modules were imported since.
    """
    global _looked_at
    modules = frozenset(sys.modules)
    if modules != _looked_at:
        _looked_at = modules
        for found in gc.get_objects():
            if type(found) is not _CACHE:
                continue
            name = getattr(found, "__module__", None) or ""
            ours = name.startswith(("pytest_gpuinvariants", "_pytest", "pluggy"))
            if name.startswith(_CACHES) or (not ours and name in sys.modules and not _is_library(sys.modules[name])):
                _known.add(found)
    return list(_known)


def clear_caches() -> None:
    """Empty those caches, renew torch's lazy gates, and work out again what was worked out at import."""
    renew_lazy_gates()
    for cache in (caches := _caches()):
        cache.cache_clear()
    constants.work_out()
    for cache in caches:  # which working them out has filled
        cache.cache_clear()


def _still_full() -> list[str]:
    """Caches of the table that hold something."""
    named = [
        (f"{seam.module}.{cache}", operator.attrgetter(cache)(sys.modules[seam.module]))
        for seam in SEAMS
        if seam.module in sys.modules
        for cache in seam.caches
    ]
    return [f"the cache of {name}" for name, cache in named if cache.cache_info().currsize]


def _renewable() -> list[tuple[Seam, ModuleType]]:
    return [(seam, sys.modules[seam.module]) for seam in SEAMS if seam.renew is not None and seam.module in sys.modules]


def _renew() -> None:
    for seam, module in _renewable():
        assert seam.renew is not None
        seam.renew(module)


def _stale() -> list[str]:
    """What is worked out otherwise when it is worked out anew."""
    held = [(seam, module, seam.ask(module)) for seam, module in _renewable() if seam.ask is not None]
    _renew()
    return [f"{seam.name} = {value!r}" for seam, module, value in held if seam.ask and seam.ask(module) != value]


def _own_attributes() -> dict[tuple[str, str], object]:
    own = [
        (name, module)
        for name, module in list(sys.modules.items())
        if not _is_library(module) and name.partition(".")[0] not in _KNOWN  # wherever they are installed
    ]
    return {
        (name, attribute): value
        for name, module in own
        if not name.startswith("pytest_gpuinvariants")
        for attribute, value in list(vars(module).items())
    }


class Faking:
    """A fake in force, in the whole process."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self._undo = ExitStack()
        self._before = _own_attributes()
        folder = cache_root() / "flashinfer" / f"faked-sm{fake.arch.replace('.', '')}"
        self._variables = {"FLASHINFER_CUDA_ARCH_LIST": fake.arch, "FLASHINFER_WORKSPACE_BASE": str(folder)}
        self._environment = environment.set_variables(self._variables)
        for seam in SEAMS:
            if seam.apply is not None:
                self._lay_over(seam)
        _renew()
        clear_caches()

    def _lay_over(self, seam: Seam) -> None:
        def lay() -> None:
            assert seam.apply is not None
            self._undo.callback(seam.apply(sys.modules[seam.module], self.fake))

        self._undo.callback(once_imported(seam.module, lay))

    def _restore_environment(self) -> None:
        environment.restore(self._environment)
        # Libraries derive variables of their own when they are imported.
        folder = self._variables["FLASHINFER_WORKSPACE_BASE"]
        true = os.environ.get("FLASHINFER_WORKSPACE_BASE", os.path.expanduser("~"))
        os.environ.update({name: value.replace(folder, true) for name, value in os.environ.items() if folder in value})

    def also(self, undo: Callable[[], object]) -> None:
        """Call this too when the fake is taken off."""
        self._undo.callback(undo)

    def leave(self) -> None:
        """Take the fake off; every cache that may hold it is empty afterwards."""
        self._restore_environment()
        self._undo.close()
        _renew()  # last: FlashInfer asks torch for the card where the environment names none
        clear_caches()

    def leftovers(self) -> list[str]:
        """What still holds the fake after :meth:`leave`, each with its name.

        Looked at are the caches of the table, what libraries worked out at import, attributes of the
        user's modules, and environment variables.
        """
        found = [
            f"{module}.{attribute} = {value!r}"
            for (module, attribute), value in _own_attributes().items()
            if isinstance(value, FakeProperties)
            or (
                type(value) is tuple
                and value == self.fake.capability
                and self._before.get((module, attribute)) != value
                and not constants.is_written(module, attribute, value)
            )
        ]
        folder = self._variables["FLASHINFER_WORKSPACE_BASE"]
        found += [f"environment variable {name}" for name, value in os.environ.items() if folder in value]
        return _still_full() + _stale() + constants.wrong() + found
