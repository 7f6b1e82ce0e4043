"""Resolvers of real vLLM, asked inside and outside of a configuration context, the one first and the other first."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytest_gpuinvariants import assert_context_independent, fresh_config_context, requires_package, requires_sm90
from pytest_gpuinvariants.integrations.vllm_backends import MODULE

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import import_or_skip  # noqa: TID252

pytestmark = [requires_sm90(host_only=True), requires_package("vllm>=0.33.0,<0.34"), fresh_config_context]


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_reduce_backend(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As released, the backend is decided by the machine and one variable."""
    module: Any = import_or_skip(MODULE)
    monkeypatch.delenv("VLLM_FLASHINFER_ALLREDUCE_BACKEND", raising=False)
    monkeypatch.setattr(module, "_node_count", lambda group: nodes)
    resolve = functools.partial(module._resolve_fi_ar_backend, None)
    assert assert_context_independent(resolve) == (("mnnvl", True) if nodes == 1 else (None, False))
