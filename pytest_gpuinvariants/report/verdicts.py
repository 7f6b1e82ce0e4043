"""The verdict of one test, in words, and as properties that JUnit files and xdist carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_gpuinvariants.allowances import Allowance
from pytest_gpuinvariants.findings import Finding

GPU = "gpuinvariants.gpu"
VERDICT = "gpuinvariants.verdict"
INVARIANT = "gpuinvariants.invariant"
FINDING = "gpuinvariants.finding"
NOTE = "gpuinvariants.note"
WARMUP = "gpuinvariants.warmup"
ALLOWED = "gpuinvariants.allowed"

NOT_VERIFIED = "not verified"

Property = tuple[str, object]


def of_findings(name: str, findings: Iterable[Finding]) -> Iterator[Property]:
    """One property for each finding: its id and its line."""
    for item in findings:
        yield name, f"{item.id}: {item.line}"


def of_allowances(allowances: Iterable[Allowance]) -> Iterator[Property]:
    """One property for each allowance: the number of calls that it covered, and its reason."""
    for allowance in allowances:
        yield ALLOWED, f"{allowance.count} x {allowance.exemption.label}"


def of_outcome(outcome: str, machine: str, *, violated: bool, warned: bool, known_fault: bool, reason: str) -> str:
    """The verdict of a test that states an invariant.

    Args:
        outcome: pytest's: passed, failed or skipped.
        machine: label of the GPU, for example ``simulated H100``.
        violated: the invariant does not hold.
        warned: so it is, and it was to be a warning.
        known_fault: and that was declared.
        reason: of a skip.
    """
    if known_fault:
        return f"known fault on {machine}"
    if violated:
        return f"violated on {machine}"
    if warned and outcome == "passed":
        return f"violated, as a warning, on {machine}"
    if outcome == "passed":
        return f"verified on {machine}"
    if outcome == "failed":
        return f"failed on {machine}"
    return reason if reason.startswith(NOT_VERIFIED) else f"{NOT_VERIFIED}: {reason}"
