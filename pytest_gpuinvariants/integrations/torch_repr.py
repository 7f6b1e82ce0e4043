"""What a tensor on a simulated card prints.

torch computes with a tensor's values to print them.  Kernels do not run here, so a count that one of
them should have written is whatever was in that memory: a number of elements to walk through, for
hours.  pytest prints the arguments of every test that fails.
"""

from __future__ import annotations

import sys
from typing import Any

_TEXT = "<values: kernels do not run on a simulated card>"
_done = False


def install() -> None:
    """Let tensors of a simulated card print what is known of them.  Does nothing until torch is imported."""
    global _done
    module: Any = sys.modules.get("torch._tensor_str")
    if module is None or _done:
        return
    printed = module._tensor_str

    def tensor_str(tensor: Any, indent: int) -> str:
        return _TEXT if tensor.is_cuda else str(printed(tensor, indent))

    module._tensor_str = tensor_str
    _done = True
