"""Process-wide state of FlashInfer."""

from __future__ import annotations

from typing import Any

from pytest_gpuinvariants.integrations.singletons import Singleton, Treatment, cache, container

_UTILS = "flashinfer.utils"
_HAS: dict[str, Any] = {"requires": "flashinfer-python>=0.7,<0.8"}
# Asked of a device, and kept for ever: stale after the device was faked.
_OF_A_DEVICE = (
    "get_device_properties",
    "get_compute_capability",
    "get_gpu_memory_bandwidth",
    "get_shared_bytes_per_block_optin",
    "device_support_pdl",
    "get_device_sm_count",
    "get_device_name",
    "is_confidential_compute",
)


def _specs(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    registry = module.jit_spec_registry
    return dict(registry._specs), dict(registry._creation_times)


def _set_specs(module: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    registry = module.jit_spec_registry
    for held, content in zip((registry._specs, registry._creation_times), state, strict=True):
        held.clear()
        held.update(content)


ENTRIES = (
    container(
        "flashinfer.cache_buf",
        f"{_UTILS}:_cache_buf",
        dict,
        created_by=(
            f"{_UTILS}:_get_cache_buf",
            f"{_UTILS}:_get_range_buf",
            f"{_UTILS}:_get_cache_alibi_slopes_buf",
        ),
        **_HAS,
    ),
    *(cache(f"flashinfer.{name}", f"{_UTILS}:{name}", **_HAS) for name in _OF_A_DEVICE),
    Singleton(
        name="flashinfer.jit_spec_registry",
        module="flashinfer.jit.core",
        see=_specs,
        put=_set_specs,
        treatment=Treatment.RESTORED,
        **_HAS,
    ),
)
