"""The workspace manager of vLLM's v1 workers: sizes, sharing, locking, and that no test inherits another's."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuinvariants import fresh_config_context, requires_sm90

from ..vllm_attention.harness import import_or_skip  # noqa: TID252

MODULE = "vllm.v1.worker.workspace"
pytestmark = requires_sm90(host_only=True)
fresh = fresh_config_context(singletons="vllm.workspace_manager")


@pytest.fixture(scope="module", autouse=True)
def module() -> Any:
    """VLLM's module."""
    return import_or_skip(MODULE)


def _manager(module: Any, **options: Any) -> Any:
    import torch

    module.init_workspace_manager(torch.device("cuda:0"), **options)
    return module.current_workspace_manager()


@fresh
@pytest.mark.parametrize("turn", ["makes-one", "next-test"])
def test_no_manager_reaches_the_next_test(module: Any, turn: str) -> None:
    """Each test begins without; a manager that is used before it is made is an error, not a lazy creation."""
    assert not module.is_workspace_manager_initialized()
    with pytest.raises(AssertionError, match="not initialized"):
        module.current_workspace_manager()
    _manager(module)


@fresh
@pytest.mark.parametrize("sizes", [(1,), (255, 1), (256, 256), (257, 3, 1024)])
def test_simultaneous_views_are_aligned_and_apart(module: Any, sizes: tuple[int, ...]) -> None:
    """Each view starts at a multiple of 256 B, none reaches into another, and the buffer is just large enough."""
    import torch

    manager = _manager(module)
    views = manager.get_simultaneous(*(((size,), torch.uint8) for size in sizes))
    (buffer,) = manager._current_workspaces
    starts = [view.data_ptr() - buffer.data_ptr() for view in views]
    rounded = [-(-size // 256) * 256 for size in sizes]
    assert [view.numel() for view in views] == list(sizes)
    assert starts == [sum(rounded[:at]) for at in range(len(sizes))]
    assert buffer.nbytes == sum(rounded)


@fresh
def test_requests_share_one_buffer_until_it_must_grow(module: Any) -> None:
    """A later, smaller request is given the same memory: what the first wrote is not kept for it."""
    import torch

    manager = _manager(module)
    (large,) = manager.get_simultaneous(((1024,), torch.float32))
    (small,) = manager.get_simultaneous(((16,), torch.bfloat16))
    assert small.data_ptr() == large.data_ptr()
    (larger,) = manager.get_simultaneous(((4096,), torch.float32))
    assert larger.untyped_storage().nbytes() == 4096 * 4
    assert large.untyped_storage().data_ptr() != larger.untyped_storage().data_ptr()  # the old view keeps its memory


@fresh
def test_lanes_do_not_share(module: Any) -> None:
    """A lane has a buffer and persistent resources of its own; one that was not configured is an error."""
    import torch

    manager = _manager(module, num_lanes=2)
    held = []
    for lane in range(2):
        with module.use_workspace_lane(lane):
            (scratch,) = manager.get_simultaneous(((64,), torch.int32))
            held.append((scratch.data_ptr(), manager.get_persistent("ends", (8,), torch.int32).data_ptr()))
    assert len({pointer for pair in held for pointer in pair}) == 4
    with module.use_workspace_lane(2), pytest.raises(RuntimeError, match="not configured"):
        manager.get_simultaneous(((64,), torch.int32))


@fresh
def test_locked_manager_keeps_what_graphs_have_captured(module: Any) -> None:
    """Once locked the addresses stay: growth and new resources are refused, also after a refusal."""
    import torch

    manager = _manager(module)
    (scratch,) = manager.get_simultaneous(((1024,), torch.uint8))
    kept = manager.get_persistent("ends", (8,), torch.int32)
    module.lock_workspace()
    with pytest.raises(AssertionError, match="Workspace is locked"):
        manager.get_simultaneous(((1025,), torch.uint8))
    with pytest.raises(AssertionError, match="not allocated during warmup"):
        manager.get_persistent("other", (8,), torch.int32)
    assert manager.get_simultaneous(((1024,), torch.uint8))[0].data_ptr() == scratch.data_ptr()
    assert manager.get_persistent("ends", (8,), torch.int32) is kept
    module.unlock_workspace()
    assert manager.get_simultaneous(((2048,), torch.uint8))[0].numel() == 2048


@fresh
@pytest.mark.parametrize("other", [((9,), "int32"), ((8,), "float32")], ids=["shape", "dtype"])
def test_persistent_resource_asked_for_otherwise_is_refused(module: Any, other: tuple[tuple[int], str]) -> None:
    """Unlike the all-reduce's getters, this one says so when the living resource is not what is asked for."""
    import torch

    manager = _manager(module)
    manager.get_persistent("ends", (8,), torch.int32)
    with pytest.raises(ValueError, match="Persistent workspace 'ends' has shape"):
        manager.get_persistent("ends", other[0], getattr(torch, other[1]))


@fresh
def test_factory_that_fails_leaves_nothing(module: Any) -> None:
    """A resource whose creation failed is made at the next request."""

    def fail() -> None:
        raise MemoryError

    manager = _manager(module)
    with pytest.raises(MemoryError):
        manager.get_persistent_resource("key", fail)
    assert manager.get_persistent_resource("key", lambda: 7) == 7


@fresh_config_context
def test_reset_manager_is_no_leak(module: Any) -> None:
    """The module's own reset leaves nothing to report."""
    _manager(module)
    module.reset_workspace_manager()
