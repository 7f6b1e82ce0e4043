"""``children=True``: processes that go unpoliced are told, and what is told is not lost."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from pytest_gpuinvariants.children import child, processes
from pytest_gpuinvariants.children.channel import VARIABLE, Armed, Reader, Setup, Writer
from pytest_gpuinvariants.hardware.native_build import find_compiler
from tests.acceptance.conftest import Run, text

ENGINE = """
    import multiprocessing
    import os
    import resource
    import subprocess
    import sys
    import pytest
    from pytest_gpuinvariants import allow_sync, no_implicit_sync

    policed = no_implicit_sync(children=True)
    PYTHON = [sys.executable, "-c"]
    USES_CUDA = "import ctypes, sys; ctypes.CDLL('./libcuda.so.1'); print(flush=True); sys.stdin.read()"

    @pytest.fixture(scope="module")
    def engine():
        with subprocess.Popen([*PYTHON, USES_CUDA], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            yield
            process.stdin.close()
"""


@pytest.fixture
def driver(pytester: pytest.Pytester) -> None:
    """A CUDA driver's file: what a process has loaded tells that it uses CUDA."""
    library = pytester.path / "libcuda.so.1"
    subprocess.run(
        [*find_compiler("the test"), "-shared", "-o", library, "-x", "c", "-"],
        input=b"int cuInit(int flags) { return 0; }",
        check=True,
    )


@pytest.mark.usefixtures("driver")
def test_cuda_without_torch_is_not_verified(run: Run) -> None:
    """And only the test that it belongs to."""
    result = run(
        ENGINE
        + """
    @policed
    def test_driver():
        subprocess.run([*PYTHON, "import ctypes; ctypes.CDLL('./libcuda.so.1')"], check=True)

    @policed
    def test_another(): subprocess.run([*PYTHON, "pass"], check=True)
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*not verified: *: CUDA was used without torch, *"])


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "tests",
    [
        """
    def test_region(engine):
        with policed: pass
        """,
        """
    def test_unmarked(engine): pass

    @policed
    def test_marked(engine): pass
        """,
    ],
    ids=["in a region", "by an unmarked test"],
)
def test_a_process_that_was_there_before_is_not_verified(run: Run, tests: str) -> None:
    result = run(ENGINE + tests, "-rs")
    result.assert_outcomes(skipped=1, passed=tests.count("unmarked"))
    result.stdout.fnmatch_lines(["*not verified: *: it uses CUDA, and was started before a children=True region*"])


def test_a_process_that_lives_on_and_polices_itself_is_verified(run: Run) -> None:
    """It uses CUDA, and has nothing to tell."""
    result = run(
        ENGINE
        + """
    @policed
    def test_quiet():
        code = "import torch; torch.ones(1, device='cuda'); print(flush=True); input()"
        process = subprocess.Popen([*PYTHON, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()
        QUIET.append(process)

    QUIET = []

    def test_end():
        QUIET[0].communicate(b"\\n")
        assert QUIET[0].returncode == 0
        """
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["1 verified on *"])


def test_a_fork_server_that_was_there_before_is_not_verified(run: Run) -> None:
    result = run(
        ENGINE
        + """
    def start():
        process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
        process.start()
        process.join()
        assert process.exitcode == 0

    def test_unmarked(): start()

    @policed
    def test_marked(): start()
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*not verified: *forkserver: it was started before a children=True region*"])


def test_a_process_that_a_fixture_starts_out_of_reach_is_not_verified(run: Run) -> None:
    result = run(
        ENGINE
        + """
    @pytest.fixture
    def apart(): subprocess.run([*PYTHON, "pass"], env={}, check=True)

    @policed
    def test_apart(apart): pass

    @policed
    def test_another(): pass
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["*not verified: *: started with an environment of its own*"])


def test_a_pytest_with_the_plugin_is_not_verified(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makefile(".py", inner="import torch\ndef test_inner(): torch.cuda.synchronize()")
    result = run(
        ENGINE
        + """
    @policed
    def test_nested():
        subprocess.run([sys.executable, "-m", "pytest", "-p", "gpuinvariants", "--gpu",
                        "simulate:h100", "inner.py"], check=True)
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*not verified: *: it runs pytest with gpuinvariants, which polices its own tests*"])


def test_a_pytest_that_nobody_polices_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one; the hook may have been set, and the variable be gone when torch is imported."""
    monkeypatch.delenv(VARIABLE, raising=False)
    told: list[str] = []
    monkeypatch.setattr(Reader, "tell_unpoliced", lambda _, problem: told.append(problem))
    child.prepare()
    assert told == []


def test_what_can_not_be_written_is_not_verified(run: Run) -> None:
    result = run(
        ENGINE
        + """
    @policed
    @pytest.mark.parametrize("limit", [resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE])
    def test_limit(limit):
        code = f"import resource, torch; resource.setrlimit({limit}, (0, 0)); torch.cuda.synchronize()"
        subprocess.run([*PYTHON, code], check=True)
        """,
        "-rs",
    )
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*not verified: *: it could not write what it found, *"])


def test_a_process_that_runs_another_program_counts_on(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makefile(
        ".py",
        program="""
        import os, sys, torch
        for _ in range(1 if "again" in sys.argv else 3): torch.cuda.synchronize()
        if "again" not in sys.argv: os.execv(sys.executable, [sys.executable, "program.py", "again"])
        """,
    )
    result = run(
        ENGINE
        + """
    @policed
    def test_total():
        with allow_sync("all", kind="sync") as all:
            subprocess.run([sys.executable, "program.py"], check=True)
        assert all.count == 4

    @policed
    def test_limit():
        with allow_sync("three", kind="sync", max_count=3):
            subprocess.run([sys.executable, "program.py"], check=True)
        """
    )
    result.assert_outcomes(passed=1, failed=1)


def test_torch_is_as_without_the_hook(run: Run) -> None:
    """An import that fails may be tried again; the module has its own loader."""
    code = """
import pkgutil, sys
sys.modules['torch.version'] = None
try: import torch
except ImportError: pass
for name in [name for name in sys.modules if name.partition('.')[0] == 'torch']: del sys.modules[name]
import torch
assert pkgutil.get_data('torch', '__init__.py')
torch.cuda.synchronize()
"""
    result = run(
        ENGINE
        + f"""
    CODE = {code!r}
    @policed
    def test_again(): subprocess.run([*PYTHON, CODE], check=True)
        """
    )
    result.assert_outcomes(failed=1)
    assert "cudaDeviceSynchronize" in text(result)


def test_a_fixture_s_python_path_outlasts_the_channel(run: Run) -> None:
    result = run(
        ENGINE
        + """
    @pytest.fixture(scope="module")
    def path():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", "/somewhere", prepend=os.pathsep)
            yield

    @policed
    def test_first(path): pass

    def test_second(path):
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == "/somewhere"
        assert "bootstrap" not in os.environ["PYTHONPATH"]
        """
    )
    result.assert_outcomes(passed=2)


def test_a_process_that_outlives_the_run_starts_others(pytester: pytest.Pytester) -> None:
    writer = Writer(pytester.path, Setup(simulate=None, full_stacks=False))
    reader = Reader(writer.folder)
    for path in writer.folder.iterdir():
        path.unlink()
    pytester.path.rmdir()
    reader.tell_unpoliced("nobody is left to hear it")


@pytest.mark.parametrize(
    ("options", "letter"),
    [
        (["-W", "ignore", "-E"], "E"),
        (["-X", "faulthandler", "-I"], "I"),
        (["-uS"], "S"),
        (["--check-hash-based-pycs", "always", "-I"], "I"),
        (["-WIgnore"], None),
        (["-XImporttime"], None),
        (["-m", "module", "-I"], None),
        (["-c", "pass", "-E"], None),
        (["program.py", "-I"], None),
        (["-", "-I"], None),
    ],
)
def test_which_options_keep_a_process_out_of_reach(
    options: list[str], letter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "somewhere")
    monkeypatch.setenv("PYTHONPATH", str(processes.BOOTSTRAP))
    problem = processes.unreachable("python3", ["python3", *options], None)
    assert (problem is None) if letter is None else (f"started with -{letter}," in str(problem))


def test_threads_of_a_child_see_at_once_what_is_armed(tmp_path: Path) -> None:
    """Where one is about to read it, another must not go on with what was armed before."""
    writer = Writer(tmp_path, Setup(simulate=None, full_stacks=False))
    reader = Reader(tmp_path)
    stale = []

    def look(barrier: threading.Barrier) -> None:
        barrier.wait()
        if not reader.armed:
            stale.append(1)

    for region in range(1, 500):
        writer.arm(Armed(region, ("sync",), 0))
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=look, args=(barrier,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.disarm(region)
        assert reader.armed == ()
    assert not stale
