"""vLLM's FlashInfer all-reduce workspaces: for whom each was made, and to whom it is given."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pytest_gpuinvariants.events import Frame, GateAnswered, WorkspaceGiven, WorkspaceMade
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.integrations.vllm_backends import MODULE, SUBJECT, conclude
from pytest_gpuinvariants.invariants import workspace_reuse
from pytest_gpuinvariants.recorders import stacks

GETTERS = ("get_fi_ar_workspace", "get_fi_ar_quant_workspace")


def _purpose(kwargs: Mapping[str, Any]) -> dict[str, str]:
    purpose = {name: str(kwargs[name]) for name in ("hidden_dim", "dtype", "world_size")}
    return {**purpose, "group": f"{type(kwargs['group']).__name__} {id(kwargs['group']):#x}"}


@contextmanager
def consistent_workspaces() -> Iterator[list[WorkspaceGiven | WorkspaceMade | GateAnswered]]:
    """Hold vLLM's all-reduce workspaces to the purpose that each was made for; gives the events, in order.

    A gate (``should_use_fi_ar``) that answers while a workspace lives is compared with the workspace's own
    ``is_buffer_size_sufficient`` and the object's size limit.

    Raises:
        InvariantViolation: at the end, when a workspace was given for another purpose, a gate disagreed, or a later
            creation was not allowed the waiting that the first was.
    """
    module: Any = sys.modules[MODULE]
    events: list[WorkspaceGiven | WorkspaceMade | GateAnswered] = []
    made: dict[int, dict[str, str]] = {}
    alive: list[object] = []  # so that no id comes twice
    comm = module.flashinfer_comm
    create, gate = comm.create_allreduce_fusion_workspace, module.FlashInferAllReduce.should_use_fi_ar
    code = gate.__code__
    place = Frame(MODULE, code.co_qualname, code.co_filename, code.co_firstlineno)

    @functools.wraps(create)
    def creating(*args: Any, **kwargs: Any) -> object:
        events.append(
            WorkspaceMade(
                syncs_allowed=vllm_sync.allows(),
                thread=stacks.current_thread(),
                stack=stacks.capture(),
            )
        )
        workspace = create(*args, **kwargs)
        alive.append(workspace)
        made[id(workspace)] = _purpose(kwargs)
        return workspace

    def giving(getter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(getter)
        def give(**kwargs: Any) -> Any:  # vLLM names them all
            workspace = getter(**kwargs)
            if id(workspace) in made:
                events.append(
                    WorkspaceGiven(
                        asked=_purpose(kwargs),
                        made=made[id(workspace)],
                        thread=stacks.current_thread(),
                        stack=stacks.capture(),
                    )
                )
            return workspace

        return give

    @functools.wraps(gate)
    def asking(self: Any, tensor: Any) -> bool:
        admitted = bool(gate(self, tensor))
        workspace = module._fi_ar_workspace
        if workspace is not None and not self.disabled and tensor.dim() == 2:
            tokens, hidden_dim = tensor.shape
            sufficient = tensor.nbytes <= self.max_workspace_size and workspace.is_buffer_size_sufficient(
                tp_size=self.world_size, num_tokens=tokens, hidden_dim=hidden_dim, dtype=tensor.dtype
            )
            events.append(
                GateAnswered(
                    what=f"{tokens} x {hidden_dim} {tensor.dtype}",
                    admitted=admitted,
                    sufficient=sufficient,
                    thread=stacks.current_thread(),
                    stack=(place, *stacks.capture()),
                )
            )
        return admitted

    changes: dict[str, Any] = {name: giving(getattr(module, name)) for name in GETTERS}
    with (
        mock.patch.multiple(module, **changes),
        mock.patch.object(comm, "create_allreduce_fusion_workspace", creating),
        mock.patch.object(module.FlashInferAllReduce, "should_use_fi_ar", asking),
        conclude(workspace_reuse.NAME, lambda: workspace_reuse.check(events, SUBJECT)),
    ):
        vllm_sync.enter()
        try:
            yield events
        finally:
            vllm_sync.leave()
