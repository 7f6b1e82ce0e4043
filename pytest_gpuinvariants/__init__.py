"""Invariants of GPU host code, stated as pytest markers.

Everything a test needs is imported from here; torch and vLLM are not imported by it.
"""

from __future__ import annotations

from pytest_gpuinvariants.context_independence import assert_context_independent
from pytest_gpuinvariants.decorators import (
    MarkerArgumentError,
    fresh_config_context,
    known_fault,
    requires_cuda,
    requires_gpu_memory,
    requires_gpus,
    requires_nvlink,
    requires_package,
    requires_sm,
    requires_sm80,
    requires_sm89,
    requires_sm90,
    requires_sm100,
    requires_sm103,
    requires_sm120,
)
from pytest_gpuinvariants.fakes import faking
from pytest_gpuinvariants.findings import Finding, InvariantViolation
from pytest_gpuinvariants.imports import assert_no_import_side_effects, no_import_side_effects
from pytest_gpuinvariants.integrations.singletons import Singleton, Treatment
from pytest_gpuinvariants.regions import InvariantWarning, allow_sync, no_implicit_sync

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "InvariantViolation",
    "InvariantWarning",
    "MarkerArgumentError",
    "Singleton",
    "Treatment",
    "__version__",
    "allow_sync",
    "assert_context_independent",
    "assert_no_import_side_effects",
    "faking",
    "fresh_config_context",
    "known_fault",
    "no_implicit_sync",
    "no_import_side_effects",
    "requires_cuda",
    "requires_gpu_memory",
    "requires_gpus",
    "requires_nvlink",
    "requires_package",
    "requires_sm",
    "requires_sm80",
    "requires_sm89",
    "requires_sm90",
    "requires_sm100",
    "requires_sm103",
    "requires_sm120",
]
