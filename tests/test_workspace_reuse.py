"""The rule on hand-made events: each form of the fault, and the sound one."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.events import Frame, GateAnswered, Thread, WorkspaceGiven, WorkspaceMade
from pytest_gpuinvariants.invariants.workspace_reuse import check, check_ranks

THREAD = Thread(1, "MainThread")
STACK = (Frame("engine", "forward", "engine.py", 1),)
PURPOSE = {"hidden_dim": "128", "dtype": "bf16", "world_size": "2", "group": "G 0x1"}


def given(**other: str) -> WorkspaceGiven:
    return WorkspaceGiven(asked={**PURPOSE, **other}, made=PURPOSE, thread=THREAD, stack=STACK)


def answered(admitted: bool, sufficient: bool) -> GateAnswered:
    return GateAnswered(what="1 x 128", admitted=admitted, sufficient=sufficient, thread=THREAD, stack=STACK)


@pytest.mark.parametrize("name", PURPOSE)
def test_each_difference_is_found_at_the_asker(name: str) -> None:
    (found,) = check([given(), given(**{name: "other"})], "ar")
    assert found.id == f"reused-for-other:ar:{name}@engine.forward"
    assert found.message == f"a workspace made for {name} {PURPOSE[name]} is given to one that asks for {name} other"


@pytest.mark.parametrize(("admitted", "says"), [(True, "admits"), (False, "refuses")])
def test_a_gate_that_disagrees_is_found_either_way(admitted: bool, says: str) -> None:
    (found,) = check([answered(True, True), answered(False, False), answered(admitted, not admitted)], "ar")
    assert found.id == f"gate-disagrees:ar:{says}@engine.forward"


def test_the_same_purpose_is_clean() -> None:
    assert check([given(), given(), answered(True, True), answered(False, False)], "ar") == ()


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_a_later_creation_under_other_rules_is_found(first: bool, second: bool) -> None:
    made = [WorkspaceMade(syncs_allowed=allowed, thread=THREAD, stack=STACK) for allowed in (first, first, second)]
    assert check(made[:2], "ar") == ()
    assert [found.id for found in check(made, "ar")] == ["made-differently:ar@engine.forward"]


def test_ranks_must_all_admit_or_all_refuse() -> None:
    yes, no = answered(True, True), answered(False, True)
    assert check_ranks([yes, yes], "ar") == check_ranks([no, no], "ar") == check_ranks([], "ar") == ()
    (found,) = check_ranks([no, yes, no], "ar")
    assert found.id == "ranks-disagree:ar@engine.forward"
    assert found.message == "of 3 ranks only 1 admit 1 x 128"
