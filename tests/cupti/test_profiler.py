"""A profiler before, during and after a region: CUPTI has one subscriber, and each gets its turn or is told."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants import session
from pytest_gpuinvariants.hardware.machine import MachineKind

PRELUDE = """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    from pytest_gpuinvariants import no_implicit_sync

    def work():
        torch.ones(1 << 16, device="cuda").mul_(2).sum()
        torch.cuda.synchronize()

    def profiled():
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
            work()
        return sum(event.device_type == DeviceType.CUDA for event in run.events())

    def region():
        host = torch.ones(1 << 16)
        with no_implicit_sync():
            host.to("cuda", non_blocking=True)
"""
FINDING = "*pageable-copy: cudaMemcpyAsync H2D of 262144 B from pageable memory: may block"


@pytest.fixture
def real() -> None:
    if session.current().machine.kind is not MachineKind.REAL:
        pytest.skip("not verified: needs a real GPU, whose calls CUPTI reports")


def _run(pytester: pytest.Pytester, tests: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=PRELUDE + tests)
    return pytester.runpytest_subprocess("-p", "gpuinvariants", "--gpu", "real", "-rs", "-p", "no:randomly")


@pytest.mark.usefixtures("real")
def test_a_profile_after_a_region_has_its_gpu_events(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
    def test_region():
        region()

    def test_after():
        assert profiled() > 0

    def test_later():
        assert profiled() > 0
    """,
    )
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines([FINDING])


@pytest.mark.usefixtures("real")
def test_a_region_after_a_profile_is_not_verified(pytester: pytest.Pytester) -> None:
    """Kineto keeps CUPTI from its first profile on; its later ones are not disturbed by our asking."""
    result = _run(
        pytester,
        """
    def test_before():
        assert profiled() > 0

    def test_region():
        region()

    def test_after():
        assert profiled() > 0
    """,
    )
    result.assert_outcomes(skipped=1, passed=2)
    result.stdout.fnmatch_lines(["*not verified: CUPTI is held by torch.profiler*"])


@pytest.mark.usefixtures("real")
def test_a_region_inside_a_profile_is_not_verified(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
    def test_during():
        with profile(activities=[ProfilerActivity.CUDA]):
            region()
    """,
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not verified: CUPTI is held by torch.profiler*"])


@pytest.mark.usefixtures("real")
def test_a_profile_inside_a_region_does_not_disturb_the_verdict(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
    def test_inside():
        host = torch.ones(1 << 16)
        with no_implicit_sync():
            host.to("cuda", non_blocking=True)
            with profile(activities=[ProfilerActivity.CUDA]):
                pass

    def test_later():
        work()
    """,
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([FINDING])
