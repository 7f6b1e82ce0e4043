"""Which code of vLLM asks for the current configuration where there is none, and takes what it gets."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants import fresh_config_context, requires_package, requires_sm90
from pytest_gpuinvariants.recorders.config_reads import ConfigReads, census

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import import_or_skip  # noqa: TID252

OR_NONE = "get_current_vllm_config_or_none"
CALL_SITES = 41
"""Calls of it in the source of vLLM 0.33.0, in 31 files."""


def call_sites(source: str) -> int:
    """How often the source of a module calls the getter that answers None."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return sum(getattr(function, "attr", getattr(function, "id", "")) == OR_NONE for function in calls)


@pytest.fixture(scope="module")
def sites() -> Counter[str]:
    """Call sites by file, of the installed vLLM."""
    root = Path(import_or_skip("vllm").__file__).parent
    found: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if OR_NONE in source and (count := call_sites(source)):
            found[str(path.relative_to(root))] = count
    return found


@requires_package("vllm==0.33.0")
def test_number_of_call_sites(sites: Counter[str]) -> None:
    """The number that the documentation tells."""
    assert (sites.total(), len(sites)) == (CALL_SITES, 31)


def _attention_impl() -> object:
    # Any backend's implementation: the read is in the __new__ of their base.
    attention = import_or_skip("vllm.v1.attention.backend")
    return attention.AttentionImplBase.__new__(attention.AttentionImplBase)


def _attribute(name: str, *path: str) -> Callable[[], Any]:
    def found() -> Any:
        target = import_or_skip(name)
        for part in path:
            target = getattr(target, part)
        return target()

    return found


_LINEAR = "vllm.model_executor.kernels.linear"
_FLASH = "vllm.v1.attention.backends.flash_attn"
PATHS: dict[str, tuple[Callable[[], object], str, str]] = {
    # Code path: what is called, who reads, and what it gets.
    "attention": (_attention_impl, "vllm.v1.attention.backend.AttentionImplBase.__new__", "None"),
    "linear method": (
        _attribute("vllm.model_executor.layers.linear", "UnquantizedLinearMethod"),
        "vllm.model_executor.layers.linear.UnquantizedLinearMethod.__init__",
        "None",
    ),
    "linear backend": (
        lambda: import_or_skip(_LINEAR)._get_linear_backend(quantization="fp8"),
        f"{_LINEAR}._get_linear_backend",
        "None",
    ),
    "linear activation": (
        _attribute(_LINEAR, "_user_linear_activation_override"),
        f"{_LINEAR}._user_linear_activation_override",
        "None",
    ),
    "timeout": (
        _attribute("vllm.distributed.utils", "get_distributed_timeout_or_none"),
        "vllm.distributed.utils.get_distributed_timeout_or_none",
        "None",
    ),
    "CPU timeout": (
        _attribute("vllm.distributed.utils", "get_cpu_distributed_timeout_or_none"),
        "vllm.distributed.utils.get_cpu_distributed_timeout_or_none",
        "None",
    ),
    "cache layout": (
        _attribute("vllm.distributed.kv_transfer.kv_connector.utils", "get_kv_connector_cache_layout"),
        "vllm.distributed.kv_transfer.kv_connector.utils.get_kv_connector_cache_layout",
        "None",
    ),
    "multimodal": (
        _attribute("vllm.model_executor.models.vision", "get_multimodal_config"),
        "vllm.model_executor.models.vision.get_multimodal_config",
        "None",
    ),
    "FlashInfer block sizes": (
        _attribute("vllm.v1.attention.backends.flashinfer", "FlashInferBackend", "get_supported_kernel_block_sizes"),
        "vllm.v1.attention.backends.flashinfer.FlashInferBackend.get_supported_kernel_block_sizes",
        "None",
    ),
    "FlashAttention block size": (
        _attribute(_FLASH, "FlashAttentionBackend", "_get_sm90_fa4_fp8_kv_block_size"),
        f"{_FLASH}.FlashAttentionBackend._get_sm90_fa4_fp8_kv_block_size",
        "None",
    ),
    "FlashAttention head size": (
        _attribute(_FLASH, "FlashAttentionBackend", "_get_fa4_hd256_block_size"),
        f"{_FLASH}.FlashAttentionBackend._get_fa4_hd256_block_size",
        "None",
    ),
    "FlashAttention version": (
        _attribute("vllm.v1.attention.backends.fa_utils", "get_flash_attn_version"),
        "vllm.v1.attention.backends.fa_utils.get_flash_attn_version",
        "None",
    ),
    "Mamba": (
        _attribute(
            "vllm.v1.attention.backends.mamba2_attn",
            "Mamba2AttentionBackend",
            "supports_device_cpu_query_lens_mismatch",
        ),
        "vllm.v1.attention.backends.mamba2_attn.Mamba2AttentionBackend.supports_device_cpu_query_lens_mismatch",
        "None",
    ),
    "custom operator": (
        _attribute("vllm.model_executor.layers.activation", "SiluAndMul"),
        "vllm.model_executor.custom_op.CustomOp.dispatch_forward",
        "AssertionError",
    ),
}


def _call_all_in_context() -> None:
    config = import_or_skip("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        for call, _, _ in PATHS.values():
            call()


@pytest.fixture
def reads() -> Iterator[ConfigReads]:
    """A recorder of the test's own, beside the marker's; what the first call of a path imports has been imported."""
    _call_all_in_context()
    recorder = ConfigReads()
    recorder.start()
    yield recorder
    recorder.stop()


@requires_package("vllm>=0.33.0,<0.34")
@requires_sm90(host_only=True)
@fresh_config_context
def test_census(reads: ConfigReads) -> None:
    """Each path, one more time than the one after it, is told with its count, the most frequent first."""
    expected: dict[str, int] = {}
    for times, (call, reader, answer) in zip(range(len(PATHS), 0, -1), PATHS.values(), strict=True):
        for _ in range(times):
            if answer == "None":
                call()
            else:
                with pytest.raises(AssertionError, match="config is not set"):
                    call()
        getter = OR_NONE if answer == "None" else "get_current_vllm_config"
        expected[f"{reader}: {getter}() gave {answer}"] = times
    found = census(reads.counts)
    assert list(found.items()) == list(expected.items())


@requires_package("vllm>=0.33.0,<0.34")
@requires_sm90(host_only=True)
@fresh_config_context(strict=True)
def test_in_context_nothing_is_told() -> None:
    """The same paths in a context read the same configuration, and are no finding."""
    _call_all_in_context()
