"""Faults of released packages: strict expected failures, by version range and finding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from pytest_gpuinvariants import versions
from pytest_gpuinvariants.findings import Finding


@dataclass(frozen=True)
class KnownFault:
    """One declaration; see the marker ``known_fault``."""

    finding: str | Collection[str]
    package: str
    versions: str
    reason: str
    called_from: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The findings that the test must fail with."""
        return (self.finding,) if isinstance(self.finding, str) else tuple(self.finding)

    @property
    def installed(self) -> str | None:
        """The package's installed version, None without it."""
        return versions.installed(self.package)

    @property
    def applies(self) -> bool:
        """Whether the installed version is in the faulty range; a pre-release or local build may be."""
        installed = self.installed
        return installed is not None and SpecifierSet(self.versions).contains(installed, prereleases=True)

    @property
    def description(self) -> str:
        """The declaration in one line."""
        place = f", called from {self.called_from}" if self.called_from else ""
        found = ", ".join(self.ids)
        return f"{self.reason} [{self.package} {self.installed}, declared for {self.versions}: {found}{place}]"

    def mismatch(self, findings: list[Finding]) -> str | None:
        """How the findings of a test differ from the declared fault; None when they are that, all of them."""
        if not findings:
            return "the known fault was not found: mend its declaration if the release is fixed"
        others = [item for item in findings if item.id not in self.ids]
        if others:
            return f"not the known fault alone: {others[0].id}"
        missing = set(self.ids) - {item.id for item in findings}
        if missing:
            return f"not found any more: {min(missing)}: mend its declaration if the release is fixed"
        if self.called_from is None:
            return None
        for item in findings:
            if all(frame.qualified != self.called_from for frame in item.stack):
                return f"the known fault, but not called from {self.called_from}"
        return None
