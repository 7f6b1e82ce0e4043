"""What a tensor on a simulated card prints.

torch computes with a tensor's values to print them.  Kernels do not run here, so a count that one of
them should have written is whatever was in that memory: a number of elements to walk through, for
hours.  pytest prints the arguments of every test that fails.
"""

from __future__ import annotations

import sys
from typing import Any

from pytest_gpuinvariants.integrations.after_import import once_imported

_TEXT = "<values: kernels do not run on a simulated card>"
_done = False


def install() -> None:
    """Let tensors of a simulated card print what is known of them, from torch's import on."""
    global _done
    if not _done:
        _done = True
        once_imported("torch._tensor_str", _replace)


def _replace() -> None:
    module: Any = sys.modules["torch._tensor_str"]
    printed = module._tensor_str

    def tensor_str(tensor: Any, indent: int) -> str:
        if not tensor.is_cuda or not tensor.numel():
            return str(printed(tensor, indent))
        # On a real card the host waits for the values: code that prints does so here, too.
        torch: Any = module.torch
        torch.empty((), dtype=torch.uint8, device=tensor.device).item()
        return _TEXT

    module._tensor_str = tensor_str
