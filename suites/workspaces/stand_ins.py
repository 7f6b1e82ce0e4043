"""vLLM's all-reduce module without a process group and without shared memory: what the host-only tests put in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import import_or_skip  # noqa: TID252

MODULE = "vllm.distributed.device_communicators.flashinfer_all_reduce"


@dataclass(eq=False)
class Group:
    """Stands for a process group of one node."""

    size: int = 2
    rank: int = 0


def make_trtllm(**asked: Any) -> Any:
    """FlashInfer's own class, with the metadata that its creation writes, and nothing allocated."""
    allreduce = import_or_skip("flashinfer.comm.allreduce")
    torch = import_or_skip("torch")
    workspace = object.__new__(allreduce.TRTLLMAllReduceFusionWorkspace)
    workspace._destroyed = False
    workspace.ipc_handles, workspace.workspace_tensor, workspace.mem_handles = [], None, []
    workspace.metadata = {
        "tp_size": asked["world_size"],
        "max_token_num": asked["max_token_num"],
        "hidden_dim": asked["hidden_dim"],
        "use_fp32_lamport": asked["dtype"] == torch.float32,
    }
    return workspace


def stand_in(patch: pytest.MonkeyPatch, create: Callable[..., Any] = make_trtllm, backend: str = "trtllm") -> Any:
    """VLLM's real module, ``backend`` resolved, for groups that are stand-ins; ``create`` makes the workspaces."""
    module = import_or_skip(MODULE)
    patch.setattr(module, "_node_count", lambda group: 1)
    patch.setattr(module, "TorchDistBackend", lambda group: None)
    patch.setattr(module.dist, "get_world_size", lambda group: group.size)
    patch.setattr(module.dist, "get_rank", lambda group: group.rank)
    patch.setattr(module.flashinfer_comm, "create_allreduce_fusion_workspace", create)
    patch.setenv("VLLM_FLASHINFER_ALLREDUCE_BACKEND", backend)
    return module
