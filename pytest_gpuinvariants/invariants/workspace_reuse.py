"""A shared workspace serves only whom it was made for, is made under the same rules, and its gate knows what fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_gpuinvariants.events import GateAnswered, WorkspaceGiven, WorkspaceMade
from pytest_gpuinvariants.findings import Finding

NAME = "workspace_reuse"
REUSED = "reused-for-other"
GATE = "gate-disagrees"


AGAIN = "made-differently"
RANKS = "ranks-disagree"


def check(events: Iterable[WorkspaceGiven | WorkspaceMade | GateAnswered], subject: str) -> tuple[Finding, ...]:
    """Findings about workspaces given for another purpose or made under other rules, and about gates that disagree.

    Args:
        events: of one process, in order.
        subject: whose workspaces they are, for the findings' identity.
    """
    found: list[Finding] = []
    first: WorkspaceMade | None = None
    for event in events:
        if isinstance(event, WorkspaceGiven):
            for name, wanted in event.asked.items():
                made = event.made[name]
                if made != wanted:
                    message = f"a workspace made for {name} {made} is given to one that asks for {name} {wanted}"
                    found.append(Finding(NAME, REUSED, f"{subject}:{name}", message, event.thread, event.stack))
        elif isinstance(event, WorkspaceMade):
            first = first or event
            if event.syncs_allowed != first.syncs_allowed:
                may = ("may not", "may")
                message = f"the first creation {may[first.syncs_allowed]} wait for the device, a later one "
                message += may[event.syncs_allowed]
                found.append(Finding(NAME, AGAIN, subject, message, event.thread, event.stack))
        elif event.admitted != event.sufficient:
            does = "admits" if event.admitted else "refuses"
            fits = "does not fit" if event.admitted else "fits"
            message = f"the gate {does} {event.what}, which {fits} the workspace and the size limit"
            found.append(Finding(NAME, GATE, f"{subject}:{does}", message, event.thread, event.stack))
    return tuple(found)


def check_ranks(answers: Sequence[GateAnswered], subject: str) -> tuple[Finding, ...]:
    """A finding where the gate of one rank admits what that of another refuses: the first waits for ever.

    Args:
        answers: about the same tensor, one a rank, in order.
        subject: whose gate it is, for the finding's identity.
    """
    admitting = [rank for rank, answer in enumerate(answers) if answer.admitted]
    if len(admitting) in (0, len(answers)):
        return ()
    one = answers[admitting[0]]
    message = f"of {len(answers)} ranks only {', '.join(map(str, admitting))} admit {one.what}"
    return (Finding(NAME, RANKS, subject, message, one.thread, one.stack),)
