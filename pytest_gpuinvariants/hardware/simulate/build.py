"""Compile the simulated CUDA runtime against the installed CUDA headers, once per content.

Four shared objects come out: the core, and the three faces that programs link to or open by name
(``libcudart.so.<major>``, ``libcuda.so.1``, ``libnvidia-ml.so.1``); two more for cuBLAS where its
headers are.  Every name that the headers
declare and the C source does not define becomes a weak stub that answers "not supported" and is
logged, so that a missing call is named instead of crashing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from pytest_gpuinvariants.hardware import native_build
from pytest_gpuinvariants.hardware.native_build import NativeBuildError, cache_root

__all__ = ["SimulatorBuildError", "SimulatorLibraries", "build", "cache_root", "find_compiler", "find_headers"]

SOURCES = Path(__file__).parent / "csrc"
_SHARED = Path(__file__).parents[2] / "recorders" / "csrc"
_SHARED_HEADERS = tuple(
    _SHARED / f"{name}.h" for name in ("native_event", "asked_for", "cupti_apis")
)  # as recorders read them
_PURPOSE = "the simulated CUDA runtime"
_CORE = ("memory", "copy", "handles", "stream", "event", "graph", "log", "report", "device", "images")
_HEADERS = ("cuda.h", "cuda_runtime_api.h", "driver_types.h")
_TOOLKIT = Path("/usr/local/cuda")
_NVML_NAMES = SOURCES / "nvml_names.txt"  # NVML has no header in the wheels
_NOT_SUPPORTED, _NVML_NOT_SUPPORTED, _CUBLAS_NOT_SUPPORTED = 801, 3, 15
_CORE_LIBRARY = "libgpuinvariants_core.so"


SimulatorBuildError = NativeBuildError
"""The simulated runtime can not be built here; the message names the remedy."""


@dataclass(frozen=True)
class SimulatorLibraries:
    """The built libraries, in the order in which they must be opened."""

    folder: Path
    cuda_version: int

    @property
    def cuda_major(self) -> int:
        """CUDA's major version, which the runtime's soname carries."""
        return self.cuda_version // 1000

    @property
    def core(self) -> Path:
        """The library that holds the simulated device."""
        return self.folder / _CORE_LIBRARY

    @property
    def extras(self) -> tuple[Path, ...]:
        """Faces of cuBLAS, built where its headers are installed."""
        return tuple(sorted(self.folder.glob("libcublas*.so.*")))

    @property
    def faces(self) -> tuple[Path, Path, Path]:
        """The libraries that programs know: CUDA runtime, driver, NVML."""
        return (
            self.folder / f"libcudart.so.{self.cuda_major}",
            self.folder / "libcuda.so.1",
            self.folder / "libnvidia-ml.so.1",
        )


def torch_cuda_major() -> int | None:
    """CUDA's major version that the installed torch was built for, read without importing torch."""
    spec = PathFinder.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        version = Path(folder) / "version.py"
        if version.is_file() and (
            match := re.search(r"""^cuda\b.*=\s*['"](\d+)\.""", version.read_text(), re.MULTILINE)
        ):
            return int(match[1])
    return None


def _header_folders() -> Iterator[Path]:
    for entry in sys.path:
        root = Path(entry or ".") / "nvidia"
        # The wheels of CUDA 13 share one folder; those of CUDA 12 have one each.
        yield from sorted(root.glob("cu[0-9]*/include"), reverse=True)
        yield root / "cuda_runtime" / "include"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "include"
    yield _TOOLKIT / "include"


def _headers_in(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _HEADERS)


def find_headers() -> Path:
    """The folder with ``cuda_runtime_api.h`` of torch's CUDA: that of the pip wheels, else a toolkit's.

    Raises:
        SimulatorBuildError: there is none, or none of the CUDA version that torch was built for.
    """
    wanted, others = torch_cuda_major(), []
    for folder in dict.fromkeys(filter(_headers_in, _header_folders())):
        version = cuda_version(folder)
        if wanted is None or version // 1000 == wanted:
            return folder
        others.append(f"{folder} (CUDA {version // 1000}.{version % 1000 // 10})")
    remedy = (
        f"pip install 'pytest-gpuinvariants[suites]' (or nvidia-cuda-runtime and nvidia-cuda-crt of torch's CUDA "
        f"version{f', {wanted}' if wanted else ''})"
    )
    if others:
        raise SimulatorBuildError(
            f"torch is built for CUDA {wanted}, but the only CUDA headers are of another version: "
            f"{', '.join(others)}; {remedy}"
        )
    raise SimulatorBuildError(
        "the simulated CUDA runtime needs CUDA's headers, and neither the nvidia wheels beside torch nor CUDA_HOME "
        f"has them: {remedy}"
    )


def find_compiler() -> list[str]:
    """The C compiler to run.

    Raises:
        SimulatorBuildError: there is none.
    """
    return native_build.find_compiler(_PURPOSE)


def cuda_version(headers: Path) -> int:
    """``CUDART_VERSION`` of the headers, for example 13000."""
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (headers / "cuda_runtime_api.h").read_text())
    if match is None:
        raise SimulatorBuildError(f"{headers / 'cuda_runtime_api.h'} does not define CUDART_VERSION")
    return int(match[1])


def _declared(header: Path, convention: str, prefix: str) -> set[str]:
    """Names of the functions that a header declares, in all forms that the library exports."""
    text = header.read_text(errors="replace")
    names = set(re.findall(rf"\b{convention}\s+({prefix}[A-Za-z0-9_]+)\s*\(", text))
    for alias, macro, target in re.findall(r"#\s*define\s+(\w+)\s+__CUDA(?:RT)?_API_(PTDS|PTSZ)\((\w+)\)", text):
        names.update((alias, target, f"{target}_{macro.lower()}"))
    names.update(re.findall(rf"#\s*define\s+{prefix}\w+\s+({prefix}\w+_v\d+)\b", text))
    return {name for name in names if name.startswith(prefix)}


def _stubs(names: set[str], error: int, remember: str = "") -> str:
    """Weak definitions that name themselves in the log; ``remember`` wraps the error on its way out."""
    lines = [
        "int sim_unsupported(const char *name, int error);",
        "int sim_fail(int error);",
        '#define STUB(name) __attribute__((weak, visibility("default"))) int name(void) '
        f"{{ return {remember}(sim_unsupported(#name, {error})); }}",
    ]
    return "\n".join([*lines, *(f"STUB({name})" for name in sorted(names))]) + "\n"


def _run(command: list[str], folder: Path) -> None:
    native_build.compile_sources(command, folder, _PURPOSE)


def _cublas_headers(headers: Path) -> Path | None:
    # Beside the runtime's headers, or, in the wheels of CUDA 12, in a folder of their own.
    for folder in (headers, headers.parents[1] / "cublas" / "include"):
        if (folder / "cublasLt.h").is_file() and (folder / "cublas_api.h").is_file():
            return folder
    return None


def _cublas_stubs(header: Path) -> str:
    """Calls of cuBLAS that ``cublas.c`` does not define: work on a handle is a launch, the rest not supported."""
    text = header.read_text(errors="replace")
    names = set(re.findall(r"CUBLASWINAPI\s+(cublas\w+)\s*\(", text))
    work = set(re.findall(r"CUBLASWINAPI\s+(cublas\w+)\s*\(\s*cublasHandle_t\s+\w+\s*,", text))
    work = {name for name in work if not re.match("cublas(Get|Set)", name)}
    launch = (
        "int sim_cublas_launch(const char *name, void **kernel, void *handle);",
        '#define LAUNCH(name) __attribute__((weak, visibility("default"))) int name(void *handle) '
        "{ static void *kernel; return sim_cublas_launch(#name, &kernel, handle); }",
        *(f"LAUNCH({name})" for name in sorted(work)),
    )
    names.add("cublasSetEnvironmentMode")  # in no header, and cuSOLVER does not load without it
    return _stubs(names - work, _CUBLAS_NOT_SUPPORTED) + "\n".join(launch) + "\n"


def _cublaslt_stubs(header: Path) -> str:
    """What changes or ends a descriptor that nobody reads succeeds; the rest is not supported."""
    names = set(re.findall(r"CUBLASWINAPI\s+(cublasLt\w+)\s*\(", header.read_text(errors="replace")))
    idle = {name for name in names if re.search("(Destroy|SetAttribute|Init|Init_internal)$|Logger", name)}
    succeed = (
        '#define IDLE(name) __attribute__((weak, visibility("default"))) int name(void) { return 0; }',
        *(f"IDLE({name})" for name in sorted(idle)),
    )
    return _stubs(names - idle, _CUBLAS_NOT_SUPPORTED) + "\n".join(succeed) + "\n"


def _includes(headers: Path) -> list[str]:
    # The wheels of CUDA 12 keep the compiler's own headers, which the others include, in a folder of their own.
    folders = (headers, headers.parents[1] / "cuda_nvcc" / "include")
    if not any((folder / "crt" / "host_defines.h").is_file() for folder in folders):
        raise SimulatorBuildError(
            f"{headers} lacks crt/host_defines.h: pip install nvidia-cuda-crt (CUDA 13) or nvidia-cuda-nvcc-cu12 "
            "(CUDA 12), of torch's CUDA version"
        )
    return [f"-I{folder}" for folder in folders if folder.is_dir()]


def _compile(folder: Path, headers: Path, compiler: list[str], major: int) -> None:
    base = [*compiler, *native_build.FLAGS, "-shared", f"-I{_SHARED}", *_includes(headers)]
    link = ["-L.", f"-l:{_CORE_LIBRARY}", "-Wl,-rpath,$ORIGIN", "-ldl"]

    def sources(*names: str) -> list[str]:
        return [str(SOURCES / f"{name}.c") for name in names]

    def face(soname: str, inputs: list[str], *extra: str) -> None:
        _run([*base, "-fvisibility=hidden", f"-Wl,-soname,{soname}", *extra, "-o", soname, *inputs, *link], folder)

    _run([*base, f"-Wl,-soname,{_CORE_LIBRARY}", "-o", _CORE_LIBRARY, *sources(*_CORE), "-ldl"], folder)

    runtime = f"libcudart.so.{major}"
    (folder / "runtime_stubs.c").write_text(
        _stubs(_declared(headers / "cuda_runtime_api.h", "CUDARTAPI", "cuda"), _NOT_SUPPORTED, "sim_fail")
    )
    (folder / "runtime.map").write_text(f"{runtime} {{ global: cuda*; __cuda*; local: *; }};\n")
    inputs = [*sources("runtime", "runtime_copies", "runtime_streams"), "runtime_stubs.c"]
    face(runtime, inputs, "-Wl,--version-script=runtime.map")
    (folder / "driver_stubs.c").write_text(_stubs(_declared(headers / "cuda.h", "CUDAAPI", "cu"), _NOT_SUPPORTED))
    face("libcuda.so.1", [*sources("driver", "driver_copies"), "driver_stubs.c"])
    (folder / "nvml_stubs.c").write_text(_stubs(set(_NVML_NAMES.read_text().split()), _NVML_NOT_SUPPORTED))
    face("libnvidia-ml.so.1", [*sources("nvml"), "nvml_stubs.c"])
    if cublas := _cublas_headers(headers):
        for name, header, stubs in (
            ("cublas", "cublas_api.h", _cublas_stubs),
            ("cublasLt", "cublasLt.h", _cublaslt_stubs),
        ):
            soname = f"lib{name}.so.{major}"
            (folder / f"{name}_stubs.c").write_text(stubs(cublas / header))
            (folder / f"{name}.map").write_text(f"{soname} {{ global: cublas*; local: *; }};\n")
            inputs = [f"-I{cublas}", *sources(name.lower()), f"{name}_stubs.c"]
            face(soname, inputs, f"-Wl,--version-script={name}.map")
    # What a linker asks for when FlashInfer or Triton build against this runtime.
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    (folder / "libcudart.so").symlink_to(runtime)


def content_hash(headers: Path, compiler: list[str]) -> str:
    """Identity of a build: the C source, this file, the headers and the compiler's command."""
    inputs = [*sorted(SOURCES.iterdir()), *_SHARED_HEADERS, Path(__file__), *(headers / name for name in _HEADERS)]
    if cublas := _cublas_headers(headers):
        inputs += [cublas / "cublas_api.h", cublas / "cublasLt.h"]
    return native_build.content_hash(compiler, inputs)


def build(cache: Path | None = None) -> SimulatorLibraries:
    """Return the libraries, compiling them first if this content was never built here.

    Safe beside other processes: one compiles, the others wait; a build that dies leaves only a
    scratch folder that the next one ignores.

    Args:
        cache: the folder that holds builds; the user's cache folder when None.

    Raises:
        SimulatorBuildError: no compiler, no headers, or a compilation that failed.
    """
    headers, compiler = find_headers(), find_compiler()
    version = cuda_version(headers)
    root = cache if cache is not None else cache_root() / "simulate"

    def produce(folder: Path) -> None:
        _compile(folder, headers, compiler, version // 1000)

    return SimulatorLibraries(native_build.cached(root, content_hash(headers, compiler), produce), version)
