"""What the gates do in a user's run: as marker and as decorator, on every level, with ``-m``."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run

EVERYWHERE = """
    import pytest
    import pytest_gpuinvariants as gi

    pytestmark = gi.requires_cuda("≥12.8")

    @gi.requires_sm(9, host_only=True)
    @pytest.mark.requires_package("pytest>=8")
    def test_function(): pass

    @gi.requires_sm90(host_only=True)
    class TestGrouped:
        @gi.requires_gpu_memory("40GiB")
        def test_method(self): pass

        @pytest.mark.requires_gpus(2)
        def test_two(self): raise AssertionError

    @pytest.mark.parametrize("one", [
        pytest.param(1, marks=gi.requires_sm103(host_only=True)),
        pytest.param(2, marks=[gi.requires_sm80(or_newer=True), gi.requires_gpu_memory("40GiB", host_only=True)]),
        pytest.param(3, marks=pytest.mark.requires_gpu_memory("100GB")),
    ])
    def test_parameters(one): assert one == 2

    @gi.requires_package("no-such-package>=1")
    def test_package(): raise AssertionError

    @gi.requires_nvlink
    def test_nvlink(): raise AssertionError

    @gi.requires_package("pytest")
    def test_software_alone(): pass
"""


def test_gates_on_every_level(run: Run) -> None:
    result = run(EVERYWHERE, "-rs", "--gpu", "simulate:h100")
    result.assert_outcomes(passed=4, skipped=5)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * not verified: needs 2 GPUs; there is 1",
            "SKIPPED * not verified: needs SM 10.3; this is simulated H100, SM 9.0",
            "SKIPPED * not verified: needs a GPU with 100GB; this is simulated H100 with 80.0GiB",
            "SKIPPED * not verified: needs no-such-package>=1; no-such-package is not installed",
            "SKIPPED * not verified: needs GPUs joined by NVLink; there is 1 GPU",
            "3 verified on simulated H100",  # a need of the software alone verifies nothing
        ]
    )


def test_gates_of_two_cards(run: Run) -> None:
    result = run(
        """
        from pytest_gpuinvariants import requires_gpus, requires_nvlink

        @requires_gpus(2)
        def test_runs_kernels(): raise AssertionError

        @requires_gpus(2)
        @requires_nvlink(host_only=True)
        def test_host_only(): pass
        """,
        "-rs",
        "--gpu",
        "simulate:h100x2",
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * not verified: runs kernels, and needs 2 real GPUs; this is simulated H100, SM 9.0, where*"]
    )


def test_gates_are_selected_by_name(run: Run) -> None:
    result = run(EVERYWHERE, "-m", "requires_gpus or requires_sm103", "--gpu", "simulate:h100")
    result.assert_outcomes(skipped=2, deselected=7)


@pytest.mark.parametrize(
    ("marker", "problem"),
    [
        ("requires_gpus", "requires_gpus: argument 'n' is missing; accepted: n, host_only=False"),
        (
            "requires_sm(9, 'x')",
            "requires_sm: argument 'minor' is 'x'; accepted: a number from 0 to 9, or None for any",
        ),
        (
            "requires_cuda('12')",
            "requires_cuda: argument 'versions' is '12'; accepted: a version range such as '>=12.8'",
        ),
        ("requires_sm91", "unknown marker 'requires_sm91': did you mean 'requires_sm90'?"),
    ],
)
def test_wrong_arguments_are_collection_errors(run: Run, marker: str, problem: str) -> None:
    result = run(
        f"""
        import pytest
        import pytest_gpuinvariants

        @pytest.mark.{marker}
        def test_wrong(): pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_it.py::test_wrong: {problem}"])


def test_gates_ask_nothing_before_the_test_runs(run: Run) -> None:
    """Collection, and a run whose conftest imports torch later, start no CUDA and no second process."""
    result = run(
        """
        import sys
        from pytest_gpuinvariants import requires_gpus, requires_sm90

        assert "torch" not in sys.modules

        @requires_sm90(host_only=True)
        @requires_gpus(1)
        def test_it(): assert "torch" not in sys.modules
        """,
        "--gpu",
        "simulate:h100",
    )
    result.assert_outcomes(passed=1)


def test_a_helper_of_the_same_name_is_no_gate(run: Run) -> None:
    """Files that have a ``requires_cuda`` of their own get no simulated card."""
    result = run(
        """
        import pytest

        requires_cuda = requires_gpus = pytest.mark.skipif(True, reason="own")

        @requires_cuda
        def test_own(): pass
        """
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["gpu: not needed: *"])
