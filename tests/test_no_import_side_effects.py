"""The rule over effects of imports, without any process."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants import MarkerArgumentError, assert_no_import_side_effects
from pytest_gpuinvariants.events import Frame, ImportEffect, Stack, Thread
from pytest_gpuinvariants.invariants import no_import_side_effects as rule
from pytest_gpuinvariants.known_faults import KnownFault
from pytest_gpuinvariants.markers import KNOWN_FAULT, NO_IMPORT_SIDE_EFFECTS

HELPER = Frame("pack.tools", "prepare", "/src/pack/tools.py", 12)
BODY = Frame("pack", "<module>", "/src/pack/__init__.py", 3)
IMPORTER = Frame("user", "<module>", "/src/user.py", 1)
STANDARD = Frame("os", "_Environ.__setitem__", "<frozen os>", 685)
GENERATED = Frame("pack", "<module>", "<string>", 1)


def effect(kind: str, subject: str, detail: str = "", stack: Stack = (BODY, IMPORTER)) -> ImportEffect:
    return ImportEffect(
        kind=kind, subject=subject, detail=detail, thread=Thread(1, "MainThread"), stack=stack, process="import of pack"
    )


@pytest.mark.parametrize("kind", rule.KINDS)
def test_every_kind_is_told_in_one_line_with_its_subject_or_detail(kind: str) -> None:
    found = rule.check(effect(kind, "subject", "detail"))
    assert (found.invariant, found.kind, found.note) == ("no_import_side_effects", kind, False)
    assert found.process == "import of pack"
    assert "\n" not in found.message
    assert kind == "cuda-init" or "subject" in found.message or "detail" in found.message
    assert "{" not in found.message


def test_the_place_is_the_line_of_the_modules_body_and_the_function_is_told() -> None:
    found = rule.check(effect("environment", "X", "sets", (STANDARD, HELPER, BODY, IMPORTER)))
    assert found.stack == (BODY, IMPORTER)
    assert found.id == "environment:X@pack.<module>"
    assert found.message == "sets X in the environment (in pack.tools.prepare, tools.py:12)"


def test_the_standard_library_is_no_place_and_neither_is_generated_code() -> None:
    found = rule.check(effect("environment", "X", "sets", (STANDARD, GENERATED, BODY)))
    assert found.stack == (BODY,)
    assert rule.check(effect("environment", "X", "sets", (STANDARD, BODY))).message == "sets X in the environment"


def test_a_thread_that_a_module_started_has_no_body_on_its_stack() -> None:
    found = rule.check(effect("file-write", "open", "/x", (HELPER,)))
    assert found.id == "file-write:open@pack.tools.prepare"
    assert rule.check(effect("environment", "X", "sets", ())).id == "environment:X@<native thread>"


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("open", True),
        ("/home/*/.cache/*", True),
        ("pack.tools.*", True),
        ("user.<module>", True),
        ("pack", False),
        ("/home", False),
    ],
)
def test_what_a_pattern_allows(pattern: str, allowed: bool) -> None:
    seen = effect("file-write", "open", "/home/me/.cache/x", (HELPER, BODY, IMPORTER))
    assert rule.allowed_by(seen, ["no such", pattern]) == (pattern if allowed else None)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"modules": "pack"},
        {"modules": ["pack", "pack.tools"], "kinds": "thread", "allow": "X", "timeout": 5},
        {"modules": ("pack",), "kinds": {"thread", "environment"}, "allow": ["X", "Y.*"], "timeout": 0.5},
    ],
)
def test_right_arguments(kwargs: dict[str, object]) -> None:
    assert NO_IMPORT_SIDE_EFFECTS.problems((), kwargs) == []


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({}, "argument 'modules' is missing"),
        ({"modules": "pack/tools.py"}, "argument 'modules' is 'pack/tools.py'; accepted: a module's dotted name"),
        ({"modules": []}, "argument 'modules' is []"),
        ({"modules": ["pack", 1]}, "argument 'modules' is ['pack', 1]"),
        ({"modules": "pack", "kinds": "threads"}, "argument 'kinds' is 'threads'; accepted: cuda-init, environment,"),
        ({"modules": "pack", "allow": ""}, "argument 'allow' is ''; accepted: a pattern"),
        ({"modules": "pack", "timeout": 0}, "argument 'timeout' is 0; accepted: a number of seconds above 0"),
        ({"modules": "pack", "timeout": True}, "argument 'timeout' is True"),
        ({"modules": "pack", "allowed": "x"}, "unknown argument 'allowed' (did you mean 'allow'?)"),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, object], problem: str) -> None:
    (found,) = NO_IMPORT_SIDE_EFFECTS.problems((), kwargs)
    assert found.startswith(problem)


def test_the_function_refuses_what_the_marker_refuses() -> None:
    with pytest.raises(MarkerArgumentError, match="no_import_side_effects: argument 'kinds' is 'thred'"):
        assert_no_import_side_effects("json", kinds="thred")


def test_a_known_fault_of_several_findings_needs_each_and_no_other() -> None:
    first, second, third = (rule.check(effect("environment", name, "sets")) for name in "ABC")
    ids = [first.id, second.id]
    assert KNOWN_FAULT.problems((ids,), {"package": "p", "versions": ">=1", "reason": "r"}) == []
    fault = KnownFault(ids, "pytest", ">=1", "r")
    assert fault.mismatch([first, second]) is None
    assert fault.mismatch([first]) == f"not found any more: {second.id}: mend its declaration if the release is fixed"
    assert fault.mismatch([first, second, third]) == f"not the known fault alone: {third.id}"
