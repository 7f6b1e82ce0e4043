"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Mapping

Before = Mapping[str, str | None]
"""What variables were, None for one that was not set."""


def set_variables(values: Mapping[str, str]) -> Before:
    """Set variables; what they were before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    return before


def restore(before: Before) -> None:
    """Put variables back."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def changed_since(then: Mapping[str, str]) -> Before:
    """What variables were, for those that are not as they were."""
    # pytest's own, which is another for each phase of each test.
    names = {*then, *os.environ} - {"PYTEST_CURRENT_TEST"}
    return {name: then.get(name) for name in sorted(names) if then.get(name) != os.environ.get(name)}
