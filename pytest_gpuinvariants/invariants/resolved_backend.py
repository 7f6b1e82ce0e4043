"""What was resolved in a configuration context is what is asked for later, whoever asks and wherever."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuinvariants.events import BackendAsked, BackendResolved
from pytest_gpuinvariants.findings import Finding

NAME = "resolved_backend"
KIND = "resolved-again"


def check(events: Iterable[BackendResolved | BackendAsked], subject: str) -> tuple[Finding, ...]:
    """Findings about requests for a backend that the resolution in context does not accept.

    The place is the resolution that gave the other answer, where there was one, else the request.

    Args:
        events: of one process, in order.
        subject: what is resolved, for the findings' identity.
    """
    promised: dict[int, tuple[str, ...]] = {}
    again: dict[int, BackendResolved] = {}
    found: list[Finding] = []
    for event in events:
        if isinstance(event, BackendResolved):
            if event.in_context:
                promised[event.group] = event.accepted
                again.pop(event.group, None)
            else:
                again[event.group] = event
            continue
        accepted = promised.get(event.group)
        if accepted is None or event.backend in accepted:
            continue
        cause = again.get(event.group)
        place = cause if cause is not None and event.backend in cause.accepted else event
        message = f"{event.backend} is asked for where {' or '.join(accepted)} was resolved in context"
        found.append(Finding(NAME, KIND, subject, message, place.thread, place.stack))
    return tuple(found)
