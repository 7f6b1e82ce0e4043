"""Marker arguments: what is accepted, and what a wrong use is told."""

from __future__ import annotations

import pytest

import pytest_gpuinvariants
from pytest_gpuinvariants import MarkerArgumentError, allow_sync, known_fault, no_implicit_sync, requires_sm90
from pytest_gpuinvariants.markers import KNOWN_FAULT, MARKERS, NO_IMPLICIT_SYNC, Marker

REQUIRES_SM = MARKERS["requires_sm"]
REQUIRES_SM90 = MARKERS["requires_sm90"]
REQUIRES_GPUS = MARKERS["requires_gpus"]
REQUIRES_MEMORY = MARKERS["requires_gpu_memory"]
REQUIRES_CUDA = MARKERS["requires_cuda"]
REQUIRES_PACKAGE = MARKERS["requires_package"]
FAULT = {"package": "vllm", "versions": ">=0.33", "reason": "r"}


@pytest.mark.parametrize(
    ("marker", "args", "kwargs"),
    [
        (NO_IMPLICIT_SYNC, (), {}),
        (NO_IMPLICIT_SYNC, (), {"kinds": "sync,pageable-copy"}),
        (NO_IMPLICIT_SYNC, (), {"kinds": ["sync"], "pageable_threshold": 4096}),
        (REQUIRES_SM90, (), {"or_newer": True, "host_only": False}),
        (REQUIRES_SM, (9,), {}),
        (REQUIRES_SM, (10, 3), {"family": True, "or_newer": False}),
        (REQUIRES_SM, (), {"major": 12, "minor": None}),
        (REQUIRES_GPUS, (2,), {"host_only": True}),
        (REQUIRES_MEMORY, ("40GiB",), {}),
        (REQUIRES_MEMORY, (), {"amount": "1.5 TB"}),
        (REQUIRES_CUDA, ("≥12.8",), {}),
        (REQUIRES_CUDA, (">=12.8,<13.2",), {}),
        (REQUIRES_PACKAGE, ("flashinfer-python>=0.7",), {}),
        (REQUIRES_PACKAGE, ("pytest",), {}),
        (KNOWN_FAULT, ("sync:x@y",), FAULT),
        (KNOWN_FAULT, (), {"finding": "sync:x@y", **FAULT, "called_from": "a.b"}),
    ],
)
def test_right_uses(marker: Marker, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    assert marker.problems(args, kwargs) == []


@pytest.mark.parametrize(
    ("marker", "args", "kwargs", "problem"),
    [
        (
            NO_IMPLICIT_SYNC,
            (),
            {"kindz": "sync"},
            "unknown argument 'kindz' (did you mean 'kinds'?); accepted: kinds=..., pageable_threshold=0",
        ),
        (
            NO_IMPLICIT_SYNC,
            ("sync",),
            {},
            "unexpected positional argument 'sync'; accepted: kinds=..., pageable_threshold=0",
        ),
        (
            NO_IMPLICIT_SYNC,
            (),
            {"kinds": "sinc"},
            "argument 'kinds' is 'sinc'; accepted: unknown kind 'sinc'; kinds: sync, pageable-copy, gapped-copy, "
            "blocking-copy, capture-unsafe, allocation",
        ),
        (
            NO_IMPLICIT_SYNC,
            (),
            {"pageable_threshold": -1},
            "argument 'pageable_threshold' is -1; accepted: -1 is not a number of bytes (0 or more)",
        ),
        (REQUIRES_SM90, (), {"host_only": "yes"}, "argument 'host_only' is 'yes'; accepted: True or False"),
        (REQUIRES_SM90, (), {"newer": True}, "unknown argument 'newer'"),
        (REQUIRES_SM, (), {}, "argument 'major' is missing; accepted: major, minor=None, or_newer=False"),
        (REQUIRES_SM, ("9.0",), {}, "argument 'major' is '9.0'; accepted: a major number such as 9: SM 9.0 is "),
        (
            REQUIRES_SM,
            (90,),
            {},
            "argument 'major' is 90; accepted: a major number such as 9: SM 9.0 is requires_sm(9, 0)",
        ),
        (REQUIRES_SM, (-9,), {}, "argument 'major' is -9; accepted: a major number"),
        (REQUIRES_SM, (True,), {}, "argument 'major' is True; accepted: a major number"),
        (REQUIRES_SM, (9, "x"), {}, "argument 'minor' is 'x'; accepted: a number from 0 to 9, or None for any"),
        (REQUIRES_SM, (8, 10), {}, "argument 'minor' is 10; accepted: a number from 0 to 9, or None for any"),
        (REQUIRES_SM, (9, False), {}, "argument 'minor' is False; accepted: a number from 0 to 9, or None for any"),
        (
            REQUIRES_SM,
            (10,),
            {"or_newer": True, "family": True},
            "arguments 'or_newer' and 'family' exclude each other",
        ),
        (REQUIRES_GPUS, (), {}, "argument 'n' is missing"),
        (REQUIRES_GPUS, (0,), {}, "argument 'n' is 0; accepted: a number from 1 on"),
        (REQUIRES_GPUS, (True,), {}, "argument 'n' is True; accepted: a number from 1 on"),
        (REQUIRES_MEMORY, ("40",), {}, "argument 'amount' is '40'; accepted: an amount of memory such as '40GiB'"),
        (REQUIRES_MEMORY, ("0GiB",), {}, "argument 'amount' is '0GiB'; accepted: an amount of memory"),
        (REQUIRES_CUDA, ("12.8",), {}, "argument 'versions' is '12.8'; accepted: a version range such as '>=12.8'"),
        (REQUIRES_PACKAGE, (5,), {}, "argument 'requirement' is 5; accepted: a non-empty string"),
        (REQUIRES_PACKAGE, ("a b",), {}, "argument 'requirement' is 'a b'; accepted: a package and its versions"),
        (REQUIRES_PACKAGE, ("vllm[x]>1",), {}, "argument 'requirement' is 'vllm[x]>1'; accepted: a package and its"),
        (KNOWN_FAULT, ("i",), {"finding": "j", **FAULT}, "argument 'finding' is given twice"),
        (KNOWN_FAULT, (), FAULT, "argument 'finding' is missing"),
        (
            KNOWN_FAULT,
            ("i",),
            {**FAULT, "versions": "0.33-ish"},
            "argument 'versions' is '0.33-ish'; accepted: a version range such as '>=0.33.0,<0.34'",
        ),
    ],
)
def test_wrong_uses_name_the_argument_and_what_is_accepted(
    marker: Marker, args: tuple[object, ...], kwargs: dict[str, object], problem: str
) -> None:
    problems = marker.problems(args, kwargs)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_every_marker_has_a_line_and_an_exported_decorator() -> None:
    for name, marker in MARKERS.items():
        assert marker.line.startswith(f"{name}(")
        assert "): " in marker.line
        assert "\n" not in marker.line
        assert getattr(pytest_gpuinvariants, name).mark.name == name


def test_decorators_are_the_marks_of_pytest() -> None:
    @requires_sm90
    @no_implicit_sync(kinds=["sync"])
    def function() -> None: ...

    @known_fault("sync:x@y", package="vllm", versions=">=1", reason="r")
    class Grouped: ...

    marks = {mark.name: mark for mark in function.pytestmark}  # type: ignore[attr-defined]
    assert marks["requires_sm90"].kwargs == {}
    assert marks["no_implicit_sync"].kwargs == {"kinds": ["sync"]}
    (fault,) = Grouped.pytestmark  # type: ignore[attr-defined]
    assert fault.args == ("sync:x@y",)
    assert requires_sm90(host_only=True).mark == pytest.mark.requires_sm90(host_only=True).mark
    assert repr(no_implicit_sync(kinds="sync")) == "no_implicit_sync(kinds='sync')"


def test_a_region_with_a_wrong_argument_never_opens() -> None:
    wrong = no_implicit_sync(kindz="sync")  # type: ignore[call-overload]
    with pytest.raises(MarkerArgumentError, match="unknown argument 'kindz'"):
        wrong.__enter__()


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_an_allowance_says_why(reason: str) -> None:
    with pytest.raises(MarkerArgumentError, match="reason"):
        allow_sync(reason)
