"""Warm-up, warnings, allowances of the ini file: whole runs."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text

STEADY = """
    import torch
    from pytest_gpuinvariants import no_implicit_sync

    cache = {}

    def work():
        if "buffer" not in cache:
            cache["buffer"] = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()

    @no_implicit_sync(kinds=["sync", "allocation"], warmup=2)
    def test_warm():
        work()

    @no_implicit_sync(kinds=["sync", "allocation"], warmup=1)
    def test_grows():
        torch.empty(65 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
"""


def test_warm_up_does_not_count_and_is_listed_when_asked(run: Run) -> None:
    result = run(STEADY, "-vv")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "no_implicit_sync: test_it.py:17: cudaMalloc of 69206016 B: may wait for the device, and 1 more call",
            "warm-up of test_it.py::test_warm:",
            "  allocation:cudaMalloc@test_it.work: cudaMalloc of 67108864 B: may wait for the device",
            "  sync:cudaDeviceSynchronize@test_it.work: *",
        ]
    )
    assert "warm-up of" not in text(run(STEADY))


def test_warm_up_is_for_functions(run: Run) -> None:
    result = run(
        """
        import unittest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        class TestCase(unittest.TestCase):
            @no_implicit_sync(warmup=1)
            def test_method(self): pass

        def test_region():
            with no_implicit_sync(warmup=1): pass
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*argument 'warmup' is for test functions, not for TestCaseFunction*",
            "*MarkerArgumentError: no_implicit_sync: 'warmup' is for a whole test*",
        ]
    )


def test_warn_mode_warns_and_is_not_verified(run: Run) -> None:
    result = run(
        """
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync(mode="warn")
        def test_warned(): torch.cuda.synchronize()
        """
    )
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*InvariantWarning: no_implicit_sync: test_it.py:5: cudaDeviceSynchronize: *",
            "1 violated, as a warning, on simulated H100",
        ]
    )


INI = """
    [pytest]
    gpu_allowances =
        where=test_it.planner; kind=sync; max_count=2; requires=pytest>=8; reason=upstream #1
        where=test_it.gone; reason=upstream #2
"""
ALLOWED = """
    import pytest
    import torch
    from pytest_gpuinvariants import no_implicit_sync

    def planner(times):
        for _ in range(times):
            torch.cuda.synchronize()

    @no_implicit_sync
    @pytest.mark.parametrize("times", [0, 2, 3])
    def test_plan(times): planner(times)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_exemptions_of_the_ini_file_are_counted_and_those_without_use_reported(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makeini(INI)
    result = run(ALLOWED, *workers)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "allowed: 4 calls: upstream #1 (kind=sync, where=test_it.planner)",
            "an allowance matched nothing: upstream #2 (where=test_it.gone)",
        ]
    )


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_strict_allowances_fail_the_run(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeini(INI)
    result = run(ALLOWED, "-k", "2", "--gpu-strict-allowances", *workers)
    result.assert_outcomes(passed=1, deselected=0 if workers else 2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: an allowance matched nothing: upstream #2 (where=test_it.gone)"])
