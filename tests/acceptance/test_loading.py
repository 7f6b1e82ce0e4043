"""How the plugin is loaded: autoload on and off, beside others, from a wheel and an editable install."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from tests.acceptance.conftest import Run, text

ROOT = Path(__file__).parents[2]
MARKED = """
    from pytest_gpuinvariants import no_implicit_sync

    @no_implicit_sync
    def test_synchronizes():
        import torch
        torch.cuda.synchronize()
"""
FOUND = "no_implicit_sync: test_it.py:6: cudaDeviceSynchronize: blocks until the device is idle"


@pytest.mark.parametrize(
    ("autoload", "load"),
    [
        (True, ()),
        (True, ("-p", "gpuinvariants")),
        (False, ("-p", "gpuinvariants")),
        (False, ("-p", "xdist", "-p", "gpuinvariants")),
        (False, ("-p", "gpuinvariants", "-p", "pytester")),
    ],
    ids=["autoload", "autoload and -p", "no autoload", "after another -p", "before another -p"],
)
def test_loads(run: Run, monkeypatch: pytest.MonkeyPatch, autoload: bool, load: tuple[str, ...]) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    if not autoload:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = run(MARKED, load=load)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpu: simulated H100 (SM 9.0): *", FOUND, "1 violated on simulated H100"])


def _environment(folder: Path, *install: str) -> Path:
    """A virtual environment with the plugin installed, the rest borrowed from this one; its python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    borrowed = Path(pytest.__file__).parents[1]
    (folder / "lib" / version / "site-packages" / "borrowed.pth").write_text(f"{borrowed}\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", *install]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return python


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_runs_installed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    python = _environment(tmp_path / "env", *(["-e"] if kind == "editable" else []), str(ROOT))
    where = "import pytest_gpuinvariants as p; print(p.__file__)"
    located = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert Path(located.strip()).is_relative_to(ROOT if kind == "editable" else tmp_path)

    (tmp_path / "test_it.py").write_text(textwrap.dedent(MARKED).lstrip())
    command = [str(python), "-m", "pytest", "-p", "gpuinvariants", "test_it.py"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "no_implicit_sync: test_it.py:6: cudaDeviceSynchronize" in result.stdout
    assert "1 violated on simulated H100" in result.stdout

    if kind == "wheel":
        command = [str(python), "-m", "pytest", "-p", "gpuinvariants", "--pyargs", "pytest_gpuinvariants.suites"]
        command += ["--collect-only", "-q"]
        result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "suites/vllm_attention/test_mla_sparse_sm90.py::" in result.stdout


def test_no_marked_test_imports_neither_torch_nor_vllm(run: Run) -> None:
    result = run(
        """
        import sys

        def test_modules():
            __import__("pytest_" "gpuinvariants")  # its whole name in this file would be taken for a use
            loaded = {name.partition(".")[0] for name in sys.modules}
            assert not loaded & {"torch", "vllm", "flashinfer", "numpy"}, loaded
        """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["gpu: not needed: no test file here uses an invariant*"])
    assert "on simulated" not in text(result)


def test_a_run_with_nothing_of_ours_is_as_without_the_plugin(run: Run) -> None:
    # A project that tests for a GPU must not find a simulated one because this plugin is installed.
    result = run(
        """
        def test_cuda():
            import torch
            assert not torch.cuda.is_available()
        """,
        load=(),
    )
    result.assert_outcomes(passed=1)


def test_markers_are_listed_with_signature_and_one_line(run: Run) -> None:
    result = run("", "--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.no_implicit_sync(kinds=..., pageable_threshold=0, *): the test must not make the host wait *",
            "@pytest.mark.requires_sm90(or_newer=False, host_only=False): needs a GPU of compute capability 9.x *",
            "@pytest.mark.known_fault(finding, package, versions, reason, called_from=None): strict *",
        ]
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--gpu", "real"), "ERROR: --gpu real: no NVIDIA driver (libcuda.so.1) is installed"),
        (("--gpu", "simulate:h1"), "ERROR: --gpu: unknown GPU profile 'h1'; known: h100, h200, b200, gb300, a100, l4*"),
        (("--gpu", "gb300"), "ERROR: --gpu: 'gb300' is not auto, real or simulate:PROFILE*"),
        (("-o", "gpu=fast"), "ERROR: ini option gpu: 'fast' is not auto, real or simulate:PROFILE*"),
    ],
)
def test_what_can_not_be_had_stops_the_run_before_collection(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run("raise AssertionError('collected')", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert "AssertionError" not in text(result)


def test_torch_imported_first_is_too_late(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(early="import torch")
    result = run(MARKED, load=("-p", "early", "-p", "gpuinvariants"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: torch was imported before the simulated CUDA runtime could take its place: *"])


def test_torch_imported_first_does_not_matter_where_nothing_is_marked(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(early="import torch")
    run("def test_plain(): pass", load=("-p", "early", "-p", "gpuinvariants")).assert_outcomes(passed=1)


@pytest.mark.parametrize("profile", ["h100x2", "h200", "b200", "gb300", "a100", "l4"])
def test_every_profile_is_what_torch_sees(run: Run, profile: str) -> None:
    from pytest_gpuinvariants.hardware.profiles import parse_profile

    model, count = parse_profile(profile)
    result = run(
        f"""
        def test_device():
            import torch
            properties = torch.cuda.get_device_properties(0)
            assert torch.cuda.device_count() == {count}
            assert properties.name == {model.name!r}
            assert (properties.major, properties.minor) == {model.capability!r}
            assert properties.multi_processor_count == {model.sm_count}
            assert properties.total_memory == {model.memory_bytes}
            assert properties.L2_cache_size == {model.l2_bytes}
            assert properties.shared_memory_per_block_optin == {model.shared_per_block_optin}
            assert properties.shared_memory_per_multiprocessor == {model.shared_per_sm}
        """,
        f"--gpu=simulate:{profile}",
    )
    result.assert_outcomes(passed=1)
    devices = ", 2 devices" if count == 2 else ""
    major, minor = model.capability
    result.stdout.fnmatch_lines(
        [f"gpu: simulated {model.label} (SM {major}.{minor}){devices}: --gpu simulate:{profile}; *"]
    )
