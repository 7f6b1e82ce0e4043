"""``children=True``: processes that a test starts, by every way that there is."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text

WAYS = """
    import multiprocessing
    import os
    import signal
    import subprocess
    import sys
    import pytest
    from pytest_gpuinvariants import no_implicit_sync

    def synchronize():
        import torch
        torch.cuda.synchronize()

    def die():
        synchronize()
        os.kill(os.getpid(), signal.SIGKILL)

    def start(method, target, name):
        process = multiprocessing.get_context(method).Process(target=target, name=name)
        process.start()
        process.join()
        return process.exitcode

    @no_implicit_sync(children=True)
    @pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
    def test_multiprocessing(method):
        assert start(method, synchronize, f"worker-{method}") == 0

    @no_implicit_sync(children=True)
    def test_program():
        code = "import torch; torch.cuda.synchronize(); torch.cuda.synchronize()"
        subprocess.run([sys.executable, "-c", code], check=True)

    @no_implicit_sync(children=True)
    def test_dies():
        assert start("spawn", die, "doomed") == -signal.SIGKILL

    @no_implicit_sync
    def test_not_asked_for():
        assert start("fork", synchronize, "free") == 0

    @no_implicit_sync(children=True)
    def test_clean():
        subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).pin_memory()"], check=True)
        code = "import sys; assert 'pytest_gpuinvariants' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_region():
        with no_implicit_sync(children=True):
            start("spawn", synchronize, "in-region")
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_findings_of_children_come_back_with_their_process_named(run: Run, workers: tuple[str, ...]) -> None:
    result = run(WAYS, *workers)
    result.assert_outcomes(failed=6, passed=2)
    printed = text(result)
    for name in ("worker-spawn", "worker-fork", "worker-forkserver", "doomed", "in-region", "python"):
        assert f"  process: {name} (pid " in printed
    result.stdout.fnmatch_lines(["*cudaDeviceSynchronize: blocks until the device is idle (2 times)*"])
    assert "process: free" not in printed


def test_what_is_before_the_region_is_not_policed_but_reached(run: Run) -> None:
    result = run(
        """
        import multiprocessing
        import pytest
        from pytest_gpuinvariants import no_implicit_sync

        def serve(pipe):
            import torch
            torch.cuda.synchronize()  # warm-up
            pipe.send("ready")
            while pipe.recv() == "step":
                torch.cuda.synchronize()
                pipe.send("done")

        @pytest.fixture
        def engine():
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), name="engine")
            process.start()
            theirs.close()  # so that the end of a dead engine is seen
            assert ours.recv() == "ready"
            yield ours
            ours.send("stop")
            process.join()

        @no_implicit_sync(children=True)
        def test_step(engine):
            engine.send("step")
            assert engine.recv() == "done"

        @no_implicit_sync(children=True)
        def test_idle(engine): pass
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["no_implicit_sync: test_it.py:10: cudaDeviceSynchronize: *idle", "  process: engine (pid *"]
    )


def test_vllms_general_plugins_join(run: Run) -> None:
    # A child whose torch was loaded without the hook joins when vLLM loads its plugins: too late for a
    # simulated card, which is told instead of passing.
    result = run(
        """
        import subprocess
        import sys
        from pytest_gpuinvariants import no_implicit_sync

        CODE = '''
        import sys
        sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ != "_Waiting"]
        from vllm.plugins import load_general_plugins
        load_general_plugins()
        '''

        @no_implicit_sync(children=True)
        def test_late():
            import textwrap
            subprocess.run([sys.executable, "-c", textwrap.dedent(CODE)], check=True)
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*not verified: a child process could not be policed: python (pid *: the simulated card*"]
    )


def test_a_childs_own_sitecustomize_still_runs(run: Run, pytester: pytest.Pytester) -> None:
    site = pytester.mkdir("site")
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    run(
        """
        import subprocess
        import sys
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync(children=True)
        def test_customized(monkeypatch):
            import os
            monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"] + os.pathsep + "site")
            subprocess.run([sys.executable, "-c", "assert customized"], check=True)
        """
    ).assert_outcomes(passed=1)
