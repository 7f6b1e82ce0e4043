"""What the tests that run in this process share: the card that this pytest run has."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants import session


@pytest.fixture
def card() -> None:
    """The real or simulated card of this run, in use: lazy initialisation is over."""
    run = session.current()
    if run.monitor is None:
        pytest.skip(run.machine.header)
    import torch

    torch.ones(1, device="cuda").cpu()
