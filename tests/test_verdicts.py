"""What verdicts are worth, and how the summary counts them."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.report.summary import Summary
from pytest_gpuinvariants.report.verdicts import level


@pytest.mark.parametrize(
    ("verdict", "worth"),
    [
        ("verified on real NVIDIA H200", "real"),
        ("known fault on real NVIDIA H200", "real"),
        ("violated, and caught by the test, on real NVIDIA H200", "real"),
        ("verified on real NVIDIA H200 faking sm_103", "any"),
        ("verified on simulated H100", "any"),
        ("verified on a host without a GPU", "any"),
        ("not verified: needs SM 9.x; this is real NVIDIA GB300, SM 10.3", "seen"),
        ("skipped: slow on real cards", "seen"),
        (None, "seen"),
    ],
)
def test_what_a_verdict_is_worth(verdict: str | None, worth: str) -> None:
    assert level(verdict) == worth


def test_one_reason_stands_in_the_line_of_its_kind() -> None:
    summary = Summary()
    summary.verdicts.update(["skipped: b", "not verified: x", "skipped: a", "verified on simulated H100", "skipped: b"])
    lines = ["1 verified on simulated H100", "1 not verified: x", "3 skipped:", "  1: a", "  2: b"]
    assert list(summary.lines()) == lines
