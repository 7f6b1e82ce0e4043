"""Every recorder comes to the same verdicts: the table of operations, on the recorder that this run has."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_gpuinvariants import session
from pytest_gpuinvariants.events import Launch
from pytest_gpuinvariants.invariants import host_only, no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.scopes import Scope
from tests.conformance.operations import OPERATIONS, Action, Machine, Operation, make_machine


@pytest.fixture(scope="module")
def monitor() -> Monitor:
    found = session.current().monitor
    if found is None:
        pytest.skip("not verified: this machine has neither a GPU nor a simulated one")
    return found


@pytest.fixture(scope="module")
def machine(monitor: Monitor, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("extension"))


def _regions(every_thread: bool) -> tuple[Region, ...]:
    everything = no_implicit_sync.Options(frozenset(no_implicit_sync.KINDS))
    return (
        Region(host_only.NAME, frozenset({Launch}), host_only.check, Scope(every_thread=every_thread)),
        Region(
            no_implicit_sync.NAME,
            no_implicit_sync.wanted(everything),
            no_implicit_sync.rule(everything),
            Scope(every_thread=every_thread),
        ),
    )


def _find(action: Action, machine: Machine, monitor: Monitor, every_thread: bool = False) -> Counter[str]:
    for _ in range(2):  # allocators grow, handles and kernels are loaded
        action()
    machine.torch.cuda.synchronize()
    regions = _regions(every_thread)
    for region in regions:
        monitor.enter(region)
    try:
        action()
    finally:
        for region in reversed(regions):
            monitor.leave(region)
    found = Counter[str]()
    for region in regions:
        for finding in region.tally.violations:
            found[f"{finding.kind}:{finding.subject}"] += finding.count
    return found


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_verdicts(operation: Operation, machine: Machine, monitor: Monitor, request: pytest.FixtureRequest) -> None:
    found = _find(operation.prepare(machine), machine, monitor, operation.every_thread)
    verdict = ", ".join(sorted(found.elements())) or "clean"
    request.node.user_properties.append(("verdict", verdict))
    assert verdict == (", ".join(sorted(operation.findings)) or "clean")


@pytest.mark.parametrize("shape", [(), (3,), (2000,), (3, 0)], ids=str)
@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_printing_waits(
    shape: tuple[int, ...], kind: str, machine: Machine, monitor: Monitor, request: pytest.FixtureRequest
) -> None:
    """How often depends on the values, and kernels that would compute them do not run everywhere."""
    values = machine.torch.zeros(shape, dtype=getattr(machine.torch, kind), device="cuda")
    found = _find(lambda: str(values), machine, monitor)
    request.node.user_properties.append(("verdict", ", ".join(f"{count} x {name}" for name, count in found.items())))
    assert set(found) == ({"sync:cudaStreamSynchronize"} if values.numel() else set())
