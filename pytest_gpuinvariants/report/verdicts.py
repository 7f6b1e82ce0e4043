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
CONFIG_READ = "gpuinvariants.config_read"

NOT_VERIFIED = "not verified"
SKIPPED = "skipped"
"""The test was skipped by itself or by its user, not because something could not be verified here."""
PREFIX = "gpuinvariants."

Property = tuple[str, object]


def of_findings(name: str, findings: Iterable[Finding]) -> Iterator[Property]:
    """One property for each finding: its id and its line."""
    for item in findings:
        yield name, f"{item.id}: {item.line}"


def of_allowances(allowances: Iterable[Allowance]) -> Iterator[Property]:
    """One property for each allowance: the number of calls that it covered, and its reason."""
    for allowance in allowances:
        yield ALLOWED, f"{allowance.count} x {allowance.exemption.label}"


def level(verdict: object) -> str:
    """What a verdict is worth to a ledger: checked on ``real`` hardware, on ``any``, or only ``seen``.

    A violation and a known fault are the result of a check, too.
    """
    if verdict is None or str(verdict).startswith((NOT_VERIFIED, SKIPPED)):
        return "seen"
    # "verified on real H200"; a card that a fake is laid over is no real one
    return "real" if " on real " in str(verdict) and " faking " not in str(verdict) else "any"
