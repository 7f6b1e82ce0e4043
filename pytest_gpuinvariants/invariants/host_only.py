"""``requires_sm90(host_only=True)``: the test launches no kernel of its own."""

from __future__ import annotations

from pathlib import PurePath

from pytest_gpuinvariants.events import Event, Launch
from pytest_gpuinvariants.findings import Finding, finding, not_simulated

NAME = "host_only"


def check(event: Event) -> Finding | None:
    """A launch is a finding.  Recorders leave out those that torch's own libraries make."""
    if not event.simulated:
        return not_simulated(event, invariant=NAME)
    if not isinstance(event, Launch):
        return None
    origin = PurePath(event.library).name if event.library.startswith("/") else event.library
    refused = " (refused)" if event.result else ""
    message = f"{event.api} of {event.kernel} from {origin}{refused}: host_only=True declares that no such kernel runs"
    return finding(event, invariant=NAME, kind="launch", subject=event.api, message=message)


def refused(event: Launch, fake: str, test: str) -> Finding:
    """The finding about a launch that was refused under a fake, before the driver heard of it."""
    message = f"{test}: {event.library} kernel {event.kernel} refused: the card only looks like {fake}"
    return finding(event, invariant=NAME, kind="refused-launch", subject=event.kernel, message=message)
