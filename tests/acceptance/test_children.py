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
    result = run(WAYS, "-W", "ignore:This process:DeprecationWarning", *workers)
    printed = text(result)
    result.assert_outcomes(failed=6, passed=2)
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
    # A child whose torch was loaded without the hook joins when vLLM loads its plugins: in time on a real
    # GPU, too late for a simulated card, which is told instead of passing.
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
        import torch
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        '''

        @no_implicit_sync(children=True)
        def test_late():
            import textwrap
            subprocess.run([sys.executable, "-c", textwrap.dedent(CODE)], check=True)
        """,
        "-rs",
    )
    if "gpu: real" in text(result):
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["no_implicit_sync: <string>:*: cudaDeviceSynchronize: *", "  process: python (pid *"]
        )
        return
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not verified: a child process could not be policed: python (pid *: the simulated *"])


def test_torch_that_is_looked_for_before_it_is_imported_is_met(run: Run) -> None:
    """As vLLM does: its import asks where torch is."""
    result = run(
        """
        import subprocess
        import sys
        from pytest_gpuinvariants import no_implicit_sync

        CODE = "import importlib.util; importlib.util.find_spec('torch'); import torch; torch.cuda.synchronize()"

        @no_implicit_sync(children=True)
        def test_looked_for(): subprocess.run([sys.executable, "-c", CODE], check=True)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["no_implicit_sync: <string>:1: cudaDeviceSynchronize: *"])


PAST = """
    import subprocess
    import sys
    from pytest_gpuinvariants import no_implicit_sync

    PAST = "import sys; sys.meta_path = [one for one in sys.meta_path if type(one).__name__ != '_Waiting'];"

    @no_implicit_sync(children=True)
    def test_past(): subprocess.run([sys.executable, "-c", f"{PAST} import torch {AFTER}"], check=True)
"""


def test_torch_that_is_imported_past_the_hook_is_not_verified(run: Run) -> None:
    result = run(PAST.replace(" {AFTER}", ""), "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not verified: *: torch was imported past the hook that waits for it"])


def test_torch_that_is_imported_before_the_hook_is_met_late(run: Run) -> None:
    """By a ``.pth`` file, say: in time on a real GPU, too late for a simulated card."""
    late = "; del sys.modules['sitecustomize']; import sitecustomize"
    used = "; torch.cuda.is_available() and torch.cuda.synchronize()"
    result = run(PAST.replace(" {AFTER}", late + used), "-rs")
    if "gpu: real" in text(result):
        result.assert_outcomes(failed=1)
        return
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not verified: a child process could not be policed: *: the simulated *"])


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


def test_what_can_not_be_reached_is_not_verified(run: Run) -> None:
    result = run(
        """
        import multiprocessing.forkserver
        import os
        import subprocess
        import sys
        import pytest
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync(children=True)
        @pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
        def test_flags(flag): subprocess.run([sys.executable, flag, "-c", "pass"], check=True)

        @no_implicit_sync(children=True)
        def test_environment(): subprocess.run([sys.executable, "-c", "pass"], env={}, check=True)

        @no_implicit_sync(children=True)
        def test_inherited_without(monkeypatch):
            monkeypatch.delenv("PYTEST_GPUINVARIANTS_CHANNEL")
            subprocess.run([sys.executable, "-c", "pass"], check=True)

        def nothing(): pass

        @no_implicit_sync(children=True)
        @pytest.mark.parametrize("method", ["spawn", "forkserver"])
        @pytest.mark.parametrize("variable", ["PYTEST_GPUINVARIANTS_CHANNEL", "PYTHONPATH"])
        def test_multiprocessing(monkeypatch, method, variable):
            monkeypatch.delenv(variable)
            multiprocessing.forkserver._forkserver._stop()
            process = multiprocessing.get_context(method).Process(target=nothing)
            process.start()
            process.join()
            multiprocessing.forkserver._forkserver._stop()

        @no_implicit_sync(children=True)
        def test_search_path():
            environment = {**os.environ, "PYTHONPATH": os.getcwd()}
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)

        @no_implicit_sync(children=True)
        def test_hidden(tmp_path):
            (tmp_path / "sitecustomize.py").write_text("")
            environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)

        @no_implicit_sync(children=True)
        def test_grandchild():
            code = "import subprocess, sys, torch; subprocess.run([sys.executable, '-I', '-c', 'pass'])"
            subprocess.run([sys.executable, "-c", code], check=True)

        @no_implicit_sync(children=True)
        def test_other_starts():
            assert os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"], {}) == 0

        @no_implicit_sync(children=True)
        @pytest.mark.parametrize("option", ["-i", "-uPYTHONPATH", "--unset=PYTHONPATH"])
        def test_env(option): subprocess.run(["env", option, sys.executable, "-c", "pass"], check=True)

        @no_implicit_sync(children=True)
        @pytest.mark.parametrize("way", ["[sys.executable, '-I', '-c', '']", "[sys.executable, '-c', ''], env={}"])
        def test_by_a_launcher_without_torch(way):
            code = f"import subprocess, sys; subprocess.run({way}, check=True); assert 'torch' not in sys.modules"
            subprocess.run([sys.executable, "-c", code], check=True)

        @no_implicit_sync(children=True)
        def test_no_python(): subprocess.run(["true"], env={}, check=True)

        @no_implicit_sync(children=True)
        def test_reached_by_a_launcher_without_torch():
            code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
            subprocess.run([sys.executable, "-c", code], check=True)

        @no_implicit_sync(children=True)
        def test_reached():
            subprocess.run([sys.executable, "-c", "pass"], env={**os.environ}, check=True)
            assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", "pass"]) == 0
            subprocess.run(["env", "A=1", sys.executable, "-c", "pass"], check=True)
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=18, passed=3)
    result.stdout.fnmatch_lines(["*could not be policed: *: started with -I, which keeps it from the test's *"])
    result.stdout.fnmatch_lines(["*could not be policed: *: started with an environment of its own*"])
    result.stdout.fnmatch_lines(["*could not be policed: *: started with a PYTHONPATH of its own*"])


def test_a_server_that_outlives_its_test_is_policed_in_the_next_and_harmless_after(run: Run) -> None:
    result = run(
        """
        import multiprocessing
        from pytest_gpuinvariants import no_implicit_sync

        def synchronize():
            import torch
            torch.cuda.synchronize()

        def start():
            process = multiprocessing.get_context("forkserver").Process(target=synchronize, name="forked")
            process.start()
            process.join()
            assert process.exitcode == 0

        @no_implicit_sync(children=True)
        def test_first(): start()

        @no_implicit_sync(children=True)
        def test_second(): start()

        def test_unmarked(): start()
        """
    )
    result.assert_outcomes(failed=2, passed=1)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_exemptions_hold_in_children(run: Run, pytester: pytest.Pytester, method: str) -> None:
    pytester.makeini("[pytest]\ngpu_allowances = where=test_it.known; reason=upstream\n")
    result = run(
        f"""
        import multiprocessing
        from pytest_gpuinvariants import allow_sync, no_implicit_sync

        def known():
            import torch
            torch.cuda.synchronize()

        def allowed():
            import torch
            with allow_sync("reads back"):
                torch.cuda.synchronize()

        def allowed_before_torch():
            with allow_sync("reads back"):
                import torch
                torch.cuda.synchronize()

        def not_any_more():
            allowed_before_torch()
            import torch
            torch.cuda.synchronize()

        def start(target):
            process = multiprocessing.get_context({method!r}).Process(target=target)
            process.start()
            process.join()
            assert process.exitcode == 0

        @no_implicit_sync(children=True)
        def test_by_the_child_before_it_imports_torch(): start(allowed_before_torch)

        @no_implicit_sync(children=True)
        def test_after_it(): start(not_any_more)

        @no_implicit_sync(children=True)
        def test_by_the_ini_file(): start(known)

        @no_implicit_sync(children=True)
        def test_by_the_child(): start(allowed)
        """
    )
    result.assert_outcomes(passed=3, failed=1)
    assert "cudaDeviceSynchronize: blocks until the device is idle\n  id: sync:" in text(result)
    assert "in not_any_more" in text(result)


def test_many_calls_of_a_child_are_counted(run: Run) -> None:
    result = run(
        """
        import multiprocessing
        import os
        from pytest_gpuinvariants import no_implicit_sync

        def many(die):
            import torch
            stream = torch.cuda.current_stream()
            for _ in range(5000):
                stream.synchronize()
            if die:
                os._exit(1)

        def start(die):
            process = multiprocessing.get_context("spawn").Process(target=many, args=(die,))
            process.start()
            process.join()

        @no_implicit_sync(children=True)
        def test_ends(): start(False)

        @no_implicit_sync(children=True)
        def test_dies(): start(True)
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*until the stream is idle (5000 times)", "*until the stream is idle (at least 4096 times)"]
    )


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_an_exemption_of_the_test_reaches_its_children(run: Run, method: str) -> None:
    result = run(
        f"""
        import multiprocessing
        import pytest
        from pytest_gpuinvariants import InvariantViolation, allow_sync, no_implicit_sync

        def serve(pipe):
            import torch
            calls = {{"stream": lambda: torch.cuda.current_stream().synchronize(), "device": torch.cuda.synchronize}}
            for name, times in iter(pipe.recv, None):
                for _ in range(times):
                    calls[name]()
                pipe.send("done")

        @pytest.fixture
        def engine():
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context({method!r}).Process(target=serve, args=(theirs,))
            process.start()
            theirs.close()

            def step(name, times=1):
                ours.send((name, times))
                assert ours.recv() == "done"

            yield step
            ours.send(None)
            process.join()

        pytestmark = no_implicit_sync(children=True)

        def test_counted(engine):
            with allow_sync("reads back") as allowance:
                engine("device", 2)
                assert allowance.count == 2
                engine("stream")
            assert allowance.count == 3

        def test_limited_to_a_place(engine):
            with allow_sync("reads back", where="test_it.serve*"):
                engine("device")

        def test_nested(engine):
            with allow_sync("outer") as outer, allow_sync("inner", max_count=1) as inner:
                engine("device", 3)
            assert (inner.count, outer.count) == (1, 2)

        def test_more_calls_than_are_told_one_by_one(engine):
            with allow_sync("reads back") as allowance:
                engine("stream", 3000)
            assert 2048 <= allowance.count <= 3000

        def test_a_region_inside_is_not_exempt(engine):
            with allow_sync("reads back") as allowance:
                with pytest.raises(InvariantViolation, match="until the device is idle"):
                    with no_implicit_sync(children=True):
                        engine("device")
            assert allowance.count == 0

        def test_ended(engine):
            with allow_sync("reads back"):
                engine("device")
            engine("stream")

        def test_beyond_its_number(engine):
            with allow_sync("reads back", api="cudaDevice*", max_count=2):
                engine("device", 5)

        def test_another_place(engine):
            with allow_sync("no such place", where="elsewhere.*"):
                engine("device", 7)
        """,
        "-W",
        "ignore:This process:DeprecationWarning",
    )
    result.assert_outcomes(passed=5, failed=3)
    printed = text(result)
    assert "test_it.py:7: cudaStreamSynchronize: blocks until the stream is idle\n" in printed
    assert "cudaDeviceSynchronize: blocks until the device is idle (3 times)\n" in printed
    assert "cudaDeviceSynchronize: blocks until the device is idle (7 times)\n" in printed
    assert [line for line in printed.splitlines() if "matched nothing" in line] == [
        "an allowance matched nothing: no such place (where=elsewhere.*)"
    ]


def test_calls_of_ever_other_sizes_are_kept_in_bounds(run: Run) -> None:
    """In a child as in its parent; none of them is lost."""
    result = run(
        """
        import subprocess
        import sys
        import pytest
        from pytest_gpuinvariants import InvariantViolation, allow_sync, no_implicit_sync

        CODE = (
            "import torch\\n"
            "to, of = torch.empty(1000, device='cuda'), torch.empty(1000)\\n"
            "for size in range(1, 1001): to[:size].copy_(of[:size], non_blocking=True)"
        )

        def test_sizes():
            with pytest.raises(InvariantViolation) as caught, no_implicit_sync(children=True):
                subprocess.run([sys.executable, "-c", CODE], check=True)
            findings = caught.value.findings
            assert sum(found.count for found in findings) == 1000
            assert (len(findings), findings[-1].count) == (201, 800)
            assert len({found.id for found in findings}) == 1
            assert "and others like it" in findings[-1].message

        def test_allowed():
            with no_implicit_sync(children=True), allow_sync("all of them", kind="pageable-copy") as allowed:
                subprocess.run([sys.executable, "-c", CODE], check=True)
            assert allowed.count == 1000
        """
    )
    result.assert_outcomes(passed=2)
