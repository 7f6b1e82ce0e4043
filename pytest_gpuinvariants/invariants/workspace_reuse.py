"""A shared workspace is given only to whom it was made for, and its gate lets through just what fits."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuinvariants.events import GateAnswered, WorkspaceGiven
from pytest_gpuinvariants.findings import Finding

NAME = "workspace_reuse"
REUSED = "reused-for-other"
GATE = "gate-disagrees"


def check(events: Iterable[WorkspaceGiven | GateAnswered], subject: str) -> tuple[Finding, ...]:
    """Findings about workspaces given for another purpose, and about gates that disagree with the workspace.

    Args:
        events: of one process, in order.
        subject: whose workspaces they are, for the findings' identity.
    """
    found = []
    for event in events:
        if isinstance(event, WorkspaceGiven):
            for name, wanted in event.asked.items():
                made = event.made[name]
                if made != wanted:
                    message = f"a workspace made for {name} {made} is given to one that asks for {name} {wanted}"
                    found.append(Finding(NAME, REUSED, f"{subject}:{name}", message, event.thread, event.stack))
        elif event.admitted != event.sufficient:
            does = "admits" if event.admitted else "refuses"
            fits = "does not fit" if event.admitted else "fits"
            message = f"the gate {does} {event.what}, which {fits} the workspace and the size limit"
            found.append(Finding(NAME, GATE, f"{subject}:{does}", message, event.thread, event.stack))
    return tuple(found)
