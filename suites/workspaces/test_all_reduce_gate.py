"""The gate of vLLM's FlashInfer all-reduce against the workspace's own answer, around each size limit.

Host code only: the process group is a stand-in, and the workspace is FlashInfer's class with the metadata that its
creation writes, without its memory.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinvariants import fresh_config_context, known_fault, requires_sm90
from pytest_gpuinvariants.decorators import KnownFault
from pytest_gpuinvariants.events import GateAnswered
from pytest_gpuinvariants.integrations.vllm_workspaces import consistent_workspaces

from ..vllm_attention.harness import import_or_skip  # noqa: TID252
from .stand_ins import MODULE, Group, stand_in

pytestmark = [
    requires_sm90(host_only=True),
    fresh_config_context(singletons="vllm.fi_ar_workspace*"),
]
DTYPES = ("bfloat16", "float16", "float32")
HIDDEN = (1, 7, 128, 2048, 2880, 4096, 7168, 16384)
# (compute capability, world size): the rows of vLLM's table, which a test compares with it.
ROWS = [(90, 2), (90, 4), (90, 8), (100, 2), (100, 4), (100, 8), (100, 16)]
ROWS += [(103, 2), (103, 4), (103, 8), (103, 16), (107, 2), (107, 4), (107, 8)]


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    import_or_skip(MODULE)


def _table() -> dict[int, dict[int, float]]:
    table: dict[int, dict[int, float]] = import_or_skip(
        "vllm.compilation.passes.fusion.allreduce_rms_fusion"
    ).FI_ALLREDUCE_FUSION_MAX_SIZE_MB
    return table


def _reduce(monkeypatch: pytest.MonkeyPatch, capability: int = 90, world_size: int = 2, group: Any = None) -> Any:
    import torch

    module = stand_in(monkeypatch)
    monkeypatch.setattr(
        module.PassConfig, "default_fi_allreduce_fusion_max_size_mb", staticmethod(lambda: _table()[capability])
    )
    reduce = module.FlashInferAllReduce(group or Group(world_size), torch.device("cuda:0"))
    assert not reduce.disabled
    return reduce


def _input(tokens: int, hidden_dim: int, dtype: str) -> Any:
    import torch

    return torch.empty((tokens, hidden_dim), dtype=getattr(torch, dtype), device="cuda")


def test_the_rows_are_those_of_the_table() -> None:
    """A row that vLLM adds is swept, too, once this test has failed."""
    assert sorted(ROWS) == sorted((capability, size) for capability, row in _table().items() for size in row)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("capability", "world_size"), ROWS, ids=lambda value: str(value))
def test_stand_in_group_gate_agrees_around_the_limit(
    capability: int, world_size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around the table's limit the gate admits what fits in bytes, and the workspace says the same."""
    limit = int(_table()[capability][world_size] * 2**20)
    size = import_or_skip("torch").finfo(getattr(import_or_skip("torch"), dtype)).bits // 8
    for hidden_dim in HIDDEN:
        reduce = _reduce(monkeypatch, capability, world_size)
        most = limit // (hidden_dim * size)
        with consistent_workspaces() as events:
            for tokens in (1, most - 1, most, most + 1):
                if tokens > 0:
                    fits = tokens * hidden_dim * size <= limit
                    assert reduce.should_use_fi_ar(_input(tokens, hidden_dim, dtype)) == fits, (tokens, hidden_dim)
        assert any(isinstance(event, GateAnswered) for event in events)
        reduce.destroy()


def _reused(*names: str) -> KnownFault:
    gate = f"{MODULE}.FlashInferAllReduce"
    kind = "reused-for-other:flashinfer-all-reduce"
    return known_fault(
        tuple(f"{kind}:{name}@{gate}.{asker}" for name in names for asker in ("_ensure_workspace", "should_use_fi_ar")),
        package="vllm",
        versions=">=0.33.0,<0.34",
        reason=f"the getter gives the living workspace, whatever {' and '.join(names)} is asked for",
    )


@pytest.mark.parametrize(
    "second",
    [
        pytest.param((8, 128, "bfloat16"), marks=_reused("hidden_dim"), id="hidden_dim"),
        pytest.param((8, 8192, "float16"), marks=_reused("dtype"), id="dtype"),
        pytest.param((8, 128, "float16"), marks=_reused("hidden_dim", "dtype"), id="hidden_dim-and-dtype"),
    ],
)
def test_stand_in_group_living_workspace_for_another(
    second: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second use asks for another workspace than the one that lives."""
    reduce = _reduce(monkeypatch)
    with consistent_workspaces():
        assert reduce.should_use_fi_ar(_input(8, 8192, "bfloat16"))
        assert reduce.should_use_fi_ar(_input(*second))
    reduce.destroy()


@_reused("group")
def test_stand_in_group_living_workspace_of_another_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second group would reduce in the buffers of the first group's ranks."""
    objects = [_reduce(monkeypatch, group=group) for group in (Group(), Group())]
    with consistent_workspaces():
        for reduce in objects:
            assert reduce.should_use_fi_ar(_input(8, 128, "bfloat16"))


@known_fault(
    f"gate-disagrees:flashinfer-all-reduce:refuses@{MODULE}.FlashInferAllReduce.should_use_fi_ar",
    package="vllm",
    versions=">=0.33.0,<0.34",
    reason="max_num_tokens is kept from the first hidden_dim: with a smaller one the gate refuses what fits",
)
def test_stand_in_group_gate_depends_on_the_first_hidden_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is admitted by itself is refused after a wider one."""
    reduce = _reduce(monkeypatch)
    most = reduce.max_workspace_size // (8192 * 2)
    with consistent_workspaces():
        assert reduce.should_use_fi_ar(_input(most, 8192, "bfloat16"))
        assert not reduce.should_use_fi_ar(_input(most + 1, 128, "bfloat16"))


def test_stand_in_group_no_workspace_for_fp32_beside_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's sentinel differs for fp32: the gate refuses it on a bf16 workspace, as the workspace does."""
    reduce = _reduce(monkeypatch)
    assert reduce.should_use_fi_ar(_input(8, 128, "bfloat16"))
    assert not reduce.should_use_fi_ar(_input(8, 128, "float32"))
    reduce.destroy()
    again = _reduce(monkeypatch)
    assert again.should_use_fi_ar(_input(8, 128, "float32"))


@pytest.mark.parametrize("shape", ["one-dim", "three-dim", "strided", "int32", "float64", "cpu"])
def test_stand_in_group_gate_refuses_other_inputs(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without so much as making a workspace."""
    import torch

    inputs = {
        "one-dim": lambda: torch.empty(8, device="cuda"),
        "three-dim": lambda: torch.empty((2, 2, 8), device="cuda"),
        "strided": lambda: torch.empty((8, 16), device="cuda")[:, ::2],
        "int32": lambda: torch.empty((8, 8), dtype=torch.int32, device="cuda"),
        "float64": lambda: torch.empty((8, 8), dtype=torch.float64, device="cuda"),
        "cpu": lambda: torch.empty((8, 8)),
    }
    reduce = _reduce(monkeypatch)
    assert not reduce.should_use_fi_ar(inputs[shape]())
    assert import_or_skip(MODULE)._fi_ar_workspace is None
