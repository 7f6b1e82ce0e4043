"""The comparison of verdicts over orders, and the reading of what a process told."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.invariants.order import Verdict, check
from pytest_gpuinvariants.order import read

P, F = Verdict("passed"), Verdict("failed in call", "x")


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((P, P, P), None),
        ((F, Verdict("failed in call", "y"), F), None),
        ((P, F, P), "depends on the order\n  alone: passed\n  in order: failed in call: x\n  reversed: passed"),
        ((F, P, P), "depends on the order\n  alone: failed in call: x\n  in order: passed\n  reversed: passed"),
        ((P, P, F), "depends on the order\n  alone: passed\n  in order: passed\n  reversed: failed in call: x"),
        (
            (Verdict("skipped: no a"), Verdict("skipped: no b"), Verdict("skipped: no a")),
            "depends on the order\n  alone: skipped: no a\n  in order: skipped: no b\n  reversed: skipped: no a",
        ),
        ((P, None, P), "could not be compared\n  alone: passed\n  in order: not run\n  reversed: passed"),
        ((None, None, None), "could not be compared\n  alone: not run\n  in order: not run\n  reversed: not run"),
    ],
)
def test_a_verdict_is_compared_over_all_orders(verdicts: tuple[Verdict | None, ...], expected: str | None) -> None:
    alone, ahead, back = ({"t": one} if one is not None else {} for one in verdicts)
    found = list(check(["t"], {"alone": alone, "in order": ahead, "reversed": back}))
    assert found == ([("t", expected)] if expected is not None else [])


DONE = [{"begun": "a"}, {"test": "a", "verdict": "passed", "detail": ""}]


@pytest.mark.parametrize(
    ("lines", "end", "a", "b"),
    [
        ([], "", "not run (it was not collected)", "not run (it was not collected)"),
        ([], "ended with exit status 4", "not run (ended with exit status 4)", "not run (ended with exit status 4)"),
        (DONE, "", "passed", "not run (a passed before it)"),
        ([*DONE, {"begun": "b"}], "crashed by SIGSEGV", "passed", "crashed by SIGSEGV"),
        ([*DONE, {"begun": "b"}], "", "passed", "crashed: the process ended in the test"),
        ([{"begun": "a"}], "timed out after 2 s", "timed out after 2 s", "not run (a timed out after 2 s before it)"),
    ],
)
def test_each_test_has_a_verdict_however_its_process_ends(
    lines: list[dict[str, str]], end: str, a: str, b: str
) -> None:
    assert read(lines, ["a", "b"], end) == {"a": Verdict(a), "b": Verdict(b)}
