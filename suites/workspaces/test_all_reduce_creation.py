"""Creations of vLLM's all-reduce workspaces that fail, that come second, and that serve two getters.

Host code only: the process group is a stand-in but where a name says ``gloo``, and creation is replaced.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants import fresh_config_context, known_fault, requires_sm90, session
from pytest_gpuinvariants.events import Frame, GateAnswered
from pytest_gpuinvariants.integrations.vllm_backends import SUBJECT, conclude
from pytest_gpuinvariants.integrations.vllm_workspaces import consistent_workspaces
from pytest_gpuinvariants.invariants import workspace_reuse
from pytest_gpuinvariants.recorders.stacks import current_thread

from ..vllm_attention.harness import import_or_skip  # noqa: TID252
from .ranks import run_ranks
from .stand_ins import MODULE, Group, make_trtllm, stand_in

pytestmark = requires_sm90(host_only=True)
fresh = fresh_config_context(singletons="vllm.fi_ar_*")
CAUGHT = (RuntimeError, ValueError, AssertionError, MemoryError, NotImplementedError, ImportError, OSError)
NOT_CAUGHT = (KeyboardInterrupt, SystemExit)
ASKED = {"world_size": 2, "rank": 0, "max_token_num": 64, "hidden_dim": 128}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    import_or_skip(MODULE)


def _failing(patch: pytest.MonkeyPatch, kind: type[BaseException]) -> tuple[Any, list[str]]:
    asked: list[str] = []

    def fail(**kwargs: Any) -> None:
        asked.append(kwargs["backend"])
        random.random()
        raise kind("creation fails")

    return stand_in(patch, fail), asked


def _reduce(module: Any) -> Any:
    import torch

    return module.FlashInferAllReduce(Group(), torch.device("cuda:0"))


def _input() -> Any:
    import torch

    return torch.empty((8, 128), dtype=torch.bfloat16, device="cuda")


def _get(module: Any, name: str, **other: Any) -> Any:
    import torch

    return getattr(module, name)(**{**ASKED, "dtype": torch.bfloat16, "group": Group(), **other})


@fresh
@pytest.mark.parametrize("turn", ["fails", "next-test"])
@pytest.mark.parametrize("kind", [*CAUGHT, *NOT_CAUGHT], ids=lambda kind: kind.__name__)
def test_stand_in_group_failure_does_not_reach_the_next_test(
    kind: type[BaseException], turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure turns the all-reduce off, once and for all in its test; the next test starts as new."""
    if turn == "next-test":
        module = stand_in(monkeypatch)
        assert not module._fi_ar_workspace_failed
        assert _reduce(module).should_use_fi_ar(_input())
        return
    module, asked = _failing(monkeypatch, kind)
    reduce, before = _reduce(module), random.getstate()
    if kind in NOT_CAUGHT:
        for _ in range(2):  # nobody's failure: it may be tried again
            with pytest.raises(kind):
                reduce.should_use_fi_ar(_input())
    else:
        assert not reduce.should_use_fi_ar(_input())
        assert not _reduce(module).should_use_fi_ar(_input())  # another object does not try again
    assert random.getstate() == before
    assert len(asked) == (2 if kind in NOT_CAUGHT else 1)
    assert module._fi_ar_workspace_failed == (kind in CAUGHT)


@fresh
@pytest.mark.parametrize("name", ["get_fi_ar_workspace", "get_fi_ar_quant_workspace"])
def test_stand_in_group_failed_flags_are_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure of one getter does not keep the other from a creation of its own."""
    module, asked = _failing(monkeypatch, RuntimeError)
    other = ({"get_fi_ar_workspace", "get_fi_ar_quant_workspace"} - {name}).pop()
    assert _get(module, name) is None
    monkeypatch.setattr(module.flashinfer_comm, "create_allreduce_fusion_workspace", make_trtllm)
    assert _get(module, name) is None
    assert _get(module, other).backend == "trtllm"
    assert asked == ["trtllm"]


@fresh_config_context
@known_fault(
    f"leak:vllm.fi_ar_workspace_failed@{MODULE}.get_fi_ar_workspace",
    package="vllm",
    versions=">=0.33.0,<0.34",
    reason="destroy() of an object that a failed creation has disabled leaves the flag: no later creation is tried",
)
def test_stand_in_group_destroy_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``destroy()`` is called on is destroyed: the failure too."""
    module, _ = _failing(monkeypatch, RuntimeError)
    reduce = _reduce(module)
    assert not reduce.should_use_fi_ar(_input())
    reduce.destroy()


@fresh_config_context
def test_stand_in_group_destroy_of_all_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's own function forgets the failure, and the next creation is tried."""
    module, _ = _failing(monkeypatch, RuntimeError)
    assert not _reduce(module).should_use_fi_ar(_input())
    module.destroy_fi_ar_workspace()
    monkeypatch.setattr(module.flashinfer_comm, "create_allreduce_fusion_workspace", make_trtllm)
    assert _reduce(module).should_use_fi_ar(_input())
    module.destroy_fi_ar_workspace()


@fresh
@known_fault(
    f"made-differently:flashinfer-all-reduce@{MODULE}._create_workspace",
    package="vllm",
    versions=">=0.33.0,<0.34",
    reason="gpu_sync_allowed(first_only=True): a second creation in the process may not wait for the device",
)
def test_stand_in_group_second_creation_is_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Created, destroyed and created again: what the first may do, the second may."""
    module = stand_in(monkeypatch)
    with consistent_workspaces():
        for _ in range(2):
            reduce = _reduce(module)
            assert reduce.should_use_fi_ar(_input())
            reduce.destroy()


@fresh
@pytest.mark.parametrize("first", ["get_fi_ar_workspace", "get_fi_ar_quant_workspace"])
def test_stand_in_group_one_workspace_under_two_names(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same backend the two getters share, whoever comes first, and it is destroyed once."""
    destroyed: list[object] = []
    module = stand_in(monkeypatch)
    second = ({"get_fi_ar_workspace", "get_fi_ar_quant_workspace"} - {first}).pop()
    workspace = _get(module, first)
    destroy = type(workspace).destroy

    def counted(held: Any) -> None:
        destroyed.append(held)
        destroy(held)

    monkeypatch.setattr(type(workspace), "destroy", counted)
    assert _get(module, second) is workspace
    module.destroy_fi_ar_workspace()
    assert destroyed == [workspace]
    assert _get(module, first) is not workspace
    module.destroy_fi_ar_workspace()


@fresh
@pytest.mark.parametrize("first", ["get_fi_ar_workspace", "get_fi_ar_quant_workspace"])
def test_stand_in_group_fallback_is_shared(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``auto`` and no multicast both fall back to trtllm, and share it, whoever comes first."""

    def create(**asked: Any) -> Any:
        if asked["backend"] == "mnnvl":
            raise RuntimeError("no multicast here")
        return make_trtllm(**asked)

    module = stand_in(monkeypatch, create, backend="auto")
    second = ({"get_fi_ar_workspace", "get_fi_ar_quant_workspace"} - {first}).pop()
    workspace = _get(module, first)
    assert workspace.backend == "trtllm"
    assert _get(module, second) is workspace


CASES: dict[str, list[int]] = {"no-rank": [], "all-ranks": [0, 1], "one-rank": [1]}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each rank wrote about each case."""
    profile = session.current().machine.profile
    arguments = ("240", f"simulate:{profile}" if profile else "real", json.dumps(list(CASES.values())))
    script = Path(__file__).with_name("failing_rank.py")
    return list(run_ranks(script, tmp_path_factory.mktemp("ranks"), arguments, limit_s=240))


@pytest.mark.parametrize(
    "case",
    [
        "no-rank",
        "all-ranks",
        pytest.param(
            "one-rank",
            marks=known_fault(
                f"ranks-disagree:flashinfer-all-reduce@{MODULE}.FlashInferAllReduce.should_use_fi_ar",
                package="vllm",
                versions=">=0.33.0,<0.34",
                reason="a creation that fails on one rank turns the all-reduce off there alone: the others wait for it",
            ),
        ),
    ],
)
def test_gloo_ranks_agree_after_a_failure_on(case: str, ranks: list[Any]) -> None:
    """Two processes and a real gloo group: all ranks use the all-reduce, or none does."""
    failing = CASES[case]
    told = [rank[list(CASES).index(case)] for rank in ranks]
    code = sys.modules[MODULE].FlashInferAllReduce.should_use_fi_ar.__code__
    place = Frame(MODULE, code.co_qualname, code.co_filename, code.co_firstlineno)
    thread = current_thread()
    for number, rank in enumerate(told):
        assert rank["created"] == ["trtllm"], "one attempt, never again"
        assert rank["answers"] == [number not in failing] * 2
        assert rank["failed_flag"] == (number in failing)
    answers = [
        GateAnswered(what="8 x 128 torch.bfloat16", admitted=one, sufficient=True, thread=thread, stack=(place,))
        for one in (rank["answers"][1] for rank in told)
    ]
    with conclude(workspace_reuse.NAME, lambda: workspace_reuse.check_ranks(answers, SUBJECT)):
        pass
