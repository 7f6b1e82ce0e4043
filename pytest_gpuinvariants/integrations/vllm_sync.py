"""vLLM's own sync checker: its ``gpu_sync_allowed()`` regions are exemptions here too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from types import ModuleType

from pytest_gpuinvariants.integrations.after_import import after_import

MODULE = "vllm.utils.gpu_sync_debug"
REASON = "vLLM's gpu_sync_allowed()"

_lock = threading.RLock()  # a signal's handler may fork inside of it
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_depth = 0
_before: list[tuple[ModuleType, str, object]] = []
_stop_waiting: Callable[[], None] | None = None

# vLLM keeps track of its allowed regions only while its check has a mode.  With that alone a worker that
# starts now would switch the whole check on: torch's debug mode, warnings, wrapped tensor methods.
_SWITCHED: dict[str, object] = {
    "_SYNC_CHECK_MODE": "warn",
    "_sync_check_enabled": False,
    "_copy_checkers_installed": True,
    "_compile_time_suppressors_installed": True,
    "_checked_region": lambda mode: nullcontext(),
}


def _switch() -> None:
    module = sys.modules.get(MODULE)
    if module is None or getattr(module, "_SYNC_CHECK_MODE", "") is not None:
        return  # not there, or in use by whoever asked for it
    for name, value in _SWITCHED.items():
        if hasattr(module, name):
            _before.append((module, name, getattr(module, name)))
            setattr(module, name, value)


def _switch_back() -> None:
    while _before:
        setattr(*_before.pop())


def enter() -> None:
    """Make vLLM keep track of its allowed regions, without its own check."""
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
        _switch_back()


def variable() -> ContextVar[int] | None:
    """The variable in which vLLM counts the allowed regions around a call; None where vLLM is not loaded."""
    found: ContextVar[int] | None = getattr(sys.modules.get(MODULE), "_allow_depth", None)
    return found


def allows() -> bool:
    """Whether the calling thread or task is inside one of vLLM's allowed regions."""
    depth = variable()
    return bool(depth is not None and depth.get())
