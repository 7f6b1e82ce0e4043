"""FlashInfer's attention workspaces in vLLM: sizes, what wrappers share, and buffers that are made when first used."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinvariants import fresh_config_context, requires_sm90, session
from pytest_gpuinvariants.hardware.machine import MachineKind

from ..vllm_attention.harness import import_or_skip  # noqa: TID252

MODULE = "vllm.v1.attention.backends.flashinfer"
MIB = 2**20
pytestmark = [requires_sm90(host_only=True), fresh_config_context(singletons="flashinfer.cache_buf")]


@pytest.fixture(scope="module", autouse=True)
def module() -> Any:
    """VLLM's module."""
    return import_or_skip(MODULE)


@pytest.fixture
def builder(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """VLLM's builder, with no more than what its workspace depends on: 1,024 tokens of 32 heads of 128."""
    import torch

    monkeypatch.setenv("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", str(16 * MIB))
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    built = object.__new__(module.FlashInferMetadataBuilder)
    values = {
        "device": torch.device("cuda:0"),
        "max_num_batched_tokens": 1024,
        "num_qo_heads": 32,
        "head_dim": 128,
        "use_dcp": False,
        "has_sinks": False,
        "nvfp4_trtllm": False,
        "is_kvcache_nvfp4": False,
        "use_fa2_native_decode": False,
        "_workspace_buffer": None,
        "_prefill_wrapper": None,
        "_noncausal_prefill_wrapper": None,
        "_decode_wrapper": None,
        "_decode_wrappers_cudagraph": {},
    }
    for name, value in values.items():
        setattr(built, name, value)
    # The property asks the configuration.
    monkeypatch.setattr(module.FlashInferMetadataBuilder, "kv_cache_layout", None)
    monkeypatch.setattr(module, "get_flashinfer_layout_string", lambda layout: "NHD")
    return built


def assert_zeroed(made: Any) -> None:
    """Of a simulated card's memory nothing is known: the kernel that fills it is recorded, not run."""
    if session.current().machine.kind is MachineKind.REAL:
        assert not made[:4096].cpu().any()


@pytest.mark.parametrize(("tokens", "expected"), [(1, 16), (256, 16), (257, 16.0625), (1024, 64)])
def test_float_workspace_fits_the_prefill_chunk(builder: Any, tokens: int, expected: float) -> None:
    """16 B for each token, head and channel, and never less than what is configured; made once, zeroed."""
    builder.max_num_batched_tokens = tokens
    assert builder._workspace_buffer is None
    made = builder._get_workspace_buffer()
    assert made.nbytes == expected * MIB
    assert_zeroed(made)
    assert builder._get_workspace_buffer() is made


def test_wrappers_share_the_float_workspace_and_not_the_int_one(builder: Any) -> None:
    """Plans live in the int workspace: two wrappers planned for one step must not overwrite each other's."""
    wrappers = [builder._get_prefill_wrapper(), builder._get_decode_wrapper(8)]
    assert wrappers[0] is builder._get_prefill_wrapper()
    assert wrappers[1] is builder._get_decode_wrapper(8)
    assert {one._float_workspace_buffer.data_ptr() for one in wrappers} == {builder._get_workspace_buffer().data_ptr()}
    assert len({one._int_workspace_buffer.data_ptr() for one in wrappers}) == 2
    assert len({one._pin_memory_int_workspace_buffer.data_ptr() for one in wrappers}) == 2
    for one in wrappers:
        assert one._int_workspace_buffer.nbytes == 8 * MIB
        assert one._pin_memory_int_workspace_buffer.nbytes == one._int_workspace_buffer.nbytes
        assert one._pin_memory_int_workspace_buffer.is_pinned()


def test_no_wrapper_captures_a_workspace_that_is_not_there_yet(builder: Any) -> None:
    """A wrapper that is made before anyone asked for the buffer holds the buffer, not the None of before."""
    assert builder._workspace_buffer is None
    wrapper = builder._get_decode_wrapper(8)
    assert wrapper._float_workspace_buffer is builder._workspace_buffer is not None


def test_builders_share_a_workspace_that_is_handed_over_in_time(module: Any, builder: Any) -> None:
    """What the runner does: the first builder's buffer is set in the others before they have wrappers."""
    other = object.__new__(module.FlashInferMetadataBuilder)
    other.__dict__.update(builder.__dict__, _decode_wrappers_cudagraph={})
    other.set_workspace_buffer(builder._get_workspace_buffer())
    assert other._get_decode_wrapper(8)._float_workspace_buffer is builder._get_workspace_buffer()


def test_wrapper_refuses_no_workspace(builder: Any) -> None:
    """A wrapper made from a captured None is refused when it is made, not when a kernel writes through it."""
    wrapper = import_or_skip("flashinfer").BatchDecodeWithPagedKVCacheWrapper
    with pytest.raises((AttributeError, TypeError, ValueError)):
        wrapper(None, "NHD")


def test_trtllm_workspace_is_made_when_first_asked_for(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was imported from the module earlier keeps the None of before: ask the getter."""
    monkeypatch.setattr(module, "trtllm_workspace_buffer", None)
    monkeypatch.setenv("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", str(4 * MIB))
    captured = module.trtllm_workspace_buffer
    made = module._get_trtllm_workspace_buffer()
    assert captured is None
    assert made is module.trtllm_workspace_buffer is module._get_trtllm_workspace_buffer()
    assert made.nbytes == 4 * MIB
    assert_zeroed(made)


def test_cached_scratch_grows_and_is_kept_for_those_who_hold_it() -> None:
    """FlashInfer's scratch of one name is one buffer a device; a larger request replaces it for later ones only."""
    import torch

    utils = import_or_skip("flashinfer.utils")
    device = torch.device("cuda:0")
    first = utils._get_cache_buf("suite", 1024, device)
    assert utils._get_cache_buf("suite", 512, device) is first
    larger = utils._get_cache_buf("suite", 4096, device)
    assert larger.nbytes == 4096
    assert utils._get_cache_buf("other", 512, device) is not larger
    assert any(one is first for one in utils._cache_buf_retired), "captured graphs hold its address"
    utils._cache_buf_retired[:] = [one for one in utils._cache_buf_retired if one is not first]
