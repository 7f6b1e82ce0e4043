"""Every simulated card takes torch's own kernels, also those that CUB picks by the card."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.hardware.profiles import PROFILES
from tests.acceptance.conftest import Run

pytest.importorskip("torch")


@pytest.mark.parametrize("profile", PROFILES)
def test_sums_and_sorts(run: Run, profile: str) -> None:
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import InvariantViolation, no_implicit_sync

        @no_implicit_sync
        def test_queued():
            values = torch.ones(5000, device="cuda")
            for call in (values.cumsum, values.int().cumsum, values.sort, values.argsort, values.logcumsumexp):
                call(0)
            values.topk(3)
            values.view(50, 100).cumsum(0)

        @no_implicit_sync
        def test_counted_on_the_host():
            with pytest.raises(InvariantViolation), no_implicit_sync():
                torch.ones(5, device="cuda").nonzero()
        """,
        f"--gpu=simulate:{profile}",
    )
    result.assert_outcomes(passed=2)
