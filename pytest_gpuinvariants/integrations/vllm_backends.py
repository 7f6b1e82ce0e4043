"""vLLM's FlashInfer all-reduce: which backend is resolved, and which is asked for."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_gpuinvariants import session
from pytest_gpuinvariants.events import BackendAsked, BackendResolved
from pytest_gpuinvariants.findings import Finding, InvariantViolation
from pytest_gpuinvariants.invariants import resolved_backend
from pytest_gpuinvariants.recorders import stacks

MODULE = "vllm.distributed.device_communicators.flashinfer_all_reduce"
SUBJECT = "flashinfer-all-reduce"


def _in_context() -> bool:
    return getattr(sys.modules.get("vllm.config.vllm"), "_current_vllm_config", None) is not None


@contextmanager
def conclude(invariant: str, check: Callable[[], tuple[Finding, ...]]) -> Iterator[None]:
    """Arm an invariant for a block; its findings go to the test's record, and fail the block at its end.

    Raises:
        InvariantViolation: the block itself passed, and ``check`` has findings.
    """
    record = session.current().current
    if record is not None:
        record.armed(invariant)
    try:
        yield
    finally:
        found = check()
        if record is not None:
            record.findings += found
            record.unraised += found
    if found:
        if record is not None:
            record.unraised = [one for one in record.unraised if one not in found]
        raise InvariantViolation(invariant, found)


@contextmanager
def consistent_backend() -> Iterator[list[BackendResolved | BackendAsked]]:
    """Hold vLLM's all-reduce to the backend that it resolved in context; gives the events, in order.

    Enter it after vLLM's module is imported, and after a resolver of the test's own is in place.

    Raises:
        InvariantViolation: at the end, when another backend was asked for.
    """
    module: Any = sys.modules[MODULE]
    events: list[BackendResolved | BackendAsked] = []
    resolve, create = module._resolve_fi_ar_backend, module.flashinfer_comm.create_allreduce_fusion_workspace

    @functools.wraps(resolve)
    def resolving(group: object) -> tuple[str | None, bool]:
        backend, fallback = resolve(group)
        accepted = tuple(filter(None, (backend, "trtllm" if fallback else None)))
        thread = stacks.current_thread()
        events.append(
            BackendResolved(
                accepted=accepted, group=id(group), in_context=_in_context(), thread=thread, stack=stacks.capture()
            )
        )
        return backend, fallback

    @functools.wraps(create)
    def creating(*args: Any, **kwargs: Any) -> object:
        thread = stacks.current_thread()
        backend = str(kwargs.get("backend", args[0] if args else "auto"))
        events.append(
            BackendAsked(backend=backend, group=id(kwargs.get("group")), thread=thread, stack=stacks.capture())
        )
        return create(*args, **kwargs)

    module._resolve_fi_ar_backend = resolving
    module.flashinfer_comm.create_allreduce_fusion_workspace = creating
    try:
        with conclude(resolved_backend.NAME, lambda: resolved_backend.check(events, SUBJECT)):
            yield events
    finally:
        module._resolve_fi_ar_backend = resolve
        module.flashinfer_comm.create_allreduce_fusion_workspace = create
