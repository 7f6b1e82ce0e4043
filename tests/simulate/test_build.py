"""Building the simulated runtime: once per content, beside other processes, with errors that name the remedy."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware.simulate import build as module
from pytest_gpuinvariants.hardware.simulate.build import SimulatorBuildError, build, find_compiler, find_headers

ROOT = Path(__file__).parents[2]
HEADERS = ("cuda.h", "cuda_runtime_api.h", "driver_types.h")


def _start(code: str, compiler: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "CC": str(compiler)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def logging_compiler(tmp_path: Path) -> Path:
    """A compiler that writes a line to ``compiled`` for each run, and sleeps first if ``slow`` exists."""
    real = find_compiler()[0]
    script = tmp_path / "cc"
    script.write_text(
        f'#!/bin/sh\necho run >> {tmp_path}/compiled\n[ -e {tmp_path}/slow ] && sleep 60\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    return script


def _build_code(cache: Path) -> str:
    return f"""
        from pathlib import Path
        from pytest_gpuinvariants.hardware.simulate.build import build
        print(build(Path({str(cache)!r})).folder)
    """


def test_two_processes_at_once_compile_once(tmp_path: Path, logging_compiler: Path) -> None:
    cache = tmp_path / "cache"
    processes = [_start(_build_code(cache), logging_compiler) for _ in range(2)]
    folders = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(folders) == 1
    libraries = [path for path in Path(folders.pop()).iterdir() if ".so" in path.name and not path.is_symlink()]
    assert len(libraries) >= 4, "the core, three faces, and cuBLAS's two where its headers are"
    assert len((tmp_path / "compiled").read_text().split()) == len(libraries), "each compiled once"


def test_a_killed_build_leaves_nothing_half_written(tmp_path: Path, logging_compiler: Path) -> None:
    cache, slow = tmp_path / "cache", tmp_path / "slow"
    slow.touch()
    victim = _start(_build_code(cache), logging_compiler)
    deadline = time.monotonic() + 30
    while not (tmp_path / "compiled").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(victim.pid, signal.SIGKILL)  # its own session: it, and the compiler that it started
    victim.communicate()
    finished = [entry for entry in cache.iterdir() if entry.is_dir() and not entry.name.startswith("building-")]
    assert finished == []
    slow.unlink()
    after = _start(_build_code(cache), logging_compiler)
    folder = Path(after.communicate(timeout=120)[0].strip())
    assert after.returncode == 0
    assert all((folder / name).is_file() for name in ("libgpuinvariants_core.so", "libcuda.so.1", "libnvidia-ml.so.1"))


def test_a_second_build_compiles_nothing(
    tmp_path: Path, logging_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(logging_compiler))
    first = build(tmp_path / "cache")
    runs = (tmp_path / "compiled").read_text()
    assert build(tmp_path / "cache") == first
    assert (tmp_path / "compiled").read_text() == runs


def test_the_libraries_have_the_names_that_programs_ask_for() -> None:
    libraries = build()
    assert [face.name for face in libraries.faces] == [
        f"libcudart.so.{libraries.cuda_major}",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ]
    for name in ("libcuda.so", "libcudart.so"):
        assert (libraries.folder / name).resolve().is_file(), "what a linker looks for"
    assert libraries.folder.parent == module.cache_root() / "simulate"


def test_every_declared_name_exists() -> None:
    """No program finds a name of CUDA's or NVML's missing: what is not simulated says so itself."""
    libraries = build()
    headers = find_headers()
    runtime, driver, nvml = (ctypes.CDLL(str(face)) for face in libraries.faces)
    declared = module._declared(headers / "cuda_runtime_api.h", "CUDARTAPI", "cuda")
    assert len(declared) > 300
    assert [name for name in declared if not hasattr(runtime, name)] == []
    assert [name for name in module._declared(headers / "cuda.h", "CUDAAPI", "cu") if not hasattr(driver, name)] == []
    for name in ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNumaNodeId"):
        assert hasattr(nvml, name)


def test_the_hash_follows_sources_headers_and_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tmp_path / "include"
    headers.mkdir()
    for name in HEADERS:
        (headers / name).write_text("")
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "device.c").write_text("int one;")
    monkeypatch.setattr(module, "SOURCES", sources)
    hashes = [module.content_hash(headers, ["cc"]), module.content_hash(headers, ["clang"])]
    (headers / "cuda.h").write_text("#define NEW")
    hashes.append(module.content_hash(headers, ["cc"]))
    (sources / "device.c").write_text("int two;")
    hashes.append(module.content_hash(headers, ["cc"]))
    assert len(set(hashes)) == 4
    assert module.content_hash(headers, ["cc"]) == hashes[-1]


# ---- what is missing is named, with the remedy --------------------------------------------------------


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SimulatorBuildError, match=r"needs a C compiler.*apt-get install gcc"):
        build(tmp_path / "cache")


def test_a_compiler_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(SimulatorBuildError, match="CC=no-such-compiler -O2 names no program: unset it"):
        find_compiler()


def test_a_compiler_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_compiler()[0]
    monkeypatch.setenv("CC", f"{real} -g0")
    assert find_compiler() == [real, "-g0"]


def test_a_compilation_that_fails_shows_the_compilers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(SimulatorBuildError, match=r"(?s)failed \(exit 3\).*out of luck"):
        build(tmp_path / "cache")
    left = [entry.name for entry in (tmp_path / "cache").iterdir() if not entry.name.endswith(".lock")]
    assert left == []


def test_a_cache_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(SimulatorBuildError, match=r"can not be used .*: set XDG_CACHE_HOME"):
        build(tmp_path / "cache")


def test_the_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_root() == tmp_path / "pytest-gpuinvariants"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert module.cache_root() == Path.home() / ".cache" / "pytest-gpuinvariants"


def _headers(folder: Path, version: int) -> Path:
    folder.mkdir(parents=True)
    for name in HEADERS:
        (folder / name).write_text(f"#define CUDART_VERSION  {version}\n")
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the only place where Python and the search for headers look."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(module, "_TOOLKIT", tmp_path / "no-toolkit")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    return folder


def _torch(site: Path, cuda: str | None) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise AssertionError('torch must not be imported')\n")
    (site / "torch" / "version.py").write_text(f"__version__ = '2.14.0'\ncuda: Optional[str] = {cuda!r}\n")


def test_no_headers(site: Path) -> None:
    with pytest.raises(SimulatorBuildError, match=r"needs CUDA's headers.*pip install"):
        find_headers()


def test_headers_of_a_toolkit(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = _headers(tmp_path / "cuda" / "include", 13000)
    monkeypatch.setenv("CUDA_HOME", str(include.parent))
    assert find_headers() == include


@pytest.mark.parametrize(("torch", "chosen"), [("13.0", "cu13"), ("12.8", "cuda_runtime"), (None, "cu13")])
def test_headers_follow_torchs_cuda_version(site: Path, torch: str | None, chosen: str) -> None:
    _torch(site, torch)
    _headers(site / "nvidia" / "cuda_runtime" / "include", 12080)
    _headers(site / "nvidia" / "cu13" / "include", 13000)
    assert find_headers() == site / "nvidia" / chosen / "include"


def test_headers_of_another_version_are_refused(site: Path) -> None:
    _torch(site, "12.8")
    _headers(site / "nvidia" / "cu13" / "include", 13000)
    with pytest.raises(SimulatorBuildError, match=r"built for CUDA 12, but .*cu13/include \(CUDA 13\.0\)"):
        find_headers()


def test_headers_that_lack_the_compilers_own(site: Path) -> None:
    headers = _headers(site / "nvidia" / "cuda_runtime" / "include", 12080)
    with pytest.raises(SimulatorBuildError, match=r"lacks crt/host_defines.h: pip install"):
        module._includes(headers)
    crt = site / "nvidia" / "cuda_nvcc" / "include" / "crt"
    crt.mkdir(parents=True)
    (crt / "host_defines.h").write_text("")
    assert module._includes(headers) == [f"-I{headers}", f"-I{crt.parent}"]


# ---- opening ------------------------------------------------------------------------------------------


def _python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def test_opening_after_torch_is_refused() -> None:
    output = _python("""
        import sys, types
        sys.modules["torch"] = types.ModuleType("torch")
        from pytest_gpuinvariants.hardware.profiles import PROFILES
        from pytest_gpuinvariants.hardware.simulate import runtime
        try:
            runtime.open_runtime(PROFILES["h100"], 1)
        except runtime.SimulatorTooLateError as error:
            print(error, runtime.opened())
    """)
    assert "torch was imported before" in output
    assert output.endswith("None\n")


def test_one_machine_for_the_life_of_a_process() -> None:
    output = _python("""
        import json
        from pytest_gpuinvariants.hardware.profiles import PROFILES
        from pytest_gpuinvariants.hardware.simulate.runtime import SimulatorTooLateError, open_runtime, opened
        first = open_runtime(PROFILES["h100"], 2)
        answers = [open_runtime(PROFILES["h100"], 2) is first, opened() is first]
        try:
            open_runtime(PROFILES["l4"], 1)
        except SimulatorTooLateError as error:
            answers.append(str(error))
        print(json.dumps(answers))
    """)
    same, opened, error = json.loads(output)
    assert (same, opened) == (True, True)
    assert "simulates 2 x H100 already" in error
