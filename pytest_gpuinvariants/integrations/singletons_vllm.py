"""Process-wide state of vLLM."""

from __future__ import annotations

from typing import Any

from pytest_gpuinvariants.integrations.singletons import Singleton, Treatment, cache, container, variable

_CONFIG = "vllm.config.vllm"
_ALL_REDUCE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
_PARALLEL = "vllm.distributed.parallel_state"
_WORKSPACE = "vllm.v1.worker.workspace"
_SM90 = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90"
_HAS: dict[str, Any] = {"requires": "vllm>=0.33,<0.34"}
_SET_CONFIG = (f"{_CONFIG}:set_current_vllm_config",)
_WORKSPACES = (f"{_ALL_REDUCE}:get_fi_ar_workspace", f"{_ALL_REDUCE}:get_fi_ar_quant_workspace")
_GROUPS = ("ETP", "TP", "DCP", "PCP", "PP", "ENGRAM_DP", "DP", "EP", "EPLB", "INNER_DP_WORLD", "WORLD")


def _destroy(held: Any) -> None:
    held.destroy()


ENTRIES: tuple[Singleton, ...] = (
    variable("vllm.current_config", f"{_CONFIG}:_current_vllm_config", created_by=_SET_CONFIG, **_HAS),
    variable("vllm.current_prefix", f"{_CONFIG}:_current_prefix", created_by=_SET_CONFIG, **_HAS),
    cache("vllm.cached_compilation_config", f"{_CONFIG}:get_cached_compilation_config", **_HAS),
    # The quantized one may be the plain one under another name: destroyed once.
    *(
        variable(f"vllm.{name}", f"{_ALL_REDUCE}:_{name}", destroy=_destroy, created_by=_WORKSPACES, **_HAS)
        for name in ("fi_ar_quant_workspace", "fi_ar_workspace")
    ),
    *(
        variable(f"vllm.{name}_failed", f"{_ALL_REDUCE}:_{name}_failed", absent=False, created_by=_WORKSPACES, **_HAS)
        for name in ("fi_ar_quant_workspace", "fi_ar_workspace")
    ),
    container(
        "vllm.fi_ar_workspace_groups", f"{_ALL_REDUCE}:_fi_ar_workspace_groups", dict, created_by=_WORKSPACES, **_HAS
    ),
    variable(
        "vllm.workspace_manager",
        f"{_WORKSPACE}:_manager",
        created_by=(f"{_WORKSPACE}:init_workspace_manager",),
        **_HAS,
    ),
    # A module's global before each builder had a state of its own.
    variable("vllm.sm90_state", f"{_SM90}:_SM90_STATE", requires="vllm<0.33"),
    container(
        "vllm.gpu_sync_allowed_first_seen",
        "vllm.utils.gpu_sync_debug:_GPU_SYNC_ALLOWED_FIRST_SEEN",
        set,
        treatment=Treatment.CACHE,
        **_HAS,
    ),
    variable(
        "vllm.gpu_sync_check",
        "vllm.utils.gpu_sync_debug:_sync_check_enabled",
        treatment=Treatment.MODE,
        created_by=("vllm.utils.gpu_sync_debug:enable_gpu_sync_check",),
        **_HAS,
    ),
    *(
        variable(
            f"vllm.group.{name}",
            f"{_PARALLEL}:_{name}",
            destroy=_destroy,
            created_by=(
                f"{_PARALLEL}:initialize_model_parallel",
                f"{_PARALLEL}:init_distributed_environment",
            ),
            movable=False,
            **_HAS,
        )
        for name in _GROUPS
    ),
    variable(
        "vllm.node_count",
        f"{_PARALLEL}:_NODE_COUNT",
        created_by=(f"{_PARALLEL}:init_distributed_environment",),
        movable=False,
        **_HAS,
    ),
    variable("vllm.custom_all_reduce", f"{_PARALLEL}:_ENABLE_CUSTOM_ALL_REDUCE", treatment=Treatment.MODE, **_HAS),
    # Once resolved it stays: about a hundred modules have imported it by name.
    variable("vllm.current_platform", "vllm.platforms:_current_platform", treatment=Treatment.MODE, lazy=True, **_HAS),
    variable("vllm.envs_cache", "vllm.envs:__getattr__", treatment=Treatment.MODE, **_HAS),
    cache("vllm.supports_trtllm_attention", "vllm.utils.flashinfer:supports_trtllm_attention", **_HAS),
    cache("vllm.backend_priorities", "vllm.platforms.cuda:_get_backend_priorities", **_HAS),
    *(
        cache(f"vllm.{name}.get_device_capability", f"vllm.platforms.cuda:{name}.get_device_capability", **_HAS)
        for name in ("NvmlCudaPlatform", "NonNvmlCudaPlatform")
    ),
    cache("vllm.cached_attn_backend", "vllm.v1.attention.selector:_cached_get_attn_backend", **_HAS),
)
