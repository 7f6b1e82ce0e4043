"""The rule on hand-made events: each form of the fault, and the fixed one."""

from __future__ import annotations

from pytest_gpuinvariants.events import BackendAsked, BackendResolved, Frame, Thread
from pytest_gpuinvariants.invariants.resolved_backend import check

THREAD = Thread(1, "MainThread")


def stack(function: str) -> tuple[Frame, ...]:
    return (Frame("engine", function, "engine.py", 1),)


def resolved(*accepted: str, group: int = 1, in_context: bool = True, at: str = "build") -> BackendResolved:
    return BackendResolved(accepted=accepted, group=group, in_context=in_context, thread=THREAD, stack=stack(at))


def asked(backend: str, group: int = 1) -> BackendAsked:
    return BackendAsked(backend=backend, group=group, thread=THREAD, stack=stack("create"))


def test_a_second_answer_outside_is_found_at_the_line_that_resolved_again() -> None:
    events: list[BackendResolved | BackendAsked] = [
        resolved("trtllm"),
        resolved("mnnvl", "trtllm", in_context=False, at="getter"),
        asked("mnnvl"),
    ]
    (found,) = check(events, "all-reduce")
    assert found.id == "resolved-again:all-reduce@engine.getter"
    assert found.message == "mnnvl is asked for where trtllm was resolved in context"


def test_a_request_that_nothing_explains_is_found_where_it_is_made() -> None:
    (found,) = check([resolved("trtllm"), asked("mnnvl")], "all-reduce")
    assert found.id == "resolved-again:all-reduce@engine.create"


def test_what_was_promised_is_clean_a_declared_fallback_too() -> None:
    assert check([resolved("trtllm"), asked("trtllm")], "x") == ()
    assert check([resolved("mnnvl", "trtllm"), asked("mnnvl"), asked("trtllm")], "x") == ()


def test_groups_do_not_answer_for_each_other_and_no_promise_binds_nothing() -> None:
    assert check([resolved("trtllm"), asked("mnnvl", group=2)], "x") == ()
    assert check([resolved("mnnvl", in_context=False), asked("mnnvl")], "x") == ()
