"""Which CUDA torch is built for and which device is current, without importing torch."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path


def cuda_version() -> str | None:
    """The CUDA version of the installed torch, for example ``13.0``; None without a CUDA build.

    It is ``torch.version.cuda``; while torch is not imported, that is read in its file.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        version: str | None = torch.version.cuda
        return version
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda(?:\s*:[^=\n]*)?\s*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def current_device() -> int:
    """Index of this thread's current CUDA device; the first while torch has not initialized CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    index: int = torch.cuda.current_device()
    return index
