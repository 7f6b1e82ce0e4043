"""Whose calls a region or an allowance covers: by thread, and by frame where code is suspended.

A ``with`` block in a plain function covers its thread.  In a generator or coroutine it covers only
what runs while that one does: between two steps the thread belongs to its caller, or to another
task of the event loop.
"""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass, field
from types import FrameType

_OWN = "pytest_gpuinvariants"
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _module(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _owner() -> FrameType | None:
    """The suspendable frame that holds the ``with`` block, None when it is a plain function's.

    A generator that makes a context manager or a fixture stands for whoever uses it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = _module(frame)
        own = module.startswith(f"{_OWN}.") and not module.startswith(f"{_OWN}.suites")
        if module == "contextlib" or (own and not frame.f_code.co_flags & _SUSPENDING):
            frame = frame.f_back
        elif not frame.f_code.co_flags & _SUSPENDING:
            return None
        elif _module(frame.f_back) == "contextlib":
            frame = frame.f_back
        elif _module(frame.f_back) == "_pytest.fixtures":
            return None
        else:
            return frame
    return None


@dataclass(slots=True, eq=False)
class Scope:
    """The threads, and the frame if any, that are covered.

    ``adopted`` are threads that were started inside; ``every_thread`` covers the whole process.
    """

    thread: int = field(default_factory=threading.get_native_id)
    frame: FrameType | None = None
    every_thread: bool = False
    adopted: set[int] = field(default_factory=set)

    @classmethod
    def here(cls, every_thread: bool = False) -> Scope:
        """The scope of a ``with`` block that the caller's caller is about to enter."""
        return cls(frame=None if every_thread else _owner(), every_thread=every_thread)

    def covers(self, thread: int) -> bool:
        """Whether a call is covered.  To be asked on the calling thread, while the call is under way."""
        if self.every_thread or thread in self.adopted:
            return True
        if thread != self.thread:
            return False
        if self.frame is None:
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame is self.frame:
                return True
            frame = frame.f_back
        return False
