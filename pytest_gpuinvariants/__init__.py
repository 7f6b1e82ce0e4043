"""Invariants of GPU host code, stated as pytest markers.

Everything a test needs is imported from here; torch and vLLM are not imported by it.
"""

from __future__ import annotations

from pytest_gpuinvariants.decorators import MarkerArgumentError, known_fault, requires_sm90
from pytest_gpuinvariants.findings import Finding, InvariantViolation
from pytest_gpuinvariants.regions import InvariantWarning, allow_sync, no_implicit_sync

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "InvariantViolation",
    "InvariantWarning",
    "MarkerArgumentError",
    "__version__",
    "allow_sync",
    "known_fault",
    "no_implicit_sync",
    "requires_sm90",
]
