"""What an armed region costs: bare against armed, alternating in one process.

    python -m benchmarks.overhead                        # on the GPU that is there, else simulated
    python -m benchmarks.overhead --gpu simulate:h200
    python -m benchmarks.overhead --processes 9 --pairs 21
    python -m benchmarks.overhead --events 10000000      # memory over so many findings, instead

Each pair times a batch of calls bare and the same batch armed, each first in turn.  A row shows the median
of the pairs' ratios with its 95% confidence interval, by order statistics: many short pairs tell two
per cent from none, where a few long ones only tell how the machine drifts.

Where a process lies in memory makes as much of a difference as the recorder does, in either direction.  With
``--processes`` each measures all rows anew, and a row shows the median of their medians with its interval.

A batch begins with one call that is not part of it: there an armed region tells each finding to Python,
with its stack; the same finding again is only counted.  What that first call takes is a column of its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuinvariants.events import Launch
from pytest_gpuinvariants.hardware.machine import MachineKind, choose
from pytest_gpuinvariants.hardware.simulate.runtime import opened
from pytest_gpuinvariants.integrations import jit
from pytest_gpuinvariants.invariants import host_only, no_implicit_sync
from pytest_gpuinvariants.monitor import Monitor, Region
from pytest_gpuinvariants.recorders.choice import make_recorder

if TYPE_CHECKING:
    from suites.vllm_attention.harness import Planner

Work = Callable[[], object]
_LAUNCHES = 1000
_PLANS = 100


@dataclass(frozen=True)
class Row:
    """One measurement; times in microseconds a call."""

    work: str
    armed_with: str
    bare_us: float
    armed_us: float
    first_us: float
    ratio: float
    low: float
    high: float
    pairs: int
    findings_per_call: float


def _sync_region() -> Region:
    options = no_implicit_sync.Options()
    return Region(no_implicit_sync.NAME, no_implicit_sync.wanted(options), no_implicit_sync.rule(options))


def _launch_region() -> Region:
    return Region(host_only.NAME, frozenset({Launch}), host_only.check)


REGIONS: dict[str, Callable[[], Region]] = {
    no_implicit_sync.NAME: _sync_region,
    host_only.NAME: _launch_region,
}


def make_monitor(choice: str) -> tuple[Monitor, str]:
    """The recorder of this machine, before torch is imported, and the GPU's name."""
    machine = choose(choice, used=True)
    simulated = machine.kind is MachineKind.SIMULATED
    if not simulated and machine.kind is not MachineKind.REAL:
        raise SystemExit(f"nothing to measure on: {machine.why}")
    if runtime := opened():
        os.environ.update(jit.simulated_environment(runtime.profile, runtime.libraries, os.environ))
    return Monitor(make_recorder(simulated)), machine.label


@contextmanager
def armed(monitor: Monitor, names: tuple[str, ...]) -> Iterator[list[Region]]:
    """Regions of these invariants, in force."""
    regions = [REGIONS[name]() for name in names]
    for region in regions:
        monitor.enter(region)
    try:
        yield regions
    finally:
        for region in reversed(regions):
            monitor.leave(region)


def interval(values: list[float]) -> tuple[float, float]:
    """The 95% confidence interval of the median of independent values, whatever their distribution."""
    ordered = sorted(values)
    half = 1.96 * math.sqrt(len(ordered)) / 2
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[min(len(ordered) - 1, math.ceil(middle + half))]


def _time(work: Work, calls: int = 1) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        work()
    return (time.perf_counter_ns() - start) / calls / 1000


def _first_and_rest(work: Work, calls: int) -> list[float]:
    """Of one line for both: a finding from another line would be another, to be told with its stack."""
    return [_time(work, number) for number in (1, calls)]


def compare(
    monitor: Monitor, title: str, work: Work, calls: int, settle: Work, names: tuple[str, ...], pairs: int
) -> Row:
    """Time ``work`` bare and armed, ``pairs`` times."""
    bare: list[float] = []
    policed: list[float] = []
    firsts: list[float] = []
    found = 0
    for pair in range(-1, pairs):  # the first warms up
        times: dict[bool, float] = {}
        for arm in (bool(pair % 2), not pair % 2):
            settle()
            if arm:
                with armed(monitor, names) as regions:
                    first, times[arm] = _first_and_rest(work, calls)
                firsts.append(first)
                found += sum(finding.count for region in regions for finding in region.tally.violations)
            else:
                _, times[arm] = _first_and_rest(work, calls)
        if pair >= 0:
            bare.append(times[False])
            policed.append(times[True])
    ratios = [with_rule / without for with_rule, without in zip(policed, bare, strict=True)]
    low, high = interval(ratios)
    return Row(
        title,
        " + ".join(names),
        round(statistics.median(bare), 3),
        round(statistics.median(policed), 3),
        round(statistics.median(firsts), 3),
        round(statistics.median(ratios), 4),
        round(low, 4),
        round(high, 4),
        pairs,
        round(found / ((pairs + 1) * (calls + 1)), 3),
    )


def _planner(pinned: bool) -> Planner:
    from suites.vllm_attention.harness import NOPE_BF16, SMALL, Planner

    planner = Planner(NOPE_BF16, SMALL)
    if pinned:
        planner.pin()
    planner.warm_up()
    return planner


def measure(monitor: Monitor, pairs: int) -> list[Row]:
    """All rows."""
    import torch

    from suites.vllm_attention.harness import BATCHES, SMALL

    rows: list[Row] = []
    lens = torch.tensor(BATCHES["many-tokens"](SMALL), dtype=torch.int32)
    settle = torch.cuda.synchronize
    sync, launch = no_implicit_sync.NAME, host_only.NAME
    for title, pinned in (("plan() as released", False), ("plan() from pinned tensors", True)):
        planner = _planner(pinned)

        def plan(planner: Planner = planner) -> None:
            planner.plan_tensor(lens)

        for names in ((sync,), (launch, sync)):
            rows.append(compare(monitor, title, plan, _PLANS, settle, names, pairs))
    values = torch.ones(1024, device="cuda")
    for names in ((sync,), (launch,), (launch, sync)):
        rows.append(compare(monitor, "elementwise launch", lambda: values.add_(1), 2 * _LAUNCHES, settle, names, pairs))
    rows.append(compare(monitor, "stream synchronize", settle, _LAUNCHES, settle, (sync,), pairs))
    return rows


def entering(monitor: Monitor, times: int = 50) -> float:
    """Microseconds to arm and disarm a region."""

    def once() -> None:
        with armed(monitor, (no_implicit_sync.NAME,)):
            pass

    once()
    return _time(once, times)


def memory(monitor: Monitor, events: int) -> dict[str, int]:
    """Peak memory after a first thousand findings, and after so many more at one place."""
    import torch

    stream = torch.cuda.current_stream()
    with armed(monitor, (no_implicit_sync.NAME,)) as (region,):
        for _ in range(_LAUNCHES):
            stream.synchronize()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(events):
            stream.synchronize()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counted = sum(finding.count for finding in region.tally.violations)
    return {"events": counted, "peak_kib_before": before, "peak_kib_after": after}


def pooled(runs: list[list[Row]]) -> list[Row]:
    """What several processes have measured, row by row: medians, and the interval of the median ratio."""
    rows: list[Row] = []
    for same in zip(*runs, strict=True):
        ratios = [row.ratio for row in same]
        low, high = interval(ratios)
        middle = {
            field: statistics.median(getattr(row, field) for row in same)
            for field in ("bare_us", "armed_us", "first_us", "findings_per_call")
        }
        rows.append(replace(same[0], ratio=statistics.median(ratios), low=low, high=high, **middle))
    return rows


def in_processes(count: int, gpu: str, pairs: int) -> tuple[str, list[Row]]:
    """Measure in so many processes, one after another; the GPU's name, and the pooled rows."""
    runs: list[list[Row]] = []
    label = ""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rows.json")
        command = [sys.executable, "-m", __spec__.name, "--gpu", gpu, "--pairs", str(pairs), "--json", str(out)]
        for _ in range(count):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            told = json.loads(out.read_text())
            label = told["gpu"]
            runs.append([Row(**row) for row in told["rows"]])
            print([row.ratio for row in runs[-1]], flush=True)
    return label, pooled(runs)


def show(rows: list[Row]) -> None:
    """Print a table."""
    titles = f"{'bare us':>9}{'armed us':>9}{'first us':>9}{'ratio':>8}  95% interval    findings a call"
    print(f"{'work':28}{'armed with':32}{titles}")
    for row in rows:
        print(
            f"{row.work:28}{row.armed_with:32}{row.bare_us:9.2f}{row.armed_us:9.2f}{row.first_us:9.0f}{row.ratio:8.4f}"
            f"  {row.low:.4f}-{row.high:.4f}  {row.findings_per_call}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="auto", help="auto, real or simulate:PROFILE")
    parser.add_argument("--pairs", type=int, default=101)
    parser.add_argument("--processes", type=int, default=1, help="measure in so many processes, one after another")
    parser.add_argument("--events", type=int, default=0, help="measure memory over so many findings instead")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    if arguments.processes > 1:
        label, rows = in_processes(arguments.processes, arguments.gpu, arguments.pairs)
        show(rows)
        return
    monitor, label = make_monitor(arguments.gpu)
    import torch

    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(1)  # waiting for helper threads is most of the noise
    torch.ones(1, device="cuda")
    gc.disable()
    print(f"{label}, torch {torch.__version__}")
    if arguments.events:
        print(json.dumps(memory(monitor, arguments.events)))
        return
    print(f"arming and disarming a region: {entering(monitor):.0f} us")
    rows = measure(monitor, arguments.pairs)
    show(rows)
    if arguments.json:
        with open(arguments.json, "w") as out:
            json.dump({"gpu": label, "torch": torch.__version__, "rows": [asdict(row) for row in rows]}, out, indent=1)


if __name__ == "__main__":
    main()
