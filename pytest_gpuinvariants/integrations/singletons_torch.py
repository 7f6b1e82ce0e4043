"""Process-wide state of torch."""

from __future__ import annotations

import warnings
from typing import Any

from pytest_gpuinvariants.integrations.singletons import Singleton, Treatment


def _set_sync_debug_mode(module: Any, mode: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        module._C._cuda_set_sync_debug_mode(mode)


def _default_device(module: Any) -> str | None:
    # Not get_default_device(), which resolves an index and so may touch the GPU.
    context = getattr(module._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else str(context.device)


def _cuda_rng(module: Any) -> list[Any]:
    return list(module.cuda.get_rng_state_all()) if module.cuda.is_initialized() else []


def _set_cuda_rng(module: Any, states: list[Any]) -> None:
    if states:
        module.cuda.set_rng_state_all(states)


def _device(module: Any) -> int | None:
    return int(module.cuda.current_device()) if module.cuda.is_initialized() else None


def _set_device(module: Any, index: int | None) -> None:
    if index is not None:
        module.cuda.set_device(index)


def _destroy_group(group: Any) -> None:
    import torch.distributed

    torch.distributed.destroy_process_group()


_C10D = "torch.distributed.distributed_c10d"
_MODE: dict[str, Any] = {"module": "torch", "treatment": Treatment.MODE}

ENTRIES = (
    Singleton(
        name="torch.default_group",
        module=_C10D,
        see=lambda module: module._world.default_pg,
        put=lambda module, state: module._update_default_pg(state),
        destroy=_destroy_group,
        created_by=(f"{_C10D}:init_process_group",),
        requires="torch>=2.1",
        movable=False,  # torch keeps more of it than this, and destroying another destroys all
    ),
    Singleton(
        name="torch.sync_debug_mode",
        see=lambda module: module._C._cuda_get_sync_debug_mode(),
        put=_set_sync_debug_mode,
        created_by=("torch.cuda:set_sync_debug_mode",),
        requires="torch>=1.10",
        **_MODE,
    ),
    Singleton(
        name="torch.deterministic",
        see=lambda module: module.get_deterministic_debug_mode(),
        put=lambda module, mode: module.set_deterministic_debug_mode(mode),
        created_by=("torch:use_deterministic_algorithms", "torch:set_deterministic_debug_mode"),
        requires="torch>=1.11",
        **_MODE,
    ),
    Singleton(
        name="torch.cudnn.deterministic",
        see=lambda module: module._C._get_cudnn_deterministic(),
        put=lambda module, value: module._C._set_cudnn_deterministic(value),
        requires="torch>=1.10",
        **_MODE,
    ),
    Singleton(
        name="torch.cudnn.benchmark",
        see=lambda module: module._C._get_cudnn_benchmark(),
        put=lambda module, value: module._C._set_cudnn_benchmark(value),
        requires="torch>=1.10",
        **_MODE,
    ),
    Singleton(
        name="torch.default_dtype",
        see=lambda module: module.get_default_dtype(),
        put=lambda module, dtype: module.set_default_dtype(dtype),
        created_by=("torch:set_default_dtype", "torch:set_default_tensor_type"),
        requires="torch>=1.10",
        **_MODE,
    ),
    Singleton(
        name="torch.default_device",
        see=_default_device,
        put=lambda module, device: module.set_default_device(device),
        created_by=("torch:set_default_device",),
        requires="torch>=2.1",
        **_MODE,
    ),
    Singleton(
        name="torch.cuda.device",
        see=_device,
        put=_set_device,
        lazy=True,  # CUDA is initialized when it is first needed
        created_by=("torch.cuda:set_device",),
        requires="torch>=1.10",
        **_MODE,
    ),
    Singleton(
        name="torch.random",
        module="torch",
        see=lambda module: module.get_rng_state(),
        put=lambda module, state: module.set_rng_state(state),
        treatment=Treatment.RESTORED,
    ),
    Singleton(
        name="torch.cuda.random",
        module="torch",
        see=_cuda_rng,
        put=_set_cuda_rng,
        treatment=Treatment.RESTORED,
    ),
)
