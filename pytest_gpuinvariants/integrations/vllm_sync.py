"""vLLM's own sync checker: its ``gpu_sync_allowed()`` regions are exemptions here too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType

from pytest_gpuinvariants.integrations.after_import import after_import

MODULE = "vllm.utils.gpu_sync_debug"
REASON = "vLLM's gpu_sync_allowed()"

_lock = threading.RLock()  # a signal's handler may fork inside of it
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_depth = 0
_switched: list[ModuleType] = []
_stop_waiting: Callable[[], None] | None = None


def _switch() -> None:
    module = sys.modules.get(MODULE)
    if module is not None and getattr(module, "_SYNC_CHECK_MODE", "") is None:
        module._SYNC_CHECK_MODE = "warn"  # type: ignore[attr-defined]
        _switched.append(module)


def enter() -> None:
    """Make vLLM keep track of its allowed regions, which it does only while its check has a mode.

    Its check is not switched on by this: that needs ``enable_gpu_sync_check()`` too.
    """
    global _depth, _stop_waiting
    with _lock:
        _depth += 1
        if MODULE in sys.modules:
            _switch()
        elif _stop_waiting is None:
            _stop_waiting = after_import(MODULE, _switch)


def leave() -> None:
    """Put vLLM's mode back, when the last region is left."""
    global _depth, _stop_waiting
    with _lock:
        _depth -= 1
        if _depth:
            return
        if _stop_waiting is not None:
            _stop_waiting()
            _stop_waiting = None
        while _switched:
            _switched.pop()._SYNC_CHECK_MODE = None  # type: ignore[attr-defined]


def variable() -> ContextVar[int] | None:
    """The variable in which vLLM counts the allowed regions around a call; None where vLLM is not loaded."""
    found: ContextVar[int] | None = getattr(sys.modules.get(MODULE), "_allow_depth", None)
    return found


def allows() -> bool:
    """Whether the calling thread or task is inside one of vLLM's allowed regions."""
    depth = variable()
    return bool(depth is not None and depth.get())
