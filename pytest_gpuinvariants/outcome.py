"""From a test's markers to its verdict: what is skipped, what is armed, what the report says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest

from pytest_gpuinvariants import markers, regions, session
from pytest_gpuinvariants.events import Launch
from pytest_gpuinvariants.findings import InvariantViolation, section
from pytest_gpuinvariants.hardware import gates
from pytest_gpuinvariants.hardware.machine import Machine, MachineKind
from pytest_gpuinvariants.invariants import host_only, no_implicit_sync
from pytest_gpuinvariants.known_faults import KnownFault
from pytest_gpuinvariants.monitor import Region
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError
from pytest_gpuinvariants.report import verdicts
from pytest_gpuinvariants.scopes import Scope


def _capability(machine: Machine) -> tuple[int, int] | None:
    """The device's compute capability; on a real one, that of the device now current, which torch knows."""
    if machine.kind is not MachineKind.REAL:
        return machine.capability
    import torch

    capability: tuple[int, int] = torch.cuda.get_device_capability()
    return capability


def refusal(run: session.Run, item: pytest.Item) -> str | None:
    """Why a test can not be verified on this machine; None when it can.  Looks at the GPU only now."""
    sm90 = markers.arguments(item, "requires_sm90")
    if sm90 is not None:
        reason = gates.refusal_sm90(
            run.machine,
            _capability(run.machine),
            or_newer=bool(sm90.get("or_newer", False)),
            host_only=bool(sm90.get("host_only", False)),
        )
        if reason is not None:
            return reason
    if markers.arguments(item, no_implicit_sync.NAME) is not None:
        return run.unverifiable
    return None


def skip_unverifiable(run: session.Run, item: pytest.Item) -> None:
    """Skip a test that can not be verified here, at its own place in the file."""
    if reason := refusal(run, item):
        raise pytest.skip.Exception(reason, _use_item_location=True)


@contextmanager
def _no_launches(run: session.Run) -> Iterator[None]:
    assert run.monitor is not None
    assert run.current is not None
    region = Region(host_only.NAME, frozenset({Launch}), host_only.check)
    try:
        run.monitor.enter(region)
    except RecorderUnavailableError as error:
        pytest.skip(f"not verified: {error}")
    run.current.armed(host_only.NAME)
    try:
        yield
    finally:
        run.monitor.leave(region)
        run.current.findings += region.tally.violations
        run.current.unraised += region.tally.violations


@contextmanager
def _no_sync(run: session.Run, arguments: dict[str, object]) -> Iterator[None]:
    policing = regions.arm(run, arguments, Scope(every_thread=arguments.get("threads") == "all"))
    try:
        yield
    except BaseException:
        regions.settle(policing, leaving=True)
        raise
    regions.settle(policing, leaving=False)


def _warm_up(run: session.Run, item: pytest.Item, arguments: dict[str, object]) -> None:
    """Call the test before its rule counts: builds, lazy handles and allocators' growth happen now."""
    times = arguments.get("warmup", 0)
    assert isinstance(times, int)
    if times and type(item) is not pytest.Function:
        pytest.fail(f"no_implicit_sync: argument 'warmup' is for test functions, not for {type(item).__name__}")
    assert run.current is not None
    run.current.warming_up = True
    try:
        for _ in range(times):
            with _no_sync(run, arguments):
                item.runtest()
    finally:
        run.current.warming_up = False


@contextmanager
def recorded(run: session.Run, item: pytest.Item) -> Iterator[None]:
    """One record for a test, its fixtures included; processes that they start can be reached."""
    run.current = session.TestRecord()
    sync = markers.arguments(item, no_implicit_sync.NAME)
    try:
        with run.children.reached() if sync is not None and sync.get("children") else nullcontext():
            yield
    finally:
        run.current = None


@contextmanager
def policed(run: session.Run, item: pytest.Item, body: bool) -> Iterator[None]:
    """Arm a test's invariants around its body, or around its set-up.

    Raises:
        InvariantViolation: one does not hold, and no other exception is on its way.
    """
    record = run.current
    assert record is not None
    sm90 = markers.arguments(item, "requires_sm90")
    sync = markers.arguments(item, no_implicit_sync.NAME)
    with ExitStack() as guards:
        if sm90 is not None:
            record.armed("requires_sm90")
            if sm90.get("host_only") and run.monitor is not None:
                guards.enter_context(_no_launches(run))
        if body and sync is not None:
            _warm_up(run, item, sync)
            guards.enter_context(_no_sync(run, sync))
        yield
    if record.unraised:
        names = dict.fromkeys(found.invariant for found in record.unraised)
        raise InvariantViolation(" and ".join(names), tuple(record.unraised))


def _judge_fault(record: session.TestRecord, item: pytest.Item, violated: bool, report: pytest.TestReport) -> bool:
    """Apply ``known_fault``; whether the report is now its expected failure."""
    arguments = markers.arguments(item, "known_fault")
    fault = KnownFault(**arguments) if arguments is not None else None  # type: ignore[arg-type]
    if fault is None or not fault.applies or report.outcome == "skipped":
        return False
    mismatch = fault.mismatch(record.findings)
    if report.outcome == "failed" and violated and mismatch is None:
        report.outcome = "skipped"
        lines = "; ".join(found.line for found in record.findings)
        report.wasxfail = f"known fault: {fault.description}: {lines}"
        report.sections.append(("known fault", section(record.findings)))
        return True
    if report.outcome == "passed":
        report.outcome = "failed"
        report.longrepr = f"known_fault (strict): {mismatch}\n{fault.description}"
    else:
        text = mismatch if violated else "the test fails, but not with the known fault"
        report.sections.append(("known_fault (strict)", f"{text}\n{fault.description}"))
    return False


def _skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "expected to fail" if hasattr(report, "wasxfail") else "skipped"


def finish(run: session.Run, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Give the report of the deciding phase its verdict, its properties and its sections."""
    record = run.current
    decides = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
    if record is None or not decides:
        return
    stated = any(markers.arguments(item, name) is not None for name in markers.MARKERS)
    if not stated and not record.invariants and not _refused(report):
        return
    violated = call.excinfo is not None and isinstance(call.excinfo.value, InvariantViolation)
    if violated:
        _lead_with_the_line_at_fault(report, call)
    known = _judge_fault(record, item, violated, report)
    verdict = verdicts.of_outcome(
        report.outcome,
        run.machine.label,
        violated=violated,
        warned=record.warned,
        known_fault=known,
        reason=_skip_reason(report),
    )
    properties: list[verdicts.Property] = [(verdicts.GPU, run.machine.label)]
    properties += [(verdicts.INVARIANT, name) for name in record.invariants]
    properties += verdicts.of_findings(verdicts.FINDING, record.findings)
    properties += verdicts.of_findings(verdicts.NOTE, record.notes)
    properties += verdicts.of_findings(verdicts.WARMUP, record.warmup)
    properties += verdicts.of_allowances(record.allowances)
    properties.append((verdicts.VERDICT, verdict))
    item.user_properties += properties
    report.user_properties += properties
    error = call.excinfo.value if call.excinfo is not None else None
    told = error.findings if isinstance(error, InvariantViolation) else ()
    if untold := [found for found in record.findings if found not in told]:
        report.sections.append(("invariants that do not hold", section(untold)))
    if record.notes:
        report.sections.append(("notes", section(record.notes)))
    covered = [found for allowance in record.allowances for found in allowance.calls.violations]
    if covered:
        report.sections.append(("allowed calls", section(covered)))


def _lead_with_the_line_at_fault(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Let the short summary and JUnit's message begin with the finding, not with the exception's class."""
    assert call.excinfo is not None
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = str(call.excinfo.value)


def _refused(report: pytest.TestReport) -> bool:
    """Whether a region inside the test skipped it as not verifiable."""
    return report.outcome == "skipped" and _skip_reason(report).startswith(verdicts.NOT_VERIFIED)
