"""``--gpu-shuffle-check`` in whole runs: modules whose tests depend on each other, or do not."""

from __future__ import annotations

import itertools

import pytest

from tests.acceptance.conftest import Run, text

# A gate that needs no GPU stands for any of our markers.
HEAD = """
import os
import pytest
pytestmark = pytest.mark.requires_package("pytest")
state = []
"""
INDEPENDENT = """
@pytest.fixture(scope="class")
def shared():
    state.append(1)
    yield list(state)
    state.clear()

class TestShared:
    def test_one(self, shared): assert shared == [1]
    @pytest.mark.parametrize("name", ["x", "a::b", "[é]"])
    def test_two(self, shared, name): assert shared == [1]

@pytest.mark.xdist_group("one")
def test_three(): pass
@pytest.mark.skip(reason="never")
def test_four(): pass
@pytest.mark.xfail(strict=True)
def test_five(): assert False
"""
ONLY_AFTER = """
def test_makes(): state.append(1)
def test_uses(): assert state
"""
ONLY_BEFORE = """
def test_uses(): assert not state
def test_leaves(): state.append(1)
"""
CRASHES = """
def test_makes(): state.append(1)
def test_crashes():
    if state and "PYTEST_VERSION" in os.environ and not os.path.exists("here"): os.abort()
def test_after(): pass
"""


def order(result: pytest.RunResult) -> list[str]:
    """The lines of the section."""
    lines = list(result.outlines)
    start = next(index for index, line in enumerate(lines) if line.strip("= ") == "order")
    return list(itertools.takewhile(lambda line: not line.startswith("="), lines[start + 1 :]))


XDIST = pytest.mark.parametrize("xdist", [False, True], ids=["one process", "xdist"])


def load(xdist: bool) -> tuple[str, ...]:
    return ("-p", "gpuinvariants", *(("-p", "xdist", "-n2", "--dist=loadgroup") if xdist else ()))


@XDIST
def test_independent_tests_pass(run: Run, xdist: bool) -> None:
    result = run(HEAD + INDEPENDENT, "--gpu-shuffle-check", load=load(xdist))
    assert result.ret == 0
    assert order(result) == ["7 of 7 verdicts do not depend on the order"]


@XDIST
def test_what_passes_only_after_another(run: Run, xdist: bool) -> None:
    result = run(HEAD + ONLY_AFTER, "--gpu-shuffle-check", load=load(xdist))
    assert result.ret == 1
    assert order(result) == [
        "test_it.py::test_uses depends on the order",
        "  alone: failed in call: assert []",
        "  in order: passed",
        "  reversed: failed in call: assert []",
        "1 of 2 verdicts do not depend on the order",
    ]


def test_what_passes_only_before_another(pytester: pytest.Pytester, run: Run) -> None:
    source = HEAD + ONLY_BEFORE
    assert run(source).ret == 0
    result = run(source, "--gpu-shuffle-check", "-q", "-x")
    assert result.ret == 1
    assert order(result)[:3] == [
        "test_it.py::test_uses depends on the order",
        "  alone: passed",
        "  in order: passed",
    ]
    assert order(result)[3].startswith("  reversed: failed in call: assert not [1]")
    # The last process failed, the run did not.
    assert not (pytester.path / ".pytest_cache/v/cache/lastfailed").exists()


def test_a_crash_is_a_verdict_and_what_it_hid_is_told(pytester: pytest.Pytester, run: Run) -> None:
    # The run itself must live: it has a file that says so, which it removes.
    (pytester.path / "here").touch()
    source = HEAD + CRASHES + '\ndef test_last(): os.path.exists("here") and os.remove("here")\n'
    result = run(source, "--gpu-shuffle-check")
    result.assert_outcomes(passed=4)
    assert result.ret == 1
    told = "\n".join(order(result))
    assert (
        "test_it.py::test_crashes depends on the order\n  alone: passed\n  in order: crashed by SIGABRT\n"
        "  reversed: passed"
    ) in told
    assert (
        "test_it.py::test_after could not be compared\n  alone: passed\n"
        "  in order: not run (test_crashes crashed by SIGABRT before it)"
    ) in told
    assert "1 of 4 verdicts do not depend on the order" in told


def test_a_process_that_does_not_end_is_stopped(run: Run) -> None:
    # Only in the processes of the check, where it is after the other.
    source = HEAD + "import sys, time\nSLOW = any('cache_dir=' in one for one in sys.argv)\n"
    source += "def test_makes(): state.append(1)\ndef test_hangs():\n    if state and SLOW: time.sleep(600)\n"
    result = run(source, "--gpu-shuffle-check", "--gpu-shuffle-timeout=8")
    assert result.ret == 1
    assert "  in order: timed out after 8 s" in order(result)


def test_the_processes_have_the_options_and_touch_no_file_of_the_run(pytester: pytest.Pytester, run: Run) -> None:
    (pytester.path / "local_plugin.py").write_text("import os\nos.environ['GI_PLUGIN'] = '1'\n")
    (pytester.path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    source = HEAD + "import sys\ndef test_a(tmp_path): assert os.environ['GI_PLUGIN']\ndef test_b(): pass\n"
    args = (
        "-p",
        "local_plugin",
        "--junitxml=junit.xml",
        "--lf",
        "--gpu-shuffle-check",
        "-k",
        "test_",
        "--basetemp=base",
    )
    result = run("def test_c(): assert False\n" + source, *args, load=("-p", "gpuinvariants"))
    # test_c carries the module's marker too; what failed is failed in each order.
    assert order(result) == ["3 of 3 verdicts do not depend on the order"]
    assert result.ret == 1
    assert (pytester.path / "base/test_a0").is_dir()
    junit = (pytester.path / "junit.xml").read_text()
    assert junit.index('name="test_a"') < junit.index('name="test_b"')  # the last process had them reversed
    cached = (pytester.path / ".pytest_cache/v/cache/lastfailed").read_text()
    again = run("def test_c(): assert False\n" + source, *args)
    again.assert_outcomes(failed=1)
    assert order(again) == ["0 of 0 verdicts do not depend on the order", "no order in 1 module with one marked test"]
    assert (pytester.path / ".pytest_cache/v/cache/lastfailed").read_text() == cached


def test_the_processes_settle_nothing_that_the_run_owes(pytester: pytest.Pytester, run: Run) -> None:
    source = """
import pytest
pytestmark = pytest.mark.requires_sm90(host_only=True)
state = []
def test_makes(): state.append(1)
def test_uses():
    if not state:
        pytest.skip("needs the other")
"""
    result = run(source, "--gpu-shuffle-check", "--gpu-ledger=ledger.txt", "--gpu-ledger-update")
    assert order(result)[-1] == "1 of 2 verdicts do not depend on the order"
    tests = [line for line in (pytester.path / "ledger.txt").read_text().splitlines() if "::" in line]
    assert [line.partition("::")[2] for line in tests if line.startswith("any ")] == ["test_makes", "test_uses"]


def test_unmarked_tests_are_not_run(pytester: pytest.Pytester, run: Run) -> None:
    result = run(
        "def test_a():\n    with open('ran', 'a') as file: file.write('x')\ndef test_b(): pass", "--gpu-shuffle-check"
    )
    assert result.ret == 0
    assert order(result) == ["0 of 0 verdicts do not depend on the order"]
    assert (pytester.path / "ran").read_text() == "x"


@pytest.mark.parametrize("flag", ["--collect-only", "--pdb", "--setup-plan"])
def test_what_excludes_the_check_is_refused(run: Run, flag: str) -> None:
    result = run(HEAD + ONLY_AFTER, "--gpu-shuffle-check", flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --gpu-shuffle-check can not be used with {flag}: " in text(result)


def test_a_run_that_stops_early_is_not_checked(run: Run) -> None:
    result = run(HEAD + "def test_a(): assert False\ndef test_b(): pass", "--gpu-shuffle-check", "-x")
    assert result.ret == 1
    assert order(result) == ["not checked: stopping after 1 failures"]


GUARDED = """
import warnings
import pytest
from pytest_gpuinvariants import fresh_config_context
pytestmark = {marker}

def test_makes():
    warnings.showwarning = print

def test_uses():
    assert warnings.showwarning is not print
"""


def test_a_guarded_module_depends_on_no_order(run: Run) -> None:
    """The leak is a failure of the test that leaks, in every order, and no longer of the other one."""
    loose = run(GUARDED.format(marker='pytest.mark.requires_package("pytest")'), "--gpu-shuffle-check", "-pno:warnings")
    assert "test_it.py::test_uses depends on the order" in order(loose)
    guarded = run(GUARDED.format(marker="fresh_config_context"), "--gpu-shuffle-check", "-pno:warnings")
    guarded.assert_outcomes(passed=2, errors=1)
    assert order(guarded) == ["2 of 2 verdicts do not depend on the order"]
