"""``fresh_config_context`` in whole runs: what a test leaves is named, and gone for the next one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, text

pytest.importorskip("torch")

HEAD = """
    import os
    import random
    import threading
    import warnings
    import pytest
    import torch
    from pytest_gpuinvariants import fresh_config_context, known_fault
    from pytest_gpuinvariants.integrations.singletons import variable

    pytestmark = fresh_config_context
"""


def findings(path: Path, of: str = "finding") -> dict[str, list[str]]:
    """The findings of each test by their ids, from a JUnit file."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        here = found.setdefault(case.attrib["name"], [])
        for one in case.iter("property"):
            if one.attrib["name"] == f"gpuinvariants.{of}":
                here.append(one.attrib["value"].split(": ")[0])
    return {name: list(dict.fromkeys(ids)) for name, ids in found.items()}


CHANGES = {
    # What a test does, what must hold again afterwards, and the finding.
    "env": (
        'os.environ["TRITON_INTERPRET"] = "1"',
        '"TRITON_INTERPRET" not in os.environ',
        "changed:env.TRITON_INTERPRET@test_it.test_leaks",
    ),
    "removed variable": ('del os.environ["PATH"]', '"PATH" in os.environ', "changed:env.PATH@test_it.test_leaks"),
    "cwd": ('os.chdir("/")', 'os.getcwd() != "/"', "changed:python.cwd@test_it.test_leaks"),
    "showwarning": (
        "warnings.showwarning = print",
        "warnings.showwarning is not print",
        "changed:python.showwarning@test_it.test_leaks",
    ),
    "dtype": (
        "torch.set_default_dtype(torch.float64)",
        "torch.get_default_dtype() is torch.float32",
        "changed:torch.default_dtype@test_it.test_leaks",
    ),
    "device": (
        'torch.set_default_device("meta")',
        'torch.empty(1).device.type == "cpu"',
        "changed:torch.default_device@test_it.test_leaks",
    ),
    "deterministic": (
        "torch.use_deterministic_algorithms(True)",
        "not torch.are_deterministic_algorithms_enabled()",
        "changed:torch.deterministic@test_it.test_leaks",
    ),
    "cudnn": (
        "torch.backends.cudnn.benchmark = True",
        "not torch.backends.cudnn.benchmark",
        "changed:torch.cudnn.benchmark@test_it.test_leaks",
    ),
    "sync debug mode": (
        'warnings.simplefilter("ignore"); torch.cuda.set_sync_debug_mode("warn")',
        "torch.cuda.get_sync_debug_mode() == 0",
        "changed:torch.sync_debug_mode@test_it.test_leaks",
    ),
    "process group": (
        "torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)",
        "not torch.distributed.is_initialized()",
        "leak:torch.default_group@test_it.test_leaks",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("end", ["", "assert 0", "pytest.skip('enough')"], ids=["passes", "fails", "skips"])
def test_what_a_test_leaves_is_named_and_undone(run: Run, pytester: pytest.Pytester, name: str, end: str) -> None:
    change, holds, found = CHANGES[name]
    result = run(
        HEAD
        + f"""
    def test_leaks():
        {change}
        {end}

    def test_after():
        assert {holds}
""",
        "--junitxml=junit.xml",
    )
    assert findings(pytester.path / "junit.xml") == {"test_leaks": [found], "test_after": []}
    outcomes = result.parseoutcomes()
    assert outcomes.pop("errors") == 1
    first = "failed" if "assert" in end else "skipped" if end else "passed"
    expected = {"passed": 2} if first == "passed" else {"passed": 1, first: 1}
    assert outcomes == expected
    result.stdout.fnmatch_lines(["1 violated on *"])


def test_what_is_no_finding_is_undone_too(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    def state():
        import numpy
        generators = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
        return *generators, torch.cuda.get_rng_state().tolist(), list(warnings.filters)

    BEFORE = []

    def test_first():
        torch.cuda.init()
        assert state() == state()

    def test_draws():
        import numpy
        BEFORE.append(state())
        random.random(); numpy.random.rand(); torch.rand(1); torch.cuda.manual_seed(3)
        warnings.simplefilter("ignore")
        assert all(one != other for one, other in zip(state(), BEFORE[0]))

    def test_after():
        assert state() == BEFORE[0]
""",
        "-p",
        "no:warnings",  # which puts the filters back itself
    )
    result.assert_outcomes(passed=3)


def test_an_interrupted_test_is_undone(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import os
        def pytest_unconfigure():
            print("left:", os.environ.get("LEFT"))
        """
    )
    result = run(
        HEAD
        + """
    def test_interrupted():
        os.environ["LEFT"] = "1"
        raise KeyboardInterrupt
"""
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["an interrupted test: env.LEFT: the test left it changed: unset before, '1' after*", "left: None"]
    )


def test_classes_of_unittest_and_their_fixtures(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    import unittest

    class TestOld(unittest.TestCase):
        @classmethod
        def setUpClass(cls): os.environ["WIDE"] = "1"
        @classmethod
        def tearDownClass(cls): del os.environ["WIDE"]
        def setUp(self): os.environ["OWN"] = "1"
        def tearDown(self): del os.environ["OWN"]
        def test_leaks(self):
            assert os.environ["WIDE"] == os.environ["OWN"] == "1"
            os.environ["LEFT"] = "1"
        def test_sees(self): assert "LEFT" not in os.environ and os.environ["WIDE"] == "1"

    def test_after(): assert not {"LEFT", "OWN", "WIDE"} & set(os.environ)
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=3, errors=1)
    assert findings(pytester.path / "junit.xml") == {
        "test_leaks": ["changed:env.LEFT@test_it.TestOld.test_leaks"],
        "test_sees": [],
        "test_after": [],
    }


def test_a_failing_set_up_is_undone(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    @pytest.fixture
    def broken():
        os.environ["LEFT"] = "1"
        raise ValueError("no")

    def test_broken(broken): pass

    def test_after(): assert "LEFT" not in os.environ
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=1, errors=2)
    assert findings(pytester.path / "junit.xml")["test_broken"] == ["changed:env.LEFT@test_it.broken"]


def test_a_rerun_has_a_guard_of_its_own(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            for _ in range(2):  # as pytest-rerunfailures does
                item._initrequest()
                for report in runtestprotocol(item, nextitem=nextitem, log=False):
                    item.ihook.pytest_runtest_logreport(report=report)
            return True
        """
    )
    result = run(
        HEAD
        + """
    runs = []
    def test_leaks_once():
        assert "LEFT" not in os.environ
        runs.append(1)
        if len(runs) == 1: os.environ["LEFT"] = "1"

    def test_leaks_always():
        assert "LEFT" not in os.environ
        os.environ["LEFT"] = "1"
"""
    )
    result.assert_outcomes(passed=4, errors=3)
    result.stdout.fnmatch_lines(["3 violated on *", "1 verified on *"])


def test_many_and_xdist_have_a_guard_of_their_own(run: Run, pytester: pytest.Pytester) -> None:
    source = (
        HEAD
        + """
    @pytest.mark.parametrize("index", range(6))
    def test_many(index):
        assert "LEFT" not in os.environ
        os.environ["LEFT"] = "1"
"""
    )
    result = run(source, "-n", "2", "--junitxml=junit.xml")
    result.assert_outcomes(passed=6, errors=6)
    found = findings(pytester.path / "junit.xml")
    assert set(map(tuple, found.values())) == {("changed:env.LEFT@test_it.test_many",)}


@pytest.mark.parametrize("order", ["in order", "reversed"])
def test_a_known_fault_is_judged_over_the_whole_test(run: Run, pytester: pytest.Pytester, order: str) -> None:
    if order == "reversed":
        pytester.makeconftest("def pytest_collection_modifyitems(items): items.reverse()")
    result = run(
        HEAD
        + """
    def fault(name, function):
        found = f"changed:env.{name}@test_it.{function}"
        return known_fault(found, package="pytest", versions=">=1", reason="it leaks")

    @fault("LEFT", "test_known")
    def test_known(): os.environ["LEFT"] = "1"

    @fault("LEFT", "test_gone")
    def test_gone(): pass

    @fault("LEFT", "test_more")
    def test_more():
        os.environ["LEFT"] = "1"
        os.environ["MORE"] = "1"

    @fault("LEFT", "test_fails")
    def test_fails():
        os.environ["LEFT"] = "1"
        assert 0
""",
        "--junitxml=junit.xml",
    )
    # Known: passed, then xfailed at teardown.  Gone and more: passed, then an error at teardown.  The last
    # fails by itself, and what it leaves is the known fault: its verdict is failed.
    result.assert_outcomes(passed=3, xfailed=2, errors=2, failed=1)
    assert "the known fault was not found: mend its declaration" in text(result)
    assert "not the known fault alone: changed:env.MORE@test_it.test_more" in text(result)
    result.stdout.fnmatch_lines(["1 failed on simulated H100"])
    result.stdout.fnmatch_lines(["1 known fault on simulated H100"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("strickt=True", "*unknown argument 'strickt' (did you mean 'strict'?)*"),
        (
            "singletons=3",
            "*argument 'singletons' is 3; accepted: a pattern such as 'vllm.\\*', or a collection of them*",
        ),
        ("allow_reads=['']", "*argument 'allow_reads' is \\[''\\]; accepted: a pattern*"),
    ],
)
def test_wrong_arguments_stop_collection(run: Run, arguments: str, message: str) -> None:
    result = run(HEAD + f"    @fresh_config_context({arguments})\n    def test_it(): pass\n")
    result.assert_outcomes(errors=1)
    assert message.strip("*").replace("\\", "")[:60] in text(result)


def test_a_pattern_that_matches_nothing_fails(run: Run) -> None:
    result = run(
        HEAD
        + """
    @fresh_config_context(singletons="vllm.workspace_manger")
    def test_it(): pass
"""
    )
    result.assert_outcomes(passed=1, errors=1)
    assert "'vllm.workspace_manger', which matches no registered singleton (did you mean 'vllm.workspace_m" in text(
        result
    )
