"""The import-time surface of vLLM and FlashInfer, each in a fresh process."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_gpuinvariants import environment, known_fault, no_import_side_effects, session

# Imports that do not reach FlashInfer.
VLLM = (
    "vllm",
    "vllm.platforms",
    "vllm.config",
    "vllm._custom_ops",
    "vllm.engine.arg_utils",
    "vllm.v1.attention.selector",
    "vllm.v1.attention.backends.registry",
    "vllm.v1.attention.backends.triton_attn",
)
FLASHINFER = ("flashinfer", "flashinfer.mla", "flashinfer.comm", "flashinfer.jit")
ALL_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
# What other packages do when vLLM imports them; each is a place, so nothing of vLLM's is covered.
OTHERS = (
    "cpuinfo.cpuinfo.<module>",
    "cuda.pathfinder._dynamic_libs.load_dl_linux.<module>",
    "cv2.<module>",
    "filelock._strict.<module>",
    "sklearn.<module>",
    "torch._dynamo.package.<module>",
    "urllib3.util.connection.<module>",
)
SETTLED = (
    "AITER_SITUV2_A4W4",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TILELANG_CLEANUP_TEMP_FILES",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TRITON_CACHE_AUTOTUNING",
)
"""Variables that vLLM's import sets: in this process, too, where another test has imported it."""

ASKS_TORCH = "cuda-init:cuda@flashinfer.jit.env.<module>"
# The first of two: what the second would do is done by then.
IN_FLASHINFER = (
    "cuda-init:cuda@flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_fp8_fc1_act.<module>"
    if find_spec("cutlass") is not None
    else "cuda-init:cuda@flashinfer.kda_kernels.<module>"
)

asks_torch = known_fault(
    ASKS_TORCH,
    package="flashinfer-python",
    versions=">=0.7.2,<0.8",
    reason="where FLASHINFER_CUDA_ARCH_LIST is not set, the name of the cache folder asks torch for the card",
)
in_flashinfer = known_fault(
    IN_FLASHINFER,
    package="flashinfer-python",
    versions=">=0.7.2,<0.8",
    reason="where CUTLASS's Python package is installed, the table TACTICS asks it for the card's capability, which "
    "calls cuInit; and kda_kernels asks torch for it",
)


@pytest.fixture(autouse=True)
def _as_a_user_starts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in {*SETTLED, *environment.changed_since(session.current().variables)}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("FLASHINFER_CUDA_ARCH_LIST", raising=False)  # which names the simulated card
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))


@no_import_side_effects("torch", allow="cuda.pathfinder._dynamic_libs.load_dl_linux.<module>")
def test_torch() -> None:
    """One ``ldconfig`` of NVIDIA's path finder aside, torch's import is clean."""


@no_import_side_effects("triton")
def test_triton() -> None:
    """Triton's import is clean."""


@no_import_side_effects(VLLM, kinds=["cuda-init", "config-read", "thread"])
def test_vllm_leaves_cuda_alone() -> None:
    """A process that has imported vLLM can still fork workers that use CUDA."""


@known_fault(
    [
        "environment:AITER_SITUV2_A4W4@vllm._aiter_ops.<module>",
        "environment:PYTORCH_NVML_BASED_CUDA_CHECK@vllm.env_override.<module>",
        "environment:TILELANG_CLEANUP_TEMP_FILES@vllm.env_override.<module>",
        "environment:TORCHINDUCTOR_COMPILE_THREADS@vllm.env_override.<module>",
        "environment:TRITON_CACHE_AUTOTUNING@vllm.env_override.<module>",
        "process:uname@vllm.utils.torch_utils.<module>",
    ],
    package="vllm",
    versions=">=0.33.0,<0.34",
    reason="vLLM's import sets variables of torch, Triton, TileLang and AITER for its whole process, and runs uname",
)
@no_import_side_effects(VLLM, kinds=["environment", "file-write", "process", "socket"], allow=OTHERS)
def test_vllm_leaves_its_process_alone() -> None:
    """What else vLLM's import does to the process and the machine."""


@known_fault(
    "config-read:vllm.config.vllm.get_current_vllm_config_or_none@vllm.v1.attention.backends.flash_attn.<module>",
    package="vllm",
    versions=">=0.33.0,<0.34",
    reason="the FlashAttention backend asks for its version, and so for the current configuration, when it is imported",
)
@no_import_side_effects("vllm.v1.attention.backends.flash_attn", kinds="config-read")
def test_flash_attention_reads_no_configuration() -> None:
    """At import there is no configuration yet: what is read then is a default, for the life of the process."""


@known_fault(
    "cuda-init:cuda@tvm_ffi._optional_torch_c_dlpack.<module>",
    package="apache-tvm-ffi",
    versions=">=0.1,<0.2",
    reason="its patch of torch's streams asks torch.cuda.is_available(), which calls cuInit",
)
@no_import_side_effects(FLASHINFER, kinds=["cuda-init", "config-read", "thread"])
def test_flashinfer_leaves_cuda_alone() -> None:
    """A process that has imported FlashInfer can still fork workers that use CUDA."""


@asks_torch
@pytest.mark.usefixtures("ask_nvml")
@no_import_side_effects(FLASHINFER, kinds=["cuda-init", "thread"])
def test_flashinfer_leaves_cuda_alone_where_torch_asks_nvml() -> None:
    """With that question out of the way, as vLLM has it, FlashInfer's own is the first."""


@in_flashinfer
@pytest.mark.usefixtures("ask_nvml", "named_card")
@no_import_side_effects(FLASHINFER, kinds=["cuda-init", "thread"])
def test_flashinfer_leaves_cuda_alone_where_the_card_is_named() -> None:
    """With both out of the way, its kernels ask for the card."""


@asks_torch
@no_import_side_effects(ALL_REDUCE, kinds=["cuda-init", "config-read", "thread"])
def test_vllm_with_flashinfer_leaves_cuda_alone() -> None:
    """What vLLM's all-reduce imports."""


@in_flashinfer
@pytest.mark.usefixtures("named_card")
@no_import_side_effects(ALL_REDUCE, kinds=["cuda-init", "config-read", "thread"])
def test_vllm_with_flashinfer_leaves_cuda_alone_where_the_card_is_named() -> None:
    """The same, where FlashInfer need not ask for its folder's name."""


@known_fault(
    [f"file-write:{operation}@flashinfer.jit.core.<module>" for operation in ("mkdir", "create", "open")],
    package="flashinfer-python",
    versions=">=0.7.2,<0.8",
    reason="the import makes FlashInfer's cache folder and opens a log in it, also where nothing is compiled",
)
@no_import_side_effects("flashinfer.jit", kinds="file-write", allow=["cuda.tile.<module>", "filelock._strict.<module>"])
def test_flashinfer_writes_nothing() -> None:
    """An import on a read-only file system must not fail."""


@pytest.fixture
def ask_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``torch.cuda.is_available()`` ask NVML, which initialises nothing."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


@pytest.fixture
def named_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment say what FlashInfer compiles for."""
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
