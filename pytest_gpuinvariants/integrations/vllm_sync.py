"""vLLM's own sync checker: its ``gpu_sync_allowed()`` regions are exemptions here too."""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from types import ModuleType

MODULE = "vllm.utils.gpu_sync_debug"
REASON = "vLLM's gpu_sync_allowed()"

_lock = threading.Lock()
_depth = 0
_switched: list[ModuleType] = []


def enter() -> None:
    """Make vLLM keep track of its allowed regions, which it does only while its check has a mode.

    Its check is not switched on by this: that needs ``enable_gpu_sync_check()`` too.
    """
    global _depth
    module = sys.modules.get(MODULE)
    with _lock:
        _depth += 1
        if module is not None and getattr(module, "_SYNC_CHECK_MODE", "") is None:
            module._SYNC_CHECK_MODE = "warn"  # type: ignore[attr-defined]
            _switched.append(module)


def leave() -> None:
    """Put vLLM's mode back, when the last region is left."""
    global _depth
    with _lock:
        _depth -= 1
        while _switched and not _depth:
            _switched.pop()._SYNC_CHECK_MODE = None  # type: ignore[attr-defined]


def variable() -> ContextVar[int] | None:
    """The variable in which vLLM counts the allowed regions around a call; None where vLLM is not loaded."""
    found: ContextVar[int] | None = getattr(sys.modules.get(MODULE), "_allow_depth", None)
    return found


def allows() -> bool:
    """Whether the calling thread or task is inside one of vLLM's allowed regions."""
    depth = variable()
    return bool(depth is not None and depth.get())
