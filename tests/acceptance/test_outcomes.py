"""What a user's test file gets: violations, skips, typos, known faults; alone, under xdist, in JUnit."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, text

HAND_WRITTEN = """
    import pytest
    import torch
    from pytest_gpuinvariants import allow_sync, no_implicit_sync, requires_sm90

    @requires_sm90(host_only=True)
    @no_implicit_sync
    def test_item():
        x = torch.ones(4, device="cuda")
        x.sum().item()

    @pytest.mark.no_implicit_sync
    def test_nonzero():
        x = torch.ones(4, device="cuda")
        x[x > 0] *= 2

    @pytest.mark.no_implicit_sync()
    class TestGrouped:
        def test_pageable(self):
            torch.empty(1 << 20).to("cuda", non_blocking=True)

        def test_pinned(self):
            torch.empty(1 << 20).pin_memory().to("cuda", non_blocking=True)

    @no_implicit_sync(kinds=["sync"])
    def test_event():
        event = torch.cuda.Event()
        event.record()
        event.synchronize()

    @no_implicit_sync
    def test_allowed():
        with allow_sync("the sampled token is needed here") as allowance:
            torch.ones(1, device="cuda").item()
        assert allowance.count == 1

    def test_region():
        torch.cuda.synchronize()
        with no_implicit_sync():
            torch.empty(4).to("cuda", non_blocking=True)

    @requires_sm90
    def test_kernel():
        raise AssertionError("kernels do not run here")

    def test_plain():
        pass
"""
LINES = [
    "no_implicit_sync: test_it.py:9: cudaStreamSynchronize: blocks until the stream is idle",
    "no_implicit_sync: test_it.py:14: cudaStreamSynchronize: blocks until the stream is idle*",
    "no_implicit_sync: test_it.py:19: cudaMemcpyAsync H2D of 4194304 B from pageable memory: may block",
    "no_implicit_sync: test_it.py:28: cudaEventSynchronize: blocks until the event has happened",
    "no_implicit_sync: test_it.py:39: cudaMemcpyAsync H2D of 16 B from pageable memory: may block",
]
SUMMARY = [
    "5 violated on simulated H100",
    "2 verified on simulated H100",
    "1 not verified: runs kernels, and needs a real SM 9.x; this is simulated H100, SM 9.0, where kernels do not run",
    "allowed: 1 call: the sampled token is needed here",
    "kernels did not run: * launches were recorded on the simulated card, and what they would have written *",
]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_hand_written_file(run: Run, workers: tuple[str, ...], pytester: pytest.Pytester) -> None:
    result = run(HAND_WRITTEN, "--junitxml=junit.xml", *workers)
    result.assert_outcomes(failed=5, passed=3, skipped=1)
    for line in LINES:
        result.stdout.fnmatch_lines([line])
    result.stdout.fnmatch_lines(["gpu: simulated H100 (SM 9.0): *"])
    result.stdout.fnmatch_lines(SUMMARY)
    cases = _properties(pytester.path / "junit.xml")
    assert cases["test_pinned"]["gpuinvariants.verdict"] == ["verified on simulated H100"]
    assert cases["test_pinned"]["gpuinvariants.gpu"] == ["simulated H100"]
    assert cases["test_item"]["gpuinvariants.verdict"] == ["violated on simulated H100"]
    assert cases["test_item"]["gpuinvariants.finding"] == [
        "sync:cudaStreamSynchronize@test_it.test_item: cudaStreamSynchronize: blocks until the stream is idle"
    ]
    assert cases["test_allowed"]["gpuinvariants.allowed"] == ["1 x the sampled token is needed here"]
    assert cases["test_kernel"]["gpuinvariants.verdict"][0].startswith("not verified: runs kernels")
    assert cases["test_plain"] == {}


def _properties(path: Path) -> dict[str, dict[str, list[str]]]:
    cases: dict[str, dict[str, list[str]]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        here = cases.setdefault(case.attrib["name"], {})
        for item in case.iter("property"):
            here.setdefault(item.attrib["name"], []).append(item.attrib["value"])
    return cases


def test_junit_carries_the_violation_text(run: Run, pytester: pytest.Pytester) -> None:
    run(HAND_WRITTEN, "-k", "test_event", "--junitxml=junit.xml")
    failure = next(ElementTree.parse(pytester.path / "junit.xml").iter("failure"))
    told = failure.attrib["message"] + (failure.text or "")
    assert "cudaEventSynchronize: blocks until the event has happened" in told
    assert "test_it.py:28 in test_event" in told


@pytest.mark.parametrize(
    ("decorator", "problem"),
    [
        (
            "no_implicit_sync(kindz='sync')",
            "no_implicit_sync: unknown argument 'kindz' (did you mean 'kinds'?); accepted: kinds=..., *",
        ),
        (
            "no_implicit_sync(kinds='sinc')",
            "no_implicit_sync: argument 'kinds' is 'sinc'; accepted: unknown kind 'sinc'; kinds: sync, *",
        ),
        ("requires_sm90('yes')", "requires_sm90: unexpected positional argument 'yes'; accepted: or_newer=False, *"),
        ("requires_sm90(host_only=1)", "requires_sm90: argument 'host_only' is 1; accepted: True or False"),
        ("no_implict_sync", "unknown marker 'no_implict_sync': did you mean 'no_implicit_sync'?"),
        ("known_fault('x', package='p', reason='r')", "known_fault: argument 'versions' is missing; accepted: *"),
    ],
)
def test_a_typo_is_a_collection_error(run: Run, decorator: str, problem: str) -> None:
    result = run(
        f"""
        import pytest

        class TestGroup:
            @pytest.mark.{decorator}
            def test_wrong(self): pass
        """
    )
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    problem = problem.replace("[", "[[]")
    result.stdout.fnmatch_lines([f"test_it.py::TestGroup::test_wrong: {problem}"])


@pytest.mark.parametrize(
    "form", ["no_implicit_sync", "[no_implicit_sync(kinds='sync')]", "[pytest.mark.no_implicit_sync]"]
)
def test_module_marks(run: Run, form: str) -> None:
    result = run(
        f"""
        import pytest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        pytestmark = {form}

        def test_one(): torch.cuda.synchronize()
        def test_two(): torch.cuda.current_device()
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["1 violated on simulated H100", "1 verified on simulated H100"])


def test_the_closest_marker_wins(run: Run) -> None:
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        pytestmark = no_implicit_sync(kinds="pageable-copy")

        def test_module(): torch.cuda.synchronize()

        @no_implicit_sync(kinds="sync")
        def test_own(): torch.cuda.synchronize()
        """
    )
    result.assert_outcomes(passed=1, failed=1)


def test_violations_are_not_lost_with_another_exception(run: Run) -> None:
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        def test_swallowed():
            with pytest.raises(ValueError):
                with no_implicit_sync():
                    torch.cuda.synchronize()
                    raise ValueError

        def test_hidden():
            try:
                with no_implicit_sync():
                    torch.cuda.synchronize()
            except Exception:
                pass

        @no_implicit_sync
        def test_fails_anyway():
            torch.cuda.synchronize()
            assert 1 == 2
        """
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*invariants that do not hold*", "sync: cudaDeviceSynchronize: *"])


def test_calls_of_another_thread_fail_nothing(run: Run) -> None:
    run(
        """
        import threading
        import pytest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        def wait_and_synchronize(go):
            go.wait()
            torch.cuda.synchronize()

        @pytest.fixture
        def background():
            go = threading.Event()
            thread = threading.Thread(target=wait_and_synchronize, args=(go,))
            thread.start()
            yield go, thread

        @no_implicit_sync
        def test_background(background):
            go, thread = background
            go.set()
            thread.join()
        """
    ).assert_outcomes(passed=1)


def test_a_kernel_of_other_code_breaks_host_only(run: Run) -> None:
    result = run(
        """
        import ctypes
        import torch
        from pytest_gpuinvariants import requires_sm90

        def launch():
            cuda = ctypes.CDLL("libcuda.so.1")
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
            assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"paged_attention_sm90") == 0
            assert cuda.cuLaunchKernel(function, *[1] * 6, 0, None, None, None) == 0

        @requires_sm90(host_only=True)
        def test_launches(): launch()

        @requires_sm90(host_only=True)
        def test_torch_is_allowed(): torch.ones(4, device="cuda").add_(1)
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["host_only: test_it.py:10: cuLaunchKernel of paged_attention_sm90 from *"])


def test_known_faults_are_strict(run: Run) -> None:
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import known_fault, no_implicit_sync

        def fault(name, finding="sync:cudaDeviceSynchronize", versions=">=1", **more):
            finding = f"{finding}@test_it.{name}"
            return known_fault(finding, package="pytest", versions=versions, reason="upstream", **more)

        @no_implicit_sync
        @fault("test_there")
        def test_there(): torch.cuda.synchronize()

        @no_implicit_sync
        @fault("test_called", called_from="test_it.test_called")
        def test_called(): torch.cuda.synchronize()

        @no_implicit_sync
        @fault("test_gone")
        def test_gone(): pass

        @no_implicit_sync
        @fault("test_other", finding="sync:cudaStreamSynchronize")
        def test_other(): torch.cuda.synchronize()

        @no_implicit_sync
        @fault("test_caller", called_from="test_it.nobody")
        def test_caller(): torch.cuda.synchronize()

        @no_implicit_sync
        @fault("test_raises")
        def test_raises(): raise ValueError

        @no_implicit_sync
        @fault("test_fixed_release", versions="<1")
        def test_fixed_release(): torch.cuda.synchronize()
        """,
        "-rx",
    )
    result.assert_outcomes(xfailed=2, failed=5)
    result.stdout.fnmatch_lines(
        [
            "known_fault (strict): the known fault was not found: mend its declaration if the release is fixed",
            "not the known fault alone: sync:cudaDeviceSynchronize@test_it.test_other",
            "the known fault, but not called from test_it.nobody",
            "the test fails, but not with the known fault",
            "2 known fault on simulated H100",
            "XFAIL test_it.py::test_there - *upstream*cudaDeviceSynchronize: blocks until the device is idle*",
        ]
    )


def test_without_cuda_torch_marked_tests_skip_as_not_verified(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        no_cuda="""
        import pytest_gpuinvariants.hardware.detection as detection
        detection.platform.system = lambda: "Darwin"
        """
    )
    result = run(
        """
        import pytest
        from pytest_gpuinvariants import no_implicit_sync, requires_sm90

        @requires_sm90(host_only=True)
        def test_gated(): raise AssertionError

        @no_implicit_sync
        def test_policed(): raise AssertionError

        def test_region():
            with no_implicit_sync():
                raise AssertionError
        """,
        "-rs",
        load=("-p", "no_cuda", "-p", "gpuinvariants"),
    )
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(["gpu: none: CUDA can neither be used nor simulated on Darwin"])
    assert text(result).count("SKIPPED [1] test_it.py:") == 3
    result.stdout.fnmatch_lines(["3 not verified:", "  1: needs SM 9.x; there is no GPU (*", "  2: there is no GPU (*"])
    assert "verified on" not in text(result)


def test_notes_below_the_threshold_fail_nothing(run: Run) -> None:
    result = run(
        """
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync(pageable_threshold=1024)
        def test_small(): torch.empty(16).to("cuda", non_blocking=True)

        @no_implicit_sync(pageable_threshold=1024)
        def test_large(): torch.empty(256).to("cuda", non_blocking=True)
        """,
        "-rP",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*: cudaMemcpyAsync H2D of 1024 B*", "*notes*", "pageable-copy: cudaMemcpyAsync H2D of 64 B*"]
    )


def test_what_is_not_simulated_is_named_once(run: Run) -> None:
    result = run(
        """
        import ctypes
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync
        def test_unsupported():
            runtime = ctypes.CDLL("libcudart.so.13")
            assert runtime.cudaMallocManaged(0, 0, 0) == 801
            assert runtime.cudaMallocManaged(0, 0, 0) == 801
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["not simulated, answered 'not supported': cudaMallocManaged"])
