"""The recorder's numbers and slots, against the headers that CUDA and CUPTI ship."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware.simulate.build import SimulatorBuildError, find_headers
from pytest_gpuinvariants.recorders import cupti

TABLE = Path(cupti.__file__).parent / "csrc" / "cupti_apis.h"
# Which member of the parameters' structure each column of the table may be.
ROLES = {
    "SYNC": ("stream",),
    "ALLOC": ("size", "rows"),
    "LAUNCH": ("function", "inner", "config"),
    "FILL": ("", "", "size", "rows", "slices", "stream"),
    "COPY": ("", "to", "from", "size", "rows", "stream", "direction"),
    "AREA": ("", "", "stream"),
    "BATCH": ("stream",),
    "BATCH_3D": ("stream",),
}
MEMBERS = {
    "stream": r"(h|)[sS]tream",
    "size": r"size|bytesize|count|ByteCount|[wW]idth|WidthInBytes|N|extent",
    "rows": r"[hH]eight|extent",
    "slices": r"extent",
    "function": r"func|f",
    "config": r"config",
    "to": r"dst\w*",
    "from": r"src\w*",
    "direction": r"kind",
}
STRUCTURES = """
AT(struct cudaMemcpy3DParms, srcArray, 0) AT(struct cudaMemcpy3DParms, srcPtr.ptr, 4)
AT(struct cudaMemcpy3DParms, dstArray, 8) AT(struct cudaMemcpy3DParms, dstPtr.ptr, 12)
AT(struct cudaMemcpy3DParms, extent, 16)
AT(struct cudaMemcpy3DPeerParms, srcArray, 0) AT(struct cudaMemcpy3DPeerParms, srcPtr.ptr, 4)
AT(struct cudaMemcpy3DPeerParms, dstArray, 9) AT(struct cudaMemcpy3DPeerParms, dstPtr.ptr, 13)
AT(struct cudaMemcpy3DPeerParms, extent, 18)
AT(CUDA_MEMCPY2D, srcMemoryType, 2) AT(CUDA_MEMCPY2D, srcHost, 3) AT(CUDA_MEMCPY2D, srcDevice, 4)
AT(CUDA_MEMCPY2D, dstMemoryType, 9) AT(CUDA_MEMCPY2D, dstHost, 10) AT(CUDA_MEMCPY2D, WidthInBytes, 14)
AT(CUDA_MEMCPY3D, srcMemoryType, 4) AT(CUDA_MEMCPY3D, srcHost, 5) AT(CUDA_MEMCPY3D, srcDevice, 6)
AT(CUDA_MEMCPY3D, dstMemoryType, 15) AT(CUDA_MEMCPY3D, dstHost, 16) AT(CUDA_MEMCPY3D, WidthInBytes, 22)
AT(CUDA_MEMCPY3D_PEER, srcMemoryType, 4) AT(CUDA_MEMCPY3D_PEER, dstMemoryType, 15)
AT(CUDA_MEMCPY3D_PEER, WidthInBytes, 22)
AT(cudaLaunchConfig_t, stream, 4) AT(CUlaunchConfig, hStream, 4)
"""
NEWER = """
AT(struct cudaMemcpy3DBatchOp, src.op.ptr.ptr, 1) AT(struct cudaMemcpy3DBatchOp, dst, 5)
AT(struct cudaMemcpy3DBatchOp, extent, 10)
_Static_assert(sizeof(struct cudaMemcpy3DBatchOp) == 8 * 14, "");
"""


def _headers() -> Path:
    try:
        folder = find_headers()
    except SimulatorBuildError as error:
        pytest.skip(f"no CUDA headers: {error}")
    if not (folder / "cupti_runtime_cbid.h").is_file():
        pytest.skip("the CUDA headers here do not include CUPTI's")
    return folder


def _rows() -> list[tuple[str, str, int, str, list[str]]]:
    rows = re.findall(r"^(\w+)\((RUNTIME|DRIVER), (\d+), (\w+), ([^)]*)\)", TABLE.read_text(), re.MULTILINE)
    return [(macro, domain, int(number), api, rest.split(", ")) for macro, domain, number, api, rest in rows]


def _names(headers: Path, domain: str) -> dict[int, str]:
    text = (headers / f"cupti_{domain.lower()}_cbid.h").read_text()
    return {int(number): name for name, number in re.findall(r"_TRACE_CBID_(\w+)\s*=\s*(\d+)", text)}


def _bare(name: str) -> str:
    """A call's name without versions and per-thread suffixes."""
    return re.sub(r"^__|(_v\d+|_ptsz|_ptds)+$", "", name)


def test_numbers_are_those_of_the_named_calls() -> None:
    headers = _headers()
    known = {domain: _names(headers, domain) for domain in ("RUNTIME", "DRIVER")}
    rows = _rows()
    assert len(rows) > 150
    assert len({(domain, number) for _, domain, number, _, _ in rows}) == len(rows)
    wrong = [row for row in rows if row[2] in known[row[1]] and _bare(known[row[1]][row[2]]) != row[3]]
    assert wrong == []


def test_slots_are_those_of_the_parameters(tmp_path: Path) -> None:
    headers = _headers()
    folders = (headers, headers.parents[1] / "cuda_nvcc" / "include")
    if not any((folder / "crt" / "host_defines.h").is_file() for folder in folders):
        pytest.skip("the CUDA headers here lack the compiler's own (nvidia-cuda-crt)")
    names = ("generated_cuda_runtime_api_meta.h", "generated_cuda_meta.h")
    meta = "".join((headers / name).read_text() for name in names)
    structures = {
        name: body for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+)_params;", meta, re.DOTALL)
    }
    definitions: dict[str, str] = {}
    checks: list[str] = []
    for macro, domain, number, api, columns in _rows():
        name = _names(headers, domain).get(number, "")
        if name not in structures:
            continue
        # The headers define old calls too, of types that only CUPTI's own builds know.
        definitions[name] = f"typedef struct {{{structures[name]}}} {name}_params;"
        members = re.findall(r"(\w+);", structures[name])
        for role, column in zip(ROLES[macro], columns, strict=True):
            # What lies inside of a structure that was passed by value, and what is no member of it.
            if role not in MEMBERS or not column.isdecimal():
                continue
            fitting = [member for member in members if re.fullmatch(MEMBERS[role], member)]
            where = f"{api} ({name}): {role} in slot {column}"
            assert fitting, where
            choices = " || ".join(f"AT_SLOT({name}_params, {member}, {column})" for member in fitting)
            checks.append(f'_Static_assert({choices}, "{where}");')
    assert len(checks) > 300
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <cuda.h>\n#include <cuda_runtime_api.h>\n"
        # An extent passed by value has its three numbers in slots that follow each other.
        "#define AT_SLOT(type, member, slot) (offsetof(type, member) <= 8 * (slot) && "
        "offsetof(type, member) + sizeof(((type *)0)->member) > 8 * (slot))\n"
        '#define AT(type, member, slot) _Static_assert(offsetof(type, member) == 8 * (slot), #type " " #member);\n'
        + STRUCTURES
        + "#if CUDART_VERSION >= 13000\n"
        + NEWER
        + "#endif\n"
        + "\n".join([*definitions.values(), *checks])
    )
    compiler = os.environ.get("CC", "gcc")
    includes = [f"-I{folder}" for folder in folders]
    result = subprocess.run(
        [compiler, "-std=gnu11", "-fsyntax-only", *includes, source], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
