"""Which tensor a pageable copy is a duplicate of.

A CUDA call shows the memory that torch handed over.  For a pinned tensor with gaps that is a
pageable temporary, which would send the reader to look for a missing ``pin_memory()`` that is there.
So while a region is armed the copying Tensor methods have a Python frame, and of a pageable copy made
inside one that frame tells whether the operand was pinned.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_METHODS = ("copy_", "to", "cuda", "cpu")


_installed: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {}
_codes: set[CodeType] = set()


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    # Nothing but a frame, in which the operands can be found: this runs in every copy while a region is armed.
    def copying(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    _codes.add(copying.__code__)
    return functools.wraps(original)(copying)


def install() -> None:
    """Wrap the methods, where torch is imported and they are not wrapped yet."""
    torch = sys.modules.get("torch")
    if torch is None or _installed:
        return
    tensor = torch.Tensor
    for name in _METHODS:
        own = tensor.__dict__.get(name)  # another tool's wrapper, or None: inherited from C
        wrapper = _wrap(getattr(tensor, name))
        _installed[name] = (wrapper, own)
        setattr(tensor, name, wrapper)


def remove() -> None:
    """Put back what was there; a method that someone wrapped after us is left alone."""
    if not _installed:
        return
    tensor = sys.modules["torch"].Tensor
    for name, (wrapper, own) in _installed.items():
        if tensor.__dict__.get(name) is not wrapper:
            continue
        if own is None:
            delattr(tensor, name)
        else:
            setattr(tensor, name, own)
    _installed.clear()


def is_gapped(frame: FrameType | None, to_device: bool) -> bool:
    """Whether a copy has a pinned, non-contiguous host operand.

    Args:
        frame: the innermost Python frame of the call that copies.
        to_device: the direction of the copy.
    """
    if frame is None or frame.f_code not in _codes:
        return False
    operands = frame.f_locals
    tensor, arguments = operands["self"], operands["args"]
    if to_device and arguments and hasattr(arguments[0], "is_pinned"):
        tensor = arguments[0]
    return not tensor.is_contiguous() and not tensor.is_cuda and bool(tensor.is_pinned())
