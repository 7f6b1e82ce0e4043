"""Whole runs under a fake: who sees it, and that it is gone afterwards."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text

SEEN = """
    import functools
    import torch
    from torch.cuda import get_device_capability
    from pytest_gpuinvariants import requires_sm90

    AT_IMPORT = torch.cuda.get_device_capability()

    @functools.cache
    def capability():
        return get_device_capability()

    def test_true_before():
        assert AT_IMPORT == (9, 0)
        assert capability() == (10, 3)

    @requires_sm90(host_only=True)
    def test_faked():
        assert get_device_capability() == (9, 0)
        assert capability() == (9, 0)
        properties = torch.cuda.get_device_properties(0)
        assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 152)

    def test_true_after():
        assert get_device_capability() == (10, 3)
        assert capability() == (10, 3)

    @requires_sm90
    def test_kernels():
        raise AssertionError("ran")
"""


def test_collection_and_host_only_tests_see_the_fake_and_nothing_else(run: Run) -> None:
    result = run(SEEN, "--gpu=simulate:gb300,fake:sm90", "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(
        ["gpu: simulated GB300 (SM 10.3): *faking sm_90*capability only; SM count, memory and clocks stay true"]
    )
    assert "runs kernels, and needs a real SM 9.x; this is simulated GB300, SM 10.3 (faking sm_90)" in text(result)
    result.stdout.fnmatch_lines(["1 verified on simulated GB300 faking sm_90"])


def test_what_keeps_the_fake_is_an_error_that_names_it(run: Run) -> None:
    result = run(
        """
        import torch
        from pytest_gpuinvariants import requires_sm90

        KEPT = None

        @requires_sm90(host_only=True)
        def test_keeps():
            global KEPT
            KEPT = torch.cuda.get_device_properties(0)
        """,
        "--gpu=simulate:gb300,fake:sm90",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the fake outlives the test: test_it.KEPT = faked *"])


@pytest.mark.parametrize(
    ("choice", "outcome"),
    [("simulate:h200,fake:gb300", {"skipped": 1}), ("simulate:h200,fake:gb300,fake:sm90", {"passed": 1})],
)
def test_layers_close_and_open_a_gate(run: Run, choice: str, outcome: dict[str, int]) -> None:
    result = run(
        """
        import torch
        from pytest_gpuinvariants import requires_sm90

        @requires_sm90(host_only=True)
        def test_gate():
            assert torch.cuda.get_device_name() == "NVIDIA GB300"
            assert torch.cuda.get_device_capability() == (9, 0)
        """,
        f"--gpu={choice}",
    )
    result.assert_outcomes(**outcome)


def test_vllm_and_flashinfer_by_names_imported_before(run: Run) -> None:
    result = run(
        """
        import os
        import pytest
        import torch
        from flashinfer.utils import get_compute_capability, is_sm90a_supported
        from vllm.platforms import current_platform
        from pytest_gpuinvariants import requires_sm90

        pytestmark = pytest.mark.skipif(not current_platform.is_device_capability(90), reason="needs SM90")
        DEVICE = torch.device("cuda", 0)

        def seen():
            from flashinfer.jit import env
            return (
                tuple(current_platform.get_device_capability()),
                get_compute_capability(DEVICE),
                is_sm90a_supported(DEVICE),
                "faked-sm90a" in str(env.FLASHINFER_JIT_DIR),
                os.environ["FLASHINFER_CUDA_ARCH_LIST"],
            )

        def test_true():
            assert seen() == ((10, 3), (10, 3), False, False, "10.3a")

        @requires_sm90(host_only=True)
        def test_faked():
            assert seen() == ((9, 0), (9, 0), True, True, "9.0a")

        test_true_again = test_true
        """,
        "--gpu=simulate:gb300,fake:sm90",
    )
    result.assert_outcomes(passed=3)


def test_gates_of_torchs_own_test_helpers(run: Run) -> None:
    result = run(
        """
        import sys
        import types
        import unittest

        if "expecttest" not in sys.modules:  # of which the helpers need the name
            sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
        from torch.testing._internal.common_cuda import IS_SM90, SM100OrLater
        from pytest_gpuinvariants import requires_sm90

        def test_true():
            assert (bool(SM100OrLater), bool(IS_SM90)) == (True, False)

        @requires_sm90(host_only=True)
        def test_faked():
            assert (bool(SM100OrLater), bool(IS_SM90)) == (False, True)

        test_true_again = test_true
        """,
        "--gpu=simulate:gb300,fake:sm90",
        "-Wignore",
    )
    result.assert_outcomes(passed=3)


def test_a_card_that_is_not_there_can_not_be_faked(run: Run) -> None:
    result = run("", "--gpu=real,fake:sm90")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu real: no NVIDIA driver*"])


def test_a_run_without_the_fake_in_the_same_process(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['pytester']")
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import requires_sm90

        INNER = '''
            import torch
            from pytest_gpuinvariants import requires_sm90

            @requires_sm90(host_only=True)
            def test_faked():
                assert torch.cuda.get_device_capability() == tuple([9, 0])

            def test_true():
                assert torch.cuda.get_device_capability() == tuple([10, 3])
        '''

        @requires_sm90(host_only=True)
        def test_faked():
            assert torch.cuda.get_device_capability() == (9, 0)

        @pytest.mark.parametrize("fake", [",fake:sm90", ""])
        def test_inner(pytester, fake):
            pytester.makepyfile(INNER)
            inner = pytester.runpytest_inprocess("-p", "gpuinvariants", f"--gpu=simulate:gb300{fake}")
            inner.assert_outcomes(passed=2 if fake else 1, skipped=0 if fake else 1)
        """,
        "--gpu=simulate:gb300,fake:sm90",
    )
    result.assert_outcomes(passed=3)
