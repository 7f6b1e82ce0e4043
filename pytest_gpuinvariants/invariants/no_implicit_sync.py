"""``no_implicit_sync``: the host neither waits for the GPU nor may be made to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_gpuinvariants.events import Allocation, ApiCall, Copy, Event, Launch, Memory, Synchronization
from pytest_gpuinvariants.findings import Finding, finding, not_simulated

NAME = "no_implicit_sync"
KINDS: dict[str, str] = {
    "sync": "the host waits for a stream, an event or a device",
    "pageable-copy": "an asynchronous copy from or into pageable memory: may block",
    "gapped-copy": "an asynchronous copy of a gapped pinned tensor, which torch duplicates in pageable memory",
    "blocking-copy": "a copy or fill that blocks by contract",
    "capture-unsafe": "a call that stream capture refuses",
    "allocation": "memory taken from the driver or given back to it, which may wait for the device",
}
"""The kinds of finding, each with its meaning."""
DEFAULT_KINDS = frozenset(KINDS) - {"allocation"}
"""What is policed unless kinds are chosen: allocation is a fault only in a steady state."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the rule polices.

    ``kinds`` are the kinds of finding; a pageable or gapped copy of fewer bytes than
    ``pageable_threshold`` is only a note.
    """

    kinds: frozenset[str] = DEFAULT_KINDS
    pageable_threshold: int = 0


def check(event: Event, options: Options) -> Finding | None:
    """The finding that an event is, or None.

    A failed call (an invalid argument, say) has moved nothing and is its caller's error, not a
    stall; only a refusal by stream capture is reported.
    """
    if isinstance(event, Launch):
        return None
    if not event.simulated:
        policed = not isinstance(event, Allocation) or "allocation" in options.kinds
        return not_simulated(event, invariant=NAME) if policed else None
    kind, subject, message = _judge(event)
    if kind not in options.kinds:
        return None
    small = isinstance(event, Copy) and event.bytes < options.pageable_threshold
    note = small and kind in ("pageable-copy", "gapped-copy")
    return finding(event, invariant=NAME, kind=kind, subject=subject, message=message, note=note)


def wanted(options: Options) -> frozenset[type[ApiCall]]:
    """The events that the rule needs.  Capture refuses allocations, too."""
    allocations = options.kinds & {"allocation", "capture-unsafe"}
    return frozenset({Copy, Synchronization} | ({Allocation} if allocations else set()))


def rule(options: Options) -> Callable[[Event], Finding | None]:
    """The rule with its options bound."""
    return lambda event: check(event, options)


_WAITS = {
    "Stream": "until the stream is idle",
    "Event": "until the event has happened",
    "Device": "until the device is idle",
}


def _judge(event: Copy | Synchronization | Allocation) -> tuple[str, str, str]:
    if event.capturing and event.result:
        return "capture-unsafe", event.api, f"{event.api}: not permitted while a stream is being captured"
    if event.result:
        return "", "", ""
    if isinstance(event, Allocation):
        size = f" of {event.bytes} B" if event.bytes else ""
        return "allocation", event.api, f"{event.api}{size}: may wait for the device"
    if isinstance(event, Synchronization):
        wait = next((text for name, text in _WAITS.items() if name in event.api), "until the GPU is idle")
        return "sync", event.api, f"{event.api}: blocks {wait}"
    return _judge_copy(event)


def _judge_copy(event: Copy) -> tuple[str, str, str]:
    subject = f"{event.api}:{event.direction}"
    what = f"{event.api} {event.direction} of {event.bytes} B"
    if event.source is Memory.DEVICE and event.destination is Memory.DEVICE:
        return "", "", ""  # no copy between devices makes the host wait
    if event.blocking:
        return "blocking-copy", subject, f"{what}: blocks until the copy is done"
    if event.gapped:
        side = "of a gapped pinned tensor, through pageable memory"
        return "gapped-copy", subject, f"{what} {side}: may block"
    if event.source is Memory.PAGEABLE:
        return "pageable-copy", subject, f"{what} from pageable memory: may block"
    if event.destination is Memory.PAGEABLE:
        return "pageable-copy", subject, f"{what} into pageable memory: may block"
    if event.direction == "H2H":
        return "blocking-copy", subject, f"{what}: blocks until the copy is done"
    return "", "", ""
