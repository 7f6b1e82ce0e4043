"""What the end of a run says: verdicts counted by hardware, allowances, and what a simulator left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

import pytest

from pytest_gpuinvariants.report import verdicts


class Simulated(Protocol):
    """The part of a simulated runtime that a summary reads."""

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Names of calls that were answered "not supported"."""
        ...

    @property
    def launches(self) -> int:
        """Kernels recorded and not run."""
        ...


class WorkerOutput(TypedDict):
    """What an xdist worker tells its controller; plain types only."""

    launches: int
    unsupported: list[str]
    refused: dict[str, int]


@dataclass
class Summary:
    """Counts verdicts from test reports, which xdist brings from every worker."""

    verdicts: Counter[str] = field(default_factory=Counter)
    allowed: Counter[str] = field(default_factory=Counter)
    standing: tuple[str, ...] = ()
    """Labels of the ini file's exemptions, which no test states."""
    warmup: dict[str, list[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """Multicast creations that were refused, by function."""
    config_reads: Counter[str] = field(default_factory=Counter)
    """Reads of vLLM's configuration outside of a context, by reader."""
    remarks: list[str] = field(default_factory=list)
    """What no report of a test could tell."""
    _simulated: Simulated | None = None
    _launches: int = 0
    _unsupported: list[str] = field(default_factory=list)

    def watch(self, simulated: Simulated) -> None:
        """Read this simulated runtime at the end."""
        self._simulated = simulated

    def add(self, report: pytest.TestReport) -> None:
        """Count a report's verdict: the last phase carries it."""
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == verdicts.VERDICT:
                self.verdicts[str(value)] += 1
            elif name == verdicts.ALLOWED:
                count, _, reason = str(value).partition(" x ")
                self.allowed[reason] += int(count)
            elif name == verdicts.WARMUP:
                self.warmup.setdefault(report.nodeid, []).append(str(value))
            elif name == verdicts.CONFIG_READ:
                count, _, reader = str(value).partition(" x ")
                self.config_reads[reader] += int(count)

    @property
    def output(self) -> WorkerOutput:
        """What this process saw of its simulated runtime."""
        runtime = self._simulated
        if runtime is None:
            return {"launches": self._launches, "unsupported": self._unsupported, "refused": dict(self.refused)}
        return {
            "refused": dict(self.refused),
            "launches": self._launches + runtime.launches,
            "unsupported": list(dict.fromkeys([*self._unsupported, *runtime.unsupported])),
        }

    def merge(self, output: Mapping[str, object]) -> None:
        """Add what a worker saw."""
        launches, names, refused = output.get("launches"), output.get("unsupported"), output.get("refused")
        if isinstance(refused, Mapping):
            self.refused.update(refused)
        if isinstance(launches, int):
            self._launches += launches
        if isinstance(names, Iterable):
            self._unsupported = list(dict.fromkeys([*self._unsupported, *(str(name) for name in names)]))

    @property
    def unmatched(self) -> list[str]:
        """Exemptions that covered nothing in the whole run.  Without any verdict there was none to cover."""
        if all(verdicts.level(verdict) == "seen" for verdict in self.verdicts):
            return []
        labels = dict.fromkeys([*self.allowed, *self.standing])
        return [label for label in labels if not self.allowed[label]]

    def _verdict_lines(self) -> Iterator[str]:
        """One line for each kind; where a kind has several reasons, these are below it."""
        order = ("violated on", "violated", "failed", "known fault", "verified")

        def rank(verdict: str) -> int:
            return next((index for index, start in enumerate(order) if verdict.startswith(start)), len(order))

        for verdict in sorted(self.verdicts, key=lambda text: (rank(text), text)):
            if verdicts.level(verdict) != "seen":
                yield f"{self.verdicts[verdict]} {verdict}"
        for kind in (verdicts.NOT_VERIFIED, verdicts.SKIPPED):
            reasons = {
                verdict.removeprefix(f"{kind}: "): count
                for verdict, count in sorted(self.verdicts.items())
                if verdict.startswith(kind)
            }
            if len(reasons) == 1:
                yield from (f"{count} {kind}: {reason}" for reason, count in reasons.items())
            elif reasons:
                yield f"{sum(reasons.values())} {kind}:"
                yield from (f"  {count}: {reason}" for reason, count in reasons.items())

    def lines(self, verbose: bool = False, strict: bool = False) -> Iterator[str]:
        """The summary, one statement a line; none when there is nothing to say.

        Args:
            verbose: list what happened in warm-up, and the reads of the configuration outside of a context.
            strict: an exemption that covered nothing is an error.
        """
        yield from self._verdict_lines()
        for reason, count in self.allowed.items():
            if count:
                yield f"allowed: {count} call{'s' if count != 1 else ''}: {reason}"
        for label in self.unmatched:
            yield f"{'ERROR: ' if strict else ''}an allowance matched nothing: {label}"
        for nodeid, lines in self.warmup.items() if verbose else ():
            yield f"warm-up of {nodeid}:"
            yield from (f"  {line}" for line in lines)
        for label, count in self.refused.items():
            yield f"NVLink multicast refused: {label}, {count} time{'s' if count != 1 else ''} (--gpu-allow-multicast)"
        yield from self.remarks
        if verbose and self.config_reads:
            yield "reads of vLLM's configuration outside of a context:"
            yield from (f"  {count} x {reader}" for reader, count in self.config_reads.most_common())
        output = self.output
        if self.verdicts and output["launches"]:
            yield (
                f"kernels did not run: {output['launches']} launches were recorded on the simulated card, and what "
                "they would have written is not there"
            )
        if output["unsupported"]:
            yield f"not simulated, answered 'not supported': {', '.join(output['unsupported'])}"
