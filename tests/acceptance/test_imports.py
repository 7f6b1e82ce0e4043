"""``no_import_side_effects`` in whole runs: small modules, each with one effect, or with none."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, found_card, text

# A module's body, and the id that it is found as.
EFFECTS: dict[str, tuple[str, str]] = {
    "bare_cuinit": ("import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)", "cuda-init:cuda@bare_cuinit.<module>"),
    "through_torch": ("import torch\ntorch.zeros(1, device='cuda')", "cuda-init:cuda@through_torch.<module>"),
    "is_available": ("import torch\ntorch.cuda.is_available()", "cuda-init:cuda@is_available.<module>"),
    "sets": ("import os\nos.environ['GI_NEW'] = '1'", "environment:GI_NEW@sets.<module>"),
    "changes": ("import os\nos.environ['GI_OLD'] = '2'", "environment:GI_OLD@changes.<module>"),
    "removes": ("import os\ndel os.environ['GI_OLD']", "environment:GI_OLD@removes.<module>"),
    "native_setenv": (
        "import ctypes\nctypes.CDLL(None).setenv(b'GI_NATIVE', b'1', 1)",
        "environment:GI_NATIVE@native_setenv.<module>",
    ),
    "creates": ("with open('made', 'w') as file:\n    file.write('x')", "file-write:create@creates.<module>"),
    "appends": ("with open('there', 'a') as file:\n    file.write('x')", "file-write:open@appends.<module>"),
    "folder": ("import os\nos.makedirs('folder', exist_ok=True)", "file-write:mkdir@folder.<module>"),
    "thread": (
        "import threading\ndef work(): ...\nthreading.Thread(target=work).start()",
        "thread:thread.work@thread.<module>",
    ),
    "raw_thread": (
        "import _thread\ndef work(): ...\n_thread.start_new_thread(work, ())",
        "thread:raw_thread.work@raw_thread.<module>",
    ),
    "process": ("import subprocess\nsubprocess.run(['true'])", "process:true@process.<module>"),
    "forks": ("import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)", "process:fork@forks.<module>"),
    "connects": (
        "import socket\nwith socket.socket() as one:\n    one.connect_ex(('127.0.0.1', 9))",
        "socket:connect@connects.<module>",
    ),
    "path": ("import sys\nsys.path.append('/nowhere')", "global-state:sys.path@path.<module>"),
    "handler": (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)",
        "global-state:handler of SIGTERM@handler.<module>",
    ),
    "start_method": (
        "import multiprocessing\nmultiprocessing.set_start_method('spawn')",
        "global-state:multiprocessing's start method@start_method.<module>",
    ),
    "dtype": (
        "import torch\ntorch.set_default_dtype(torch.float64)",
        "global-state:torch's default dtype@dtype.<module>",
    ),
    "cuinit_before_another": (
        "import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)\nimport colorsys",
        "cuda-init:cuda@cuinit_before_another.<module>",
    ),
    "path_before_another": (
        "import sys\nsys.path.append('/nowhere')\ndef f():\n    import colorsys\nf()",
        "global-state:sys.path@path_before_another.<module>",
    ),
    "nested": ("import sets", "environment:GI_NEW@sets.<module>"),
}
CLEAN: dict[str, str] = {
    "plain": "import json, threading, subprocess, socket, ctypes\nx = threading.Thread(target=print)",
    "reads": "import os\nwith open(__file__) as file:\n    file.read()\nos.environ.get('GI_OLD')",
    "restores": "import os\nos.environ['GI_NEW'] = '1'\ndel os.environ['GI_NEW']",
    "same_value": "import os\nos.environ['GI_OLD'] = '1'",
    "discards": "import os\nopen(os.devnull, 'w').write('x')",
    "temporary": "import tempfile\nwith tempfile.TemporaryDirectory() as x:\n    open(x + '/y', 'w').close()",
    "version_only": "import ctypes\nctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(ctypes.c_int()))",
    "prints": "import sys\nprint('{\"effect\": 1}')\nsys.stderr.write('\\x00garbage')",
    "folder_there": "import os\nos.makedirs('.', exist_ok=True)",
}
# A module's body, and what its test fails with.
BROKEN: dict[str, tuple[str, str]] = {
    "missing.part": ("", "missing.part can not be imported: ModuleNotFoundError: No module named 'missing.part'*"),
    "raises": ("raise ValueError('no')", "raises can not be imported: ValueError: no"),
    "leaves": ("raise SystemExit(3)", "leaves can not be imported: SystemExit: 3"),
    "ends": ("import os\nos._exit(0)", "the import of ends ended its process with exit status 0"),
    "crashes": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "the import of crashes * by SIGSEGV"),
    "json": (
        "",
        "the import of json could not be watched: Python itself, or the program that watches, has imported it*",
    ),
    "hangs": ("import time\ntime.sleep(600)", "the import of hangs did not end within 2 s"),
}


def modules(pytester: pytest.Pytester, bodies: dict[str, str]) -> None:
    for name, body in bodies.items():
        Path(pytester.path, f"{name.partition('.')[0]}.py").write_text(body + "\n")


def test_each_effect_is_found_at_its_line(pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    modules(pytester, {name: body for name, (body, _) in EFFECTS.items()})
    Path(pytester.path, "there").touch()
    monkeypatch.setenv("GI_OLD", "1")
    result = run(
        f"""
        import pytest
        from pytest_gpuinvariants import InvariantViolation, assert_no_import_side_effects

        EFFECTS = {EFFECTS!r}

        @pytest.mark.parametrize("name", EFFECTS)
        def test_found(name):
            body, expected = EFFECTS[name]
            # What torch's own import does is not what is asked here.
            with pytest.raises(InvariantViolation) as error:
                assert_no_import_side_effects(name, allow=["cuda.pathfinder.*", "torch.<module>"])
            (found,) = error.value.findings
            assert found.id == expected
            module = expected.partition("@")[2].partition(".<")[0]
            assert found.stack[0].file.endswith(f"/{{module}}.py")
            # The line that does it is the last of the body but for a few, never the whole module.
            line = open(found.stack[0].file).read().splitlines()[found.stack[0].line - 1]
            assert any(word in line for word in ("cuInit", "cuda", "environ", "setenv", "open", "makedirs", "start",
                                                 "run", "fork", "connect", "append", "signal(", "set_"))
            assert f"import of {{name}} (pid " in found.process
        """
    )
    result.assert_outcomes(passed=len(EFFECTS))
    result.stdout.fnmatch_lines([f"{len(EFFECTS)} violated, and caught by the test, on {found_card()}"])


@pytest.fixture(scope="module")
def earlier_import() -> Iterator[None]:
    """An import in this process that sets a variable, as vLLM's does, before the test's own fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GI_LEFT", "1")
        yield


@pytest.mark.usefixtures("earlier_import")
def test_a_run_starts_without_what_an_import_in_this_process_has_set(run: Run) -> None:
    run("import os\ndef test_it():\n    assert 'GI_LEFT' not in os.environ").assert_outcomes(passed=1)


def test_what_the_fresh_process_got_from_earlier_tests_is_told(pytester: pytest.Pytester, run: Run) -> None:
    modules(pytester, {"sets": EFFECTS["sets"][0]})
    result = run(
        """
        import os
        from pytest_gpuinvariants import assert_no_import_side_effects

        def test_first():
            assert_no_import_side_effects("wave")
            os.environ["GI_EARLIER"] = "1"

        def test_it():
            assert_no_import_side_effects("sets")
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*variables of the fresh process that are not as the run began*", "GI_EARLIER"])


def test_what_has_no_effect_is_verified(pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    modules(pytester, CLEAN)
    monkeypatch.setenv("GI_OLD", "1")
    result = run(
        "\n".join(
            ["import pytest"]
            + [f"@pytest.mark.no_import_side_effects({name!r})\ndef test_{name}(): pass" for name in CLEAN]
        )
    )
    result.assert_outcomes(passed=len(CLEAN))
    result.stdout.fnmatch_lines([f"{len(CLEAN)} verified on {found_card()}"])
    assert not list(pytester.path.rglob("plain*.pyc"))


def test_what_is_not_imported_never_passes(pytester: pytest.Pytester, run: Run) -> None:
    modules(pytester, {name: body for name, (body, _) in BROKEN.items() if body or "." in name})
    source = ["import pytest"]
    for index, name in enumerate(BROKEN):
        timeout = ", timeout=2" if name == "hangs" else ""
        source.append(f"@pytest.mark.no_import_side_effects({name!r}{timeout})\ndef test_{index}(): pass")
    started = time.monotonic()
    result = run("\n".join(source))
    assert time.monotonic() - started < 60
    result.assert_outcomes(failed=len(BROKEN))
    for _, message in BROKEN.values():
        result.stdout.fnmatch_lines([f"not verified: {message}"])
    assert "verified on" not in text(result)


def test_what_was_seen_before_the_import_failed_is_not_lost(pytester: pytest.Pytester, run: Run) -> None:
    modules(pytester, {"half": "open('made', 'w').close()\nraise ValueError('no')"})
    result = run("import pytest\n@pytest.mark.no_import_side_effects('half')\ndef test_it(): pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["not verified: half can not be imported: ValueError: no", "*file-write:create@half.<module>"]
    )


def test_a_process_left_behind_ends_with_the_test(pytester: pytest.Pytester, run: Run) -> None:
    modules(
        pytester,
        {"daemon": "import subprocess\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))"},
    )
    run("import pytest\n@pytest.mark.no_import_side_effects('daemon')\ndef test_it(): pass").assert_outcomes(failed=1)
    pid = int(Path(pytester.path, "pid").read_text())
    stat = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


MARKED = """
    import os
    import pytest
    from pytest_gpuinvariants import known_fault, no_import_side_effects

    ran = []

    @no_import_side_effects("sets")
    def test_violated():
        ran.append("violated")

    @no_import_side_effects("sets", kinds="thread")
    def test_another_kind():
        ran.append("kind")

    @no_import_side_effects("sets", allow="GI_*")
    def test_allowed():
        ran.append("allowed")

    @no_import_side_effects("no_such_package.part")
    def test_not_installed():
        ran.append("missing")

    @known_fault("environment:GI_NEW@sets.<module>", package="pytest", versions=">=1", reason="r")
    @no_import_side_effects("sets")
    def test_known():
        ran.append("known")

    @known_fault("environment:OTHER@sets.<module>", package="pytest", versions=">=1", reason="r")
    @no_import_side_effects("sets")
    def test_another_fault():
        ran.append("another")

    @no_import_side_effects("reads_it")
    def test_sees_the_tests_environment(monkeypatch):
        ran.append("environment")

    @pytest.fixture(autouse=True)
    def variable(monkeypatch):
        monkeypatch.setenv("GI_FIXTURE", "1")

    def test_the_body_runs_after_the_check_and_only_if_it_holds():
        assert ran == ["kind", "allowed", "environment"]
        assert "GI_NEW" not in os.environ
"""


def test_the_marker(pytester: pytest.Pytester, run: Run) -> None:
    modules(pytester, {"sets": EFFECTS["sets"][0], "reads_it": "import os\nos.environ['GI_FIXTURE']"})
    result = run(MARKED, "-rs")
    result.assert_outcomes(failed=2, passed=4, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "no_import_side_effects: sets.py:2: sets GI_NEW in the environment",
            f"2 violated on {found_card()}",
            f"1 known fault on {found_card()}",
            f"3 verified on {found_card()}",
            "1 not verified: no_such_package is not installed",
            "allowed: 1 call: no_import_side_effects(allow='GI_[*]')",
            "SKIPPED * not verified: no_such_package is not installed",
        ]
    )


def test_with_xdist(pytester: pytest.Pytester, run: Run) -> None:
    modules(pytester, {"sets": EFFECTS["sets"][0], "reads_it": "import os\nos.environ['GI_FIXTURE']"})
    source = textwrap.dedent(MARKED).partition("def test_the_body")[0]
    result = run(source, "-n2", load=("-p", "xdist", "-p", "gpuinvariants"))
    result.assert_outcomes(failed=2, passed=3, skipped=1, xfailed=1)


def test_wrong_arguments_stop_the_collection(run: Run) -> None:
    result = run("import pytest\n@pytest.mark.no_import_side_effects('json', kinds='cuda')\ndef test_it(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no_import_side_effects: argument 'kinds' is 'cuda'; accepted: cuda-init, *"])


def test_nothing_is_left_of_the_check(pytester: pytest.Pytester, run: Run, tmp_path: Path) -> None:
    modules(pytester, {"sets": EFFECTS["sets"][0]})
    result = run(
        f"""
        import os, sys
        from pytest_gpuinvariants import no_import_side_effects

        @no_import_side_effects("sets", kinds="thread")
        def test_it():
            assert "sets" not in sys.modules
            assert "GI_NEW" not in os.environ
            assert os.listdir({str(tmp_path)!r}) == []
        """,
        f"--basetemp={pytester.path}/base",
    )
    result.assert_outcomes(passed=1)
    assert os.listdir(tmp_path) == []


def test_a_card_that_torch_can_not_have_leaves_the_other_kinds(pytester: pytest.Pytester, run: Run) -> None:
    # Nothing names a card here, so none is looked for: CUDA can not be seen, the rest can.
    modules(pytester, {"sets": EFFECTS["sets"][0]})
    result = run(
        """
        import pytest
        marker = getattr(pytest.mark, "no_import_" + "side_effects")
        @marker("sets")
        def test_every_kind(): pass
        @marker("sets", kinds="environment")
        def test_environment(): pass
        @marker("sets", kinds="thread")
        def test_thread(): pass
        """,
        "-rs",
    )
    result.assert_outcomes(failed=1, passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * not verified: no GPU was looked for*"])
