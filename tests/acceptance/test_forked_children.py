"""``children=True``: processes that are forked off, before and after CUDA is used, and their own children."""

from __future__ import annotations

from tests.acceptance.conftest import Run, text

FORKING = """
    import multiprocessing
    import os
    import subprocess
    import sys
    import textwrap
    import threading
    import pytest
    from pytest_gpuinvariants import allow_sync, no_implicit_sync

    def start(target, *args, name="worker"):
        process = multiprocessing.get_context("fork").Process(target=target, args=args, name=name)
        process.start()
        process.join()
        return process.exitcode
"""
UNDISTURBED = ("-W", "ignore:This process:DeprecationWarning", "-rs")


def test_parent_and_child_each_report_their_own_calls(run: Run) -> None:
    result = run(
        FORKING
        + """
    def synchronize(times):
        import torch
        for _ in range(times):
            torch.cuda.synchronize()

    @no_implicit_sync(children=True)
    def test_both():
        assert start(synchronize, 2) == 0
        synchronize(3)
        assert start(os.getpid) == 0
    """,
        *UNDISTURBED,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*blocks until the device is idle (3 times), and 2 more calls",
            "sync: cudaDeviceSynchronize: blocks until the device is idle (3 times)",
            "sync: cudaDeviceSynchronize: blocks until the device is idle (2 times)",
            "  process: worker (pid *",
        ]
    )
    assert text(result).count("  process: ") == 1


def test_a_child_of_a_process_that_uses_cuda_can_not_use_it_and_is_no_obstacle(run: Run) -> None:
    result = run(
        FORKING
        + """
    def synchronize():
        import torch
        torch.cuda.synchronize()

    @pytest.fixture(autouse=True)
    def used():
        import torch
        torch.zeros(1, device="cuda")

    @no_implicit_sync(children=True)
    def test_idle():
        assert start(os.getpid) == 0

    @no_implicit_sync(children=True)
    def test_region_of_its_own():
        def child():
            with no_implicit_sync():
                pass
        assert start(child) == 0

    @no_implicit_sync(children=True)
    def test_uses():
        assert start(synchronize) == 0, "torch refuses"

    @no_implicit_sync
    def test_not_asked_for():
        assert start(os.getpid) == 0
    """,
        *UNDISTURBED,
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["E *torch refuses", "*Cannot re-initialize CUDA in forked subprocess*", "3 verified on *"]
    )


def test_a_fork_in_the_set_up_is_policed_once_it_has_torch(run: Run) -> None:
    result = run(
        FORKING
        + """
    def serve(pipe):
        import torch
        torch.cuda.synchronize()  # warm-up
        pipe.send("ready")
        pipe.recv()
        torch.cuda.synchronize()
        pipe.send("done")

    @pytest.fixture
    def engine():
        assert "torch" not in sys.modules
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), name="engine")
        process.start()
        assert "torch" not in sys.modules
        assert ours.recv() == "ready"
        yield ours
        process.join()

    @no_implicit_sync(children=True)
    def test_step(engine):
        engine.send("step")
        assert engine.recv() == "done"
    """,
        *UNDISTURBED,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["sync: cudaDeviceSynchronize: blocks until the device is idle", "  process: engine *"])


def test_what_a_child_forks_off_is_policed_too(run: Run) -> None:
    result = run(
        FORKING
        + """
    def synchronize():
        import torch
        torch.cuda.synchronize()

    def fork():
        import torch
        assert start(synchronize, name="grandchild") == 0

    @no_implicit_sync(children=True)
    @pytest.mark.parametrize("method", ["spawn", "fork"])
    def test_grandchild(method):
        process = multiprocessing.get_context(method).Process(target=fork, name="child")
        process.start()
        process.join()
        assert process.exitcode == 0
    """,
        *UNDISTURBED,
    )
    result.assert_outcomes(failed=2)
    assert text(result).count("  process: grandchild (pid ") == 2
    assert "  process: child" not in text(result)


def test_the_totals_of_a_child_are_not_told_again_by_what_it_forks_off(run: Run) -> None:
    result = run(
        FORKING
        + """
    CODE = '''
    import os
    import torch
    stream = torch.cuda.current_stream()
    for _ in range(1500):
        stream.synchronize()
    if child := os.fork():
        os.waitpid(child, 0)
    '''

    @no_implicit_sync(children=True)
    def test_program():
        subprocess.run([sys.executable, "-c", textwrap.dedent(CODE)], check=True)
    """,
        *UNDISTURBED,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["sync: cudaStreamSynchronize: *(1500 times)"])
    assert text(result).count("\nsync: cudaStreamSynchronize: ") == 1
