"""A resolver answers the same inside and outside of a configuration context, whoever asks first."""

from __future__ import annotations

from pytest_gpuinvariants.events import Answer, Resolutions
from pytest_gpuinvariants.findings import Finding

NAME = "context_independence"
KINDS = {"context": "depends-on-context", "environment": "depends-on-environment", "import": "depends-on-import"}
"""By condition.  Where the answer goes by who asked first, it ``depends-on-order``."""
ORDER = "depends-on-order"


def _kind(event: Resolutions) -> str | None:
    values = {answer.value for order in event.orders for answer in order}
    if len(values) == 1:
        return ORDER if _is_kept(event) else None
    under = {answer.value for order in event.orders for answer in order if answer.under}
    # One answer for each condition: nothing else decides.
    return KINDS[event.condition] if len(under) == 1 and len(values - under) == 1 else ORDER


def _is_kept(event: Resolutions) -> bool:
    """Whether only the very first call has read the configuration: its answer stands in for all others."""
    asked = [answer.asked for order in event.orders for answer in order]
    return bool(asked[0]) and len(event.orders) > 1 and not any(asked[1:])


def _told(order: tuple[Answer, Answer], name: str) -> str:
    first, then = (f"{answer.shown} {name if answer.under else 'without it'}" for answer in order)
    return f"{first}, then {then}"


def check(event: Resolutions) -> Finding | None:
    """The finding that a resolver's answers are, or None.

    Its place is the most frequent reader of the configuration outside of a context, else the check's.
    """
    kind = _kind(event)
    if kind is None:
        return None
    told = "; in fresh caches, ".join(_told(order, event.name) for order in event.orders)
    readers: dict[str, int] = {}
    for read, count in event.reads:
        readers[read.reader] = readers.get(read.reader, 0) + count
    reads = ", ".join(f"{count} x {reader}" for reader, count in readers.items())
    seen = f"read outside of a context by {reads}" if reads else "no read of the configuration outside of a context"
    place = event.reads[0][0] if event.reads else event
    kept = ", which the first call alone has read: an unregistered cache keeps its answer" if _is_kept(event) else ""
    message = f"{event.resolver} answers {told} ({seen}{kept})"
    return Finding(NAME, kind, event.resolver, message, place.thread, place.stack)
