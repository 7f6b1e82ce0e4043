"""A call that the simulated card does not know: what it does on a real one was not seen, so nothing is verified."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.acceptance.conftest import Run, text

SIMULATED = ("--gpu", "simulate:h100", "-rs", "-v")
UNKNOWN = "is not simulated: what it does on a real card was not seen"

CALLS = """
    import ctypes
    import subprocess
    import sys
    import threading
    import pytest
    import torch
    from pytest_gpuinvariants import allow_sync, no_implicit_sync, requires_sm90

    driver = ctypes.CDLL("libcuda.so.1")
    runtime = ctypes.CDLL("libcudart.so.13")

    def copy():
        assert driver.cuMemcpyHtoA_v2(None) == 801

    @no_implicit_sync
    @pytest.mark.parametrize("name", ["cuMemcpyHtoA_v2", "cuGetExportTable", "cuStreamBeginCaptureToGraph"])
    def test_ignored(name):
        getattr(driver, name)(None, None)

    @no_implicit_sync
    def test_violated():
        copy()
        torch.cuda.synchronize()

    @no_implicit_sync
    def test_allowed():
        with allow_sync("an old copy"):
            copy()

    def test_caught():
        with pytest.raises(pytest.skip.Exception):
            with no_implicit_sync:
                copy()

    def test_raises():
        with pytest.raises(ZeroDivisionError):
            with no_implicit_sync:
                copy()
                1 / 0

    calls = []

    @no_implicit_sync(warmup=1)
    def test_warm():
        if not calls:
            copy()
        calls.append(1)

    @no_implicit_sync
    def test_allocation_is_not_policed():
        assert runtime.cudaMallocManaged(None, 0, 0) == 801

    @no_implicit_sync(kinds=["allocation"])
    def test_allocation():
        runtime.cudaMallocManaged(None, 0, 0)

    @requires_sm90(host_only=True)
    def test_launch():
        driver.cuGetExportTable(None, None)

    @no_implicit_sync
    def test_thread():
        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()

    @no_implicit_sync(children=True)
    def test_child():
        code = "import ctypes, torch; ctypes.CDLL('libcuda.so.1').cuMemcpyHtoA_v2(None)"
        subprocess.run([sys.executable, "-c", code], check=True)

    @no_implicit_sync
    def test_not_policed_anywhere():
        runtime.cudaDeviceGetDefaultMemPool(None, 0)
"""


def test_an_unknown_call_leaves_nothing_verified(run: Run) -> None:
    result = run(CALLS, *SIMULATED)
    result.assert_outcomes(passed=6, skipped=7, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_violated FAILED*",
            "*test_allowed PASSED*",
            "*test_caught PASSED*",
            "*test_raises PASSED*",
            "*test_warm PASSED*",
            "*test_allocation_is_not_policed PASSED*",
            "*test_not_policed_anywhere PASSED*",
            "no_implicit_sync: test_it.py:23: cudaDeviceSynchronize: *",
            "4 verified on simulated H100",
            "9 not verified:",
            f"  3: test_it.py:13: cuMemcpyHtoA_v2 {UNKNOWN}",
            "allowed: 1 call: an old copy",
        ]
    )
    result.stdout.fnmatch_lines_random(
        [
            f"SKIPPED * test_it.py:15: not verified: test_it.py:18: cuMemcpyHtoA_v2 {UNKNOWN}",
            f"SKIPPED * test_it.py:15: not verified: test_it.py:18: cuGetExportTable {UNKNOWN}",
            f"SKIPPED * test_it.py:15: not verified: test_it.py:18: cuStreamBeginCaptureToGraph {UNKNOWN}",
            f"SKIPPED * test_it.py:53: not verified: test_it.py:55: cudaMallocManaged {UNKNOWN}",
            f"SKIPPED * test_it.py:57: not verified: test_it.py:59: cuGetExportTable {UNKNOWN}",
            f"SKIPPED * test_it.py:61: not verified: test_it.py:13: cuMemcpyHtoA_v2 {UNKNOWN}",
            f"SKIPPED * test_it.py:67: not verified: <string>:1: cuMemcpyHtoA_v2 {UNKNOWN} in python (pid *)",
        ]
    )


def test_many_places_are_named_in_part(run: Run) -> None:
    lines = "\n            ".join(["driver.cuMemcpyHtoA_v2(None)"] * 300)
    result = run(
        f"""
        import ctypes
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        driver = ctypes.CDLL("libcuda.so.1")

        @no_implicit_sync
        def test_copies():
            {lines}
        """,
        *SIMULATED,
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*; test_it.py:13: cuMemcpyHtoA_v2 * seen; and at more places"])


def test_a_library_with_a_cuda_runtime_of_its_own(run: Run, pytester: pytest.Pytester) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    source = pytester.path / "waits.cu"
    source.write_text('extern "C" int waits() { return cudaDeviceSynchronize(); }\n')
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "static", "-o", "libwaits.so", str(source)]
    subprocess.run(command, check=True, cwd=pytester.path)
    result = run(
        """
        import ctypes
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        library = ctypes.CDLL("./libwaits.so")

        @no_implicit_sync
        def test_waits():
            library.waits()
        """,
        *SIMULATED,
    )
    result.assert_outcomes(skipped=1)
    assert f"not verified: test_it.py:9: cuGetExportTable {UNKNOWN}" in text(result)
