"""Named exemptions: by place, API and kind, with a reason; from a test, the ini file, or vLLM itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from packaging.requirements import InvalidRequirement, Requirement

from pytest_gpuinvariants.findings import Finding, Tally
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.invariants.no_implicit_sync import KINDS, NAME
from pytest_gpuinvariants.scopes import Scope
from pytest_gpuinvariants.versions import satisfied


@dataclass(frozen=True, slots=True)
class Exemption:
    """What is exempt, and why.

    ``where`` is a pattern for ``module.qualname`` of a function on the call's stack, ``api`` one for
    the CUDA call, ``kind`` a kind of finding; None matches everything.  Calls beyond ``max_count``
    are findings again.
    """

    reason: str
    where: str | None = None
    api: str | None = None
    kind: str | None = None
    max_count: int | None = None
    requires: str | None = None
    invariant: str = NAME

    def matches(self, found: Finding) -> bool:
        """Whether a finding is exempt, its number aside."""
        if found.invariant != self.invariant or self.kind not in (None, found.kind):
            return False
        if self.api is not None and not fnmatchcase(found.subject.partition(":")[0], self.api):
            return False
        return self.where is None or any(fnmatchcase(frame.qualified, self.where) for frame in found.stack)

    @property
    def in_range(self) -> bool:
        """Whether the package that it is about is installed in one of the versions it names."""
        return self.requires is None or bool(satisfied(self.requires))

    @property
    def label(self) -> str:
        """The reason, and what the exemption is limited to."""
        limits = [f"{name}={value}" for name in ("kind", "api", "where") if (value := getattr(self, name)) is not None]
        return f"{self.reason} ({', '.join(limits)})" if limits else self.reason


VLLM = Exemption(vllm_sync.REASON)
"""What is inside one of vLLM's own allowed regions."""


@dataclass(slots=True, eq=False)
class Allowance:
    """An exemption in force.  ``calls`` are those that it covered."""

    exemption: Exemption
    scope: Scope = field(default_factory=Scope)
    calls: Tally = field(default_factory=Tally)
    settle: Callable[[], None] = lambda: None
    """Has calls counted that the recorder knows of and has not told."""
    _count: int = 0

    @property
    def count(self) -> int:
        """The number of calls that it covered so far; beyond 1,000 at one place of a child, at least half of it."""
        self.settle()
        return self._count

    def takes(self, found: Finding, count: int = 1) -> int:
        """Cover a finding that was made so many times; how many of them, 0 when it does not match."""
        if not self.exemption.matches(found):
            return 0
        limit = self.exemption.max_count
        covered = count if limit is None else max(0, min(count, limit - self._count))
        if covered:
            self._count += covered
            self.calls.add(found, covered)
        return covered

    def absorb(self, other: Allowance) -> None:
        """Add what another of the same exemption covered."""
        self._count += other.count
        self.calls.absorb(other.calls)


class ExemptionError(ValueError):
    """An exemption that can not be read; the message names the key and what is accepted."""


def check(exemption: Exemption) -> Exemption:
    """Return a valid exemption.

    Raises:
        ExemptionError: a field has a value that it does not accept.
    """
    reason: object = exemption.reason
    if not isinstance(reason, str) or not reason.strip():
        raise ExemptionError("'reason' must say why, in a non-empty string")
    if exemption.kind is not None and exemption.kind not in KINDS:
        raise ExemptionError(f"'kind' is {exemption.kind!r}; accepted: {', '.join(KINDS)}")
    limit: object = exemption.max_count
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ExemptionError(f"'max_count' is {limit!r}; accepted: a number from 1 on")
    if exemption.requires is not None:
        try:
            Requirement(exemption.requires)
        except InvalidRequirement as error:
            raise ExemptionError(
                f"'requires' is {exemption.requires!r}; accepted: a requirement such as 'vllm>=0.33,<0.34'"
            ) from error
    return exemption


_KEYS = ("reason", "where", "api", "kind", "max_count", "requires")


def parse(lines: Iterable[str]) -> tuple[Exemption, ...]:
    """Read the ini option ``gpu_allowances``: one exemption a line, ``key=value`` pairs separated by ``;``.

    For example ``where=flashinfer.attention.*; kind=sync; requires=flashinfer-python<0.8; reason=#123``.

    Raises:
        ExemptionError: a line can not be read; the message quotes it.
    """
    found: list[Exemption] = []
    for line in lines:
        values: dict[str, str] = {}
        for pair in filter(None, (part.strip() for part in line.split(";"))):
            key, separator, value = (part.strip() for part in pair.partition("="))
            if not separator or key not in _KEYS or key in values:
                raise ExemptionError(f"{line!r}: {pair!r} is not one of {', '.join(f'{name}=…' for name in _KEYS)}")
            values[key] = value
        limit = values.pop("max_count", None)
        if limit is not None and not limit.isdecimal():
            raise ExemptionError(f"{line!r}: 'max_count' is {limit!r}; accepted: a number from 1 on")
        count = None if limit is None else int(limit)
        try:
            found.append(check(Exemption(values.pop("reason", ""), max_count=count, **values)))
        except ExemptionError as error:
            raise ExemptionError(f"{line!r}: {error}") from error
    return tuple(found)
