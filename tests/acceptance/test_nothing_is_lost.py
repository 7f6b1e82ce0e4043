"""Ways in which a violation once got away, or a verdict said more than was done."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, text

HEAD = """
    import contextlib
    import threading
    from concurrent.futures import ThreadPoolExecutor
    import pytest
    import torch
    from pytest_gpuinvariants import InvariantViolation, allow_sync, known_fault, no_implicit_sync

    def synchronize():
        torch.cuda.synchronize()

    def region():
        with no_implicit_sync():
            synchronize()
"""


def verdicts(path: Path) -> dict[str, list[str]]:
    """The verdicts of each test, without the hardware, from a JUnit file."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        here = found.setdefault(case.attrib["name"], [])
        told = (one.attrib["value"] for one in case.iter("property") if one.attrib["name"].endswith("verdict"))
        here += [verdict.rpartition(" on ")[0] for verdict in told]
    return found


def test_notes_take_no_place_of_a_violation(run: Run) -> None:
    result = run(
        HEAD
        + """
    @no_implicit_sync(pageable_threshold=4000)
    def test_many_notes():
        for size in range(1, 300):
            torch.empty(size, dtype=torch.uint8).to("cuda", non_blocking=True)
        synchronize()
"""
    )
    result.assert_outcomes(failed=1)


def test_a_violation_on_another_thread_fails_the_test(run: Run) -> None:
    result = run(
        HEAD
        + """
    @pytest.mark.filterwarnings("ignore")
    def test_thread():
        thread = threading.Thread(target=region)
        thread.start()
        thread.join()

    def test_future():
        with ThreadPoolExecutor() as pool:
            pool.submit(region)  # its result is never asked for
"""
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["2 violated on *"])


def test_a_violation_that_the_test_catches_is_not_verified(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    def test_expected():
        with pytest.raises(InvariantViolation):
            region()

    def test_suppressed():
        with contextlib.suppress(BaseException):
            region()
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=2)
    caught = ["violated, and caught by the test,"]
    assert verdicts(pytester.path / "junit.xml") == {"test_expected": caught, "test_suppressed": caught}


def test_fixtures_of_every_scope_are_heard_to_the_end(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    @pytest.fixture
    def armed():
        with no_implicit_sync():
            yield

    @pytest.fixture
    def left():
        yield
        with contextlib.suppress(ValueError), no_implicit_sync():
            synchronize()
            raise ValueError

    def test_policed_by_a_fixture(armed): synchronize()

    def test_left_in_teardown(left): pass
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(["2 violated on *"])
    result.stdout.fnmatch_lines(["ERROR test_it.py::test_policed_by_a_fixture - no_implicit_sync: test_it.py:*"])
    found = verdicts(pytester.path / "junit.xml")
    assert {name: one[-1] for name, one in found.items()} == dict.fromkeys(found, "violated")
    assert "verified on" not in text(result)


def test_a_skip_does_not_undo_what_was_done(run: Run) -> None:
    result = run(
        HEAD
        + """
    @no_implicit_sync
    def test_skips():
        synchronize()
        pytest.skip("enough")

    @no_implicit_sync
    def test_xfails():
        synchronize()
        pytest.xfail("not yet")

    @no_implicit_sync
    def test_skips_cleanly():
        pytest.skip("nothing to do")
"""
    )
    result.assert_outcomes(failed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["2 violated on *", "1 skipped: nothing to do"])


def test_markers_that_a_conftest_adds_are_checked_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            added = {
                "test_typo": pytest.mark.no_implicit_sync(kindz="sync"),
                "test_misspelled": pytest.mark.no_implict_sync,
                "test_right": pytest.mark.no_implicit_sync,
            }
            for item in items:
                item.add_marker(added[item.name])
        """
    )
    result = run("def test_typo(): pass\ndef test_misspelled(): pass\ndef test_right(): pass\n", "-W", "ignore")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*no_implicit_sync: unknown argument 'kindz' (did you mean 'kinds'?)*"])
    result.stdout.fnmatch_lines(["*unknown marker 'no_implict_sync': did you mean 'no_implicit_sync'?*"])


def test_what_states_no_invariant_is_not_verified(run: Run) -> None:
    result = run(
        HEAD
        + """
    @known_fault("sync:x@y", package="pytest", versions="<1", reason="long ago")
    def test_only_declared(): pass
"""
    )
    result.assert_outcomes(passed=1)
    assert "verified on" not in text(result)


def test_one_test_has_one_verdict_whatever_its_subtests(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        """
        import unittest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        class TestCase(unittest.TestCase):
            @no_implicit_sync
            def test_clean(self):
                for index in range(3):
                    with self.subTest(index=index):
                        torch.ones(1).pin_memory()

            @no_implicit_sync
            def test_faulty(self):
                for index in range(3):
                    with self.subTest(index=index):
                        torch.cuda.synchronize()
        """,
        "--junitxml=junit.xml",
    )
    result.stdout.fnmatch_lines(["1 violated on simulated H100", "1 verified on *"])
    found = verdicts(pytester.path / "junit.xml")
    assert found["test_clean"] == ["verified"]
    assert found["test_faulty"] == ["violated"]


def test_a_rerun_starts_anew(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from _pytest.runner import runtestprotocol

        @pytest.hookimpl
        def pytest_runtest_protocol(item, nextitem):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            runtestprotocol(item, nextitem=nextitem, log=False)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        """
    )
    result = run(
        HEAD
        + """
    attempts = []

    @no_implicit_sync
    def test_flaky():
        attempts.append(1)
        if len(attempts) == 1:
            synchronize()
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=1)
    assert verdicts(pytester.path / "junit.xml")["test_flaky"] == ["verified"]


def test_a_failing_test_prints_its_tensors_without_computing_with_them(run: Run) -> None:
    result = run(
        """
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        def test_repr():
            torch.full((1 << 18,), 0x3F800000, dtype=torch.int32).to("cuda")  # what a count would be read from
            values = torch.ones(4, device="cuda")
            with no_implicit_sync(): pass
            assert values is None, values
        """
    )
    result.assert_outcomes(failed=1)
    if "gpu: simulated" not in text(result):
        pytest.skip("a real card computes its values")
    result.stdout.fnmatch_lines(["*tensor(<values: kernels do not run on a simulated card>, device='cuda:0')*"])


def test_decorators_stand_wherever_marks_do(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pytest_gpuinvariants import no_implicit_sync

        def pytest_itemcollected(item):
            if item.name == "test_added":
                item.add_marker(no_implicit_sync)
        """
    )
    result = run(
        """
        import pytest
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        several = [no_implicit_sync(kinds="sync")]

        @pytest.mark.parametrize("value", [pytest.param(1, marks=no_implicit_sync), pytest.param(2, marks=several)])
        def test_parameters(value): torch.cuda.synchronize()

        def test_added(): torch.cuda.synchronize()
        """
    )
    result.assert_outcomes(failed=3)


def test_allow_sync_decorates_coroutines_and_generators(run: Run) -> None:
    run(
        """
        import asyncio
        import torch
        from pytest_gpuinvariants import allow_sync, no_implicit_sync

        @allow_sync("reads back")
        async def coroutine():
            await asyncio.sleep(0)
            torch.cuda.synchronize()

        @allow_sync("reads back")
        def generator():
            torch.cuda.synchronize()
            yield

        @no_implicit_sync
        def test_coroutine(): asyncio.run(coroutine())

        @no_implicit_sync
        def test_generator(): list(generator())
        """
    ).assert_outcomes(passed=2)


def test_one_object_serves_tasks_at_once(run: Run) -> None:
    result = run(
        """
        import asyncio
        import pytest
        import torch
        from pytest_gpuinvariants import InvariantViolation, no_implicit_sync

        async def clean(first, second):
            with no_implicit_sync:
                first.set()
                await second.wait()

        async def faulty(first, second):
            await first.wait()
            try:
                with no_implicit_sync:
                    second.set()
                    await asyncio.sleep(0.01)
                    torch.cuda.synchronize()
            except InvariantViolation:
                return "found"

        def test_interleaved():
            async def both():
                first, second = asyncio.Event(), asyncio.Event()
                return await asyncio.gather(clean(first, second), faulty(first, second))

            assert asyncio.run(both()) == [None, "found"]
        """
    )
    result.assert_outcomes(passed=1)


def test_a_region_of_other_kinds_takes_no_calls_from_other_threads(run: Run) -> None:
    result = run(
        """
        import threading
        import torch
        from pytest_gpuinvariants import no_implicit_sync

        def test_counts():
            torch.ones(1, device="cuda")
            made, done = [], threading.Event()

            def work():
                while not done.is_set():
                    torch.cuda.synchronize()
                    made.append(1)

            thread = threading.Thread(target=work)
            with no_implicit_sync(threads="all", mode="warn", kinds="sync") as outer:
                thread.start()
                for _ in range(300):
                    with no_implicit_sync(kinds="allocation"):
                        pass
                done.set()
                thread.join()
            assert sum(found.count for found in outer.tally.violations) == len(made) > 0
        """
    )
    result.assert_outcomes(passed=1, warnings=1)


def test_printing_a_tensor_waits_for_its_values(run: Run) -> None:
    result = run(
        """
        import subprocess
        import sys
        from pytest_gpuinvariants import no_implicit_sync

        @no_implicit_sync
        def test_logs():
            import torch
            values = torch.ones(3, device="cuda")
            print(f"values: {values}")

        @no_implicit_sync(children=True)
        def test_child():
            code = "import torch; print(torch.ones(3, device='cuda'))"
            subprocess.run([sys.executable, "-c", code], check=True)
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "no_implicit_sync: test_it.py:9: cudaStreamSynchronize: *",
            "no_implicit_sync: <string>:1: cudaStreamSynchronize: *",
        ]
    )


def test_no_call_is_lost_where_threads_change_places_at_any_time(run: Run) -> None:
    result = run(
        """
        import sys
        import threading
        import torch
        from pytest_gpuinvariants import allow_sync, no_implicit_sync

        def test_counts():
            torch.ones(1, device="cuda")
            done, made = threading.Event(), []

            def work():
                count = 0
                while not done.is_set():
                    torch.cuda.synchronize()
                    count += 1
                made.append(count)

            threads = [threading.Thread(target=work) for _ in range(4)]
            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            try:
                with no_implicit_sync(threads="all", mode="warn", kinds="sync") as outer:
                    for thread in threads:
                        thread.start()
                    for _ in range(3000):
                        with allow_sync("none of them", kind="allocation"):
                            pass
                    done.set()
                    for thread in threads:
                        thread.join()
            finally:
                sys.setswitchinterval(interval)
            assert sum(found.count for found in outer.tally.violations) == sum(made) > 0
        """
    )
    result.assert_outcomes(passed=1, warnings=1)
