"""What happened to the invariants of one test, from its set-up to the end of its teardown."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pytest_gpuinvariants.allowances import Allowance, Exemption
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.report import verdicts


@dataclass(slots=True)
class TestRecord:
    """One attempt at a test: a rerun gets a record of its own."""

    __test__ = False  # not a test class, whatever its name

    invariants: list[str] = field(default_factory=list)
    """Invariants that were stated and policed."""
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    allowances: dict[Exemption, Allowance] = field(default_factory=dict)
    """What each exemption covered, over all the times that it was in force."""
    unraised: list[Finding] = field(default_factory=list)
    """Violations that no exception takes to the report: they fail the phase at its end."""
    warmup: list[Finding] = field(default_factory=list)
    """What calls before arming would have been found as."""
    warming_up: bool = False
    warned: bool = False
    """There were violations, and the mode made them warnings."""
    finished: bool = False
    """The test's body has ended; reports before that are of its subtests."""
    thread: int = field(default_factory=threading.get_native_id)
    """The thread on which an exception reaches the test's report."""
    outcome: str = "passed"
    """The worst of all phases: passed, skipped or failed."""
    reported: bool = False
    """A violation is the reason of a failure."""
    known_fault: bool = False
    fault_undecided: bool = False
    """The body passed without the known fault, which the teardown may still bring."""
    told: list[Finding] = field(default_factory=list)
    """Findings and notes that a report has shown."""
    config_reads: dict[str, int] = field(default_factory=dict)
    """Reads of vLLM's configuration outside of a context, by reader, the most frequent first."""
    inherited: list[str] = field(default_factory=list)
    """Environment variables that a fresh process got, and that are not as they were when the run began."""
    limits: str = ""
    """What a verdict does not cover."""
    reason: str = ""
    """Of a skip."""
    refused: str = ""
    """Why something could not be verified: it was not, also where someone turns the skip into a pass."""
    host_only: bool = False
    """The test declares that it launches no kernel of its own."""
    device: int = 0
    """Index of the current CUDA device at the end of the body."""
    fakes: list[str] = field(default_factory=list)
    """Labels of the fakes that it laid over the card by itself."""

    def armed(self, invariant: str) -> None:
        """An invariant was stated and is policed."""
        if invariant not in self.invariants:
            self.invariants.append(invariant)

    def covered_by(self, exemption: Exemption) -> Allowance:
        """The test's total of an exemption."""
        return self.allowances.setdefault(exemption, Allowance(exemption))

    def note_outcome(self, outcome: str, reason: str) -> None:
        """Take in the outcome of a phase."""
        order = ("passed", "skipped", "failed")
        if order.index(outcome) > order.index(self.outcome):
            self.outcome, self.reason = outcome, reason

    def verdict(self, machine: str) -> str | None:
        """The verdict in words, None when there is nothing to say.

        Args:
            machine: label of the GPU, for example ``simulated H100``.
        """
        if self.known_fault and self.outcome != "failed":
            return f"known fault on {machine}"
        if self.findings and self.warned and self.outcome == "passed":
            return f"violated, as a warning, on {machine}"
        if self.findings and not self.reported and self.outcome == "passed":
            return f"violated, and caught by the test, on {machine}"
        if self.findings:
            return f"violated on {machine}"
        if self.outcome == "skipped":
            own = not self.reason.startswith(verdicts.NOT_VERIFIED)
            return f"{verdicts.SKIPPED}: {self.reason}" if own else self.reason
        if self.outcome == "failed":
            return f"failed on {machine}"
        # Passed: but what was not policed, or did not run, was not verified.
        if self.refused or not self.invariants:
            return self.refused or None
        if not self.finished:
            return f"{verdicts.NOT_VERIFIED}: the test was not called"
        limits = f" ({self.limits})" if self.limits else ""
        return f"verified on {machine}{limits}"

    @property
    def properties(self) -> list[verdicts.Property]:
        """What JUnit files and xdist carry, the verdict aside."""
        found: list[verdicts.Property] = [(verdicts.INVARIANT, name) for name in self.invariants]
        found += verdicts.of_findings(verdicts.FINDING, self.findings)
        found += verdicts.of_findings(verdicts.NOTE, self.notes)
        found += verdicts.of_findings(verdicts.WARMUP, self.warmup)
        found += verdicts.of_allowances(self.allowances.values())
        found += ((verdicts.CONFIG_READ, f"{count} x {reader}") for reader, count in self.config_reads.items())
        return found
