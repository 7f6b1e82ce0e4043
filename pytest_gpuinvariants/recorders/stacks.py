"""The Python stack of a call, cut to the caller's code."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

from pytest_gpuinvariants.events import Frame, Stack, Thread
from pytest_gpuinvariants.integrations import vllm_sync

_OWN = "pytest_gpuinvariants"
# What calls the test, and everything outside of it.
_RUNNERS = ("_pytest", "pluggy", "threading", "multiprocessing", "doctest", "runpy")
# In between, and of no help: what a test case or a mock calls a method through.
_BETWEEN = ("unittest",)
_GENERATED = os.path.join("torch", "_functorch", "")


def _package(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0]


def _is_own(frame: FrameType) -> bool:
    """Whether a frame is the plugin's machinery; the suites it ships are callers like any other."""
    name = str(frame.f_globals.get("__name__", ""))
    return name == _OWN or (name.startswith(f"{_OWN}.") and not name.startswith(f"{_OWN}.suites"))


def _is_torch(frame: FrameType) -> bool:
    """Whether a frame is torch's, of code that torch.compile has generated, or of vLLM's wrappers around torch."""
    name = str(frame.f_globals.get("__name__", ""))
    if not name:  # code that was generated without a module
        return _GENERATED in frame.f_code.co_filename
    return (
        name.partition(".")[0] == "torch"
        or name == vllm_sync.MODULE
        or frame.f_code.co_filename.startswith("<eval_with_key>")
    )


def capture(full: bool = False) -> Stack:
    """Frames of the calling thread, innermost first.

    Frames of the plugin itself go; so do the leading ones in torch, through which the caller reached
    CUDA, and everything outside the test function.

    Args:
        full: keep torch's frames and the test runner's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_own(frame) or _package(frame) == "ctypes"):
        frame = frame.f_back
    innermost = frame
    if not full:
        while frame is not None and _is_torch(frame):
            frame = frame.f_back
        if frame is None or _package(frame) in _RUNNERS:
            frame = innermost  # nothing but torch: a thread of its own, say
    frames: list[Frame] = []
    while frame is not None:
        if not full and frames and _package(frame) in _RUNNERS:
            break
        if full or not (_is_own(frame) or _package(frame) in _BETWEEN):
            code = frame.f_code
            module = str(frame.f_globals.get("__name__", "?"))
            frames.append(Frame(module, code.co_qualname, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


def current_thread(native_id: int | None = None) -> Thread:
    """The calling thread; by the native id that the CUDA side saw, where it saw one."""
    # Not threading.current_thread(): that would register a thread which Python did not start.
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return Thread(
        threading.get_native_id() if native_id is None else native_id, known.name if known is not None else "native"
    )
