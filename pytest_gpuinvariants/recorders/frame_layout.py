"""Where CPython keeps a thread's frames, so that they are read without an object being made of each.

Offsets in bytes, by version: of ``PyThreadState`` and ``_PyCFrame`` in ``cpython/pystate.h``, of ``PyFrameObject`` and
``_PyInterpreterFrame`` in ``internal/pycore_frame.h``.  They are fixed within a version.  Of another version, and where
the C side finds the frames not to lie so, Python is asked for its frames, which takes longer and tells the same.
"""

from __future__ import annotations

import ctypes
import sys


class FrameLayout(ctypes.Structure):
    """``frame_layout`` of ``csrc/frames.c``."""

    _fields_ = [
        ("cframe", ctypes.c_uint32),
        ("current_frame", ctypes.c_uint32),
        ("f_frame", ctypes.c_uint32),
        ("f_code", ctypes.c_uint32),
        ("previous", ctypes.c_uint32),
        ("prev_instr", ctypes.c_uint32),
    ]


LAYOUTS: dict[tuple[int, ...], FrameLayout] = {
    (3, 11): FrameLayout(56, 8, 24, 32, 48, 56),
    (3, 12): FrameLayout(56, 0, 24, 0, 8, 56),
}

OBJECT_HEAD = 16
"""Bytes before an object's own fields, as the C sources count them: no debug build has it, nor one without the GIL."""


def has_known_head() -> bool:
    """Whether this interpreter's objects begin as the C sources have it."""
    return object.__basicsize__ == OBJECT_HEAD


def layout() -> FrameLayout | None:
    """The layout of this interpreter's frames; None where it is not known."""
    if sys.implementation.name != "cpython" or not has_known_head():
        return None
    return LAYOUTS.get(sys.version_info[:2])
