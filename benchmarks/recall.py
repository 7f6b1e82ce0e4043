"""Which of the conformance operations peers notice: torch's sync debug mode, vLLM's check, and this plugin.

    python -m benchmarks.recall                     # on the GPU that is there, else simulated

An operation that the table expects to be found counts as missed when a peer stays silent about it; one
that is expected clean counts as a false alarm when it does not.  vLLM's check is armed as its workers
arm it.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.overhead import armed, make_monitor
from pytest_gpuinvariants.invariants import no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor
from tests.conformance.operations import OPERATIONS, Action, Operation, make_machine

Peer = Callable[[Action], bool]
"""Runs an action, and says whether it was noticed."""


def _noticed(action: Action, words: tuple[str, ...]) -> bool:
    """Whether an action raises or warns in a peer's words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            action()
        except RuntimeError as error:
            if any(word in str(error) for word in words):
                return True
            raise
    return any(word in str(one.message) for one in caught for word in words)


def peers(torch: Any, monitor: Monitor) -> dict[str, Peer]:
    """The peers by name."""

    def ours(action: Action) -> bool:
        with armed(monitor, (no_implicit_sync.NAME,)) as (region,):
            action()
        return bool(region.tally.violations)

    def debug_mode(action: Action) -> bool:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            return _noticed(action, ("called a synchronizing CUDA operation",))
        finally:
            torch.cuda.set_sync_debug_mode("default")

    found: dict[str, Peer] = {"torch.cuda.set_sync_debug_mode": debug_mode}
    try:
        from vllm.utils import gpu_sync_debug
    except ImportError:
        print("vLLM is not installed: its check is left out")
    else:
        gpu_sync_debug._SYNC_CHECK_MODE = "error"
        gpu_sync_debug.enable_gpu_sync_check()

        def vllm(action: Action) -> bool:
            return _noticed(gpu_sync_debug.with_gpu_sync_check(action), ("sync detected",))

        found["VLLM_GPU_SYNC_CHECK"] = vllm
    found["no_implicit_sync"] = ours
    return found


def expected(operation: Operation) -> bool | None:
    """Whether an operation is to be found; None when it is about something that no peer is for."""
    kinds = {finding.partition(":")[0] for finding in operation.findings}
    if operation.every_thread or kinds & {"allocation", "launch"}:
        return None
    return bool(kinds)


def main() -> None:
    """Run every operation under every peer, and print who noticed it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto, real or simulate:PROFILE")
    monitor, label = make_monitor(parser.parse_args().gpu)
    import torch

    with tempfile.TemporaryDirectory() as folder:
        machine = make_machine(Path(folder))
        rows = [(one, wanted) for one in OPERATIONS if (wanted := expected(one)) is not None]
        actions = {operation.name: operation.prepare(machine) for operation, _ in rows}
        for action in actions.values():
            action()  # allocators grow, handles and kernels are loaded
        named = peers(torch, monitor)
        print(f"{label}, torch {torch.__version__}; {len(rows)} operations")
        print(f"{'operation':50}{'expected':>10}" + "".join(f"{name:>33}" for name in named))
        missed, alarms = dict.fromkeys(named, 0), dict.fromkeys(named, 0)
        for operation, wanted in rows:
            answers = {name: peer(actions[operation.name]) for name, peer in named.items()}
            for name, answer in answers.items():
                missed[name] += wanted and not answer
                alarms[name] += answer and not wanted
            cells = "".join(f"{'found' if answer else '-':>33}" for answer in answers.values())
            print(f"{operation.name:50}{'found' if wanted else '-':>10}{cells}")
    total = sum(wanted for _, wanted in rows)
    for name in named:
        print(f"{name}: {total - missed[name]} of {total} found, {alarms[name]} false alarms")


if __name__ == "__main__":
    main()
