"""vLLM's FlashInfer all-reduce, built in context and first used outside: which backend it asks for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_gpuinvariants import known_fault, requires_sm90
from pytest_gpuinvariants.events import BackendAsked
from pytest_gpuinvariants.integrations.vllm_backends import MODULE, consistent_backend

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import import_or_skip  # noqa: TID252

# No process group and no workspace: the test answers for a group of two, and stops the creation once it is asked for.
pytestmark = requires_sm90(host_only=True)


class _CreationStoppedError(RuntimeError):
    """Stands for a creation that fails: what was asked for is known by then."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """VLLM's module with a resolver that depends on the configuration, and no workspace."""
    found = import_or_skip(MODULE)
    config = import_or_skip("vllm.config.vllm")

    def resolve(group: object) -> tuple[str, bool]:
        return ("trtllm" if config.get_current_vllm_config_or_none() is not None else "mnnvl"), False

    def stop(**kwargs: object) -> None:
        raise _CreationStoppedError

    monkeypatch.setattr(found, "_resolve_fi_ar_backend", resolve)
    monkeypatch.setattr(found, "_node_count", lambda group: 1)
    monkeypatch.setattr(found, "TorchDistBackend", lambda group: None)
    monkeypatch.setattr(found.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(found.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(found.flashinfer_comm, "create_allreduce_fusion_workspace", stop)
    found.destroy_fi_ar_workspace()
    yield found
    found.destroy_fi_ar_workspace()


def _use(module: Any, getter: Callable[..., object]) -> list[str]:
    import torch

    config = import_or_skip("vllm.config")
    group = object()
    before = random.getstate()
    with consistent_backend() as events:
        with config.set_current_vllm_config(config.VllmConfig()):
            reduce = module.FlashInferAllReduce(group, torch.device("cuda:0"))
            assert not reduce.disabled
        getter(world_size=2, rank=0, max_token_num=8, hidden_dim=128, dtype=torch.bfloat16, group=group)
        assert random.getstate() == before
    return [event.backend for event in events if isinstance(event, BackendAsked)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=known_fault(
                f"resolved-again:flashinfer-all-reduce@{MODULE}.{name}",
                package="vllm",
                versions=">=0.33.0,<0.34",
                reason="the getter resolves the backend again, outside of the context in which the object did",
            ),
        )
        for name in ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")
    ],
)
def test_installed_config_dependent_resolver_as_released(module: Any, name: str) -> None:
    """As released: the getter asks for what the resolver says outside of the context."""
    _use(module, getattr(module, name))


@pytest.mark.parametrize("name", ["get_fi_ar_workspace", "get_fi_ar_quant_workspace"])
def test_installed_config_dependent_resolver_backend_passed_on(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed: the getter uses what construction resolved, here through a resolver that answers once for a group."""
    resolve = module._resolve_fi_ar_backend
    answers: dict[int, tuple[str, bool]] = {}
    monkeypatch.setattr(module, "_resolve_fi_ar_backend", lambda group: answers.setdefault(id(group), resolve(group)))
    assert _use(module, getattr(module, name)) == ["trtllm"]
