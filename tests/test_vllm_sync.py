"""vLLM's own sync checker beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuinvariants import InvariantViolation, no_implicit_sync, session
from pytest_gpuinvariants.integrations import vllm_sync

if TYPE_CHECKING:
    import torch
    from vllm.utils import gpu_sync_debug
else:
    torch = pytest.importorskip("torch")
    if session.current().monitor is None:
        pytest.skip(session.current().machine.header, allow_module_level=True)
    gpu_sync_debug = pytest.importorskip("vllm.utils.gpu_sync_debug")


def test_allowed_regions_are_exemptions_and_counted() -> None:
    record = session.current().current
    assert record is not None
    with no_implicit_sync(), gpu_sync_debug.gpu_sync_allowed():
        torch.cuda.synchronize()
        torch.cuda.synchronize()
    (allowance,) = record.allowances.values()
    assert (allowance.exemption.reason, allowance.count) == (vllm_sync.REASON, 2)


def test_first_only_is_vllms_to_decide() -> None:
    def step() -> None:
        with gpu_sync_debug.gpu_sync_allowed(first_only=True):
            torch.cuda.synchronize()

    with no_implicit_sync():
        step()
    with pytest.raises(InvariantViolation), no_implicit_sync():
        step()


def test_vllms_mode_is_put_back() -> None:
    before = gpu_sync_debug._SYNC_CHECK_MODE
    with no_implicit_sync():
        with no_implicit_sync():
            assert gpu_sync_debug._SYNC_CHECK_MODE is not None
        assert gpu_sync_debug._SYNC_CHECK_MODE is not None
    assert gpu_sync_debug._SYNC_CHECK_MODE is before
    assert not vllm_sync.allows()


def test_vllms_check_is_not_switched_on_by_ours() -> None:
    """Not by a worker that is made inside of a region either, as an engine's is in a child process."""
    methods = torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.copy_
    modes: list[int] = []

    def region() -> None:
        with no_implicit_sync():
            step = gpu_sync_debug.with_gpu_sync_check(lambda: modes.append(torch.cuda.get_sync_debug_mode()))
            gpu_sync_debug.enable_gpu_sync_check()
            step()
        step()

    region()
    assert modes == [0, 0]
    assert (torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.copy_) == methods
    assert not gpu_sync_debug._sync_check_enabled
    assert not gpu_sync_debug._copy_checkers_installed


def test_a_copy_through_vllms_wrappers_is_told_where_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "copy_", gpu_sync_debug._checked_copy_)
    with pytest.raises(InvariantViolation) as caught, no_implicit_sync():
        torch.empty(4, device="cuda").copy_(torch.ones(4), non_blocking=True)
    (found,) = caught.value.findings
    assert found.stack[0].qualified == f"{__name__}.test_a_copy_through_vllms_wrappers_is_told_where_it_is_called"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_vllms_check_and_ours_both_see_a_pageable_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sync_debug, "_SYNC_CHECK_MODE", "error")
    monkeypatch.setattr(gpu_sync_debug, "_sync_check_enabled", True)
    for name in ("to", "cuda", "copy_"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))  # puts vLLM's wrappers back out
    monkeypatch.setattr(gpu_sync_debug, "_copy_checkers_installed", False)
    gpu_sync_debug._install_copy_checkers()

    def copy() -> None:
        torch.ones(4).to("cuda", non_blocking=True)

    checked = gpu_sync_debug.with_gpu_sync_check(copy)
    with no_implicit_sync(), pytest.raises(RuntimeError, match="not pinned"):
        checked()  # vLLM's wrapper raises before the copy is made
    with pytest.raises(InvariantViolation, match="pageable"), no_implicit_sync():
        copy()
