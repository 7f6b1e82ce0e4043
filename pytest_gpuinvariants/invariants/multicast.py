"""NVLink multicast objects that were asked for and refused: told, never executed."""

from __future__ import annotations

from pytest_gpuinvariants.events import MulticastRequest
from pytest_gpuinvariants.findings import Finding

NAME = "multicast"


def check(event: MulticastRequest) -> Finding:
    """The note about a refused request; what comes of the refusal is for the code under test to say."""
    message = f"{event.api}: NVLink multicast was asked for and refused"
    return Finding(NAME, "multicast", event.api, message, event.thread, event.stack, note=True)
