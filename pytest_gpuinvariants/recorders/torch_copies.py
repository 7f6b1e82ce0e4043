"""Which tensor a pageable copy is a duplicate of.

A CUDA call shows the memory that torch handed over.  For a pinned tensor with gaps that is a
pageable temporary, which would send the reader to look for a missing ``pin_memory()`` that is there.
So while a region is armed the copying Tensor methods remember their operands, and a pageable copy
made inside one is asked whether its host operand was pinned.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from pytest_gpuinvariants.recorders.frame_layout import has_known_head

_METHODS = ("copy_", "to", "cuda", "cpu", "__setitem__")
# Of each method: what stands in for it, and what was there, None when it was inherited from C.
_installed: dict[str, tuple[object, object]] = {}
_stand_ins: dict[int, tuple[object, object]] = {}
_library: ctypes.PyDLL | None = None


def _stand_in(library: ctypes.PyDLL, original: object) -> object:
    # One for each method for ever, since the C side never frees it.
    if id(original) not in _stand_ins:
        _stand_ins[id(original)] = (library.gi_copying(ctypes.py_object(original)), original)
    return _stand_ins[id(original)][0]


def install(library: ctypes.PyDLL) -> None:
    """Put stand-ins in place of the methods, where torch is imported and they are not there yet.

    Args:
        library: the one that is built from ``copying.c``.
    """
    global _library
    torch = sys.modules.get("torch")
    if torch is None or _installed or not has_known_head():
        return
    library.gi_copying.restype = library.gi_operand.restype = ctypes.py_object
    library.gi_operands.restype = ctypes.c_size_t
    _library = library
    tensor = torch.Tensor
    for name in _METHODS:
        own = tensor.__dict__.get(name)  # another tool's wrapper, or None: inherited from C
        stand_in = _stand_in(library, getattr(tensor, name))
        _installed[name] = (stand_in, own)
        setattr(tensor, name, stand_in)


def remove() -> None:
    """Put back what was there; a method that someone wrapped after us is left alone."""
    if not _installed:
        return
    tensor = sys.modules["torch"].Tensor
    for name, (stand_in, own) in _installed.items():
        if tensor.__dict__.get(name) is not stand_in:
            continue
        if own is None:
            delattr(tensor, name)
        else:
            setattr(tensor, name, own)
    _installed.clear()


def is_gapped() -> bool:
    """Whether the copy under way on this thread has a pinned, non-contiguous host operand."""
    if _library is None:
        return False
    operands: list[Any] = [_library.gi_operand(ctypes.c_size_t(index)) for index in range(_library.gi_operands())]
    torch = sys.modules["torch"]
    tensors = [one for one in operands if isinstance(one, torch.Tensor) and one.layout is torch.strided]
    return any(not one.is_cuda and not one.is_contiguous() and one.is_pinned() for one in tensors)
