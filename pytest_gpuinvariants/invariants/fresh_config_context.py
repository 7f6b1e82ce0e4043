"""``fresh_config_context``: a test inherits no process-wide state, and leaves none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_gpuinvariants.events import Change, ConfigRead, StateChange
from pytest_gpuinvariants.findings import Finding

NAME = "fresh_config_context"
KINDS: dict[Change, str] = {
    Change.LEFT: "leak",
    Change.CHANGED: "changed",
    Change.INHERITED: "inherited",
    Change.ASIDE: "set-aside",
    Change.KEPT: "kept",
}
"""The kinds of finding about state; one about a read of the configuration is a ``config-read``."""
_NOTES = (Change.ASIDE, Change.KEPT)


@dataclass(frozen=True, slots=True)
class Options:
    """What the rule polices.

    ``strict`` makes a read outside of a configuration context a finding, unless the reader's
    ``module.qualname`` matches one of ``allow_reads``.  State whose name matches one of ``singletons``
    or ``may_leave`` is only noted; the latter stays.
    """

    strict: bool = False
    allow_reads: tuple[str, ...] = ()
    singletons: tuple[str, ...] = ()
    may_leave: tuple[str, ...] = ()

    def may_stay(self, name: str) -> bool:
        """Whether the test may leave this state behind."""
        return matches(name, self.may_leave)

    def declares(self, name: str) -> bool:
        """Whether the test may make this state."""
        return matches(name, self.singletons) or self.may_stay(name)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check(event: ConfigRead | StateChange, options: Options) -> Finding | None:
    """The finding that an event is, or None."""
    if isinstance(event, ConfigRead):
        if not options.strict or matches(event.reader, options.allow_reads):
            return None
        message = f"{event.function}() outside of a configuration context: {event.reader} got {event.answer}"
        return Finding(NAME, "config-read", event.function, message, event.thread, event.stack)
    note = event.change in _NOTES or options.declares(event.name)
    return Finding(NAME, KINDS[event.change], event.name, event.detail, event.thread, event.stack, note)
