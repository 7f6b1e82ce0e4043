"""From a test's markers to its verdict: what is skipped, what is armed, what the report says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest

from pytest_gpuinvariants import context_independence, imports, markers, regions, session
from pytest_gpuinvariants.events import Launch
from pytest_gpuinvariants.findings import Finding, InvariantViolation, section, unverified
from pytest_gpuinvariants.hardware import gates
from pytest_gpuinvariants.hardware.facts import MachineFacts
from pytest_gpuinvariants.hardware.machine import Machine, MachineKind
from pytest_gpuinvariants.integrations import torch_build, torch_repr
from pytest_gpuinvariants.invariants import fresh_config_context, host_only, no_implicit_sync, no_import_side_effects
from pytest_gpuinvariants.known_faults import KnownFault
from pytest_gpuinvariants.monitor import Region
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.report import verdicts
from pytest_gpuinvariants.scopes import Scope


def _host_only(item: pytest.Item) -> bool:
    return gates.host_only(markers.stated_gates(item))


def _machine(run: session.Run, item: pytest.Item) -> Machine:
    """What the test sees: the fake when it is host-only, else the true card."""
    return run.machine.seen(_host_only(item))


def refusal(run: session.Run, item: pytest.Item) -> str | None:
    """Why a test can not be verified on this machine; None when it can.  Looks at the GPU only now."""
    facts = MachineFacts(_machine(run, item))
    if (stated := markers.stated_gates(item)) and (reason := gates.refusal(facts, stated)):
        return reason
    if markers.arguments(item, no_implicit_sync.NAME) is not None:
        return run.unverifiable
    imported = markers.arguments(item, no_import_side_effects.NAME)
    return imports.refusal(run, imported) if imported is not None else None


def begin(run: session.Run, item: pytest.Item) -> None:
    """Start the record of an attempt; skip a test that can not be verified here, fail one that is marked wrongly."""
    run.current = TestRecord(host_only=_host_only(item))
    if run.current.host_only:
        run.enter_fake()
    # A rerun starts anew.
    item.user_properties[:] = [one for one in item.user_properties if not one[0].startswith(verdicts.PREFIX)]
    if run.machine.kind is MachineKind.SIMULATED:
        torch_repr.install()
    # Again, since a conftest can add markers after the collection that was checked.
    if problems := markers.problems(item, run.known_markers):
        pytest.fail("\n".join(problems), pytrace=False)
    if reason := refusal(run, item):
        regions.skip(reason)
    fresh = markers.arguments(item, fresh_config_context.NAME)
    if fresh is not None:
        run.fresh.begin(item, fresh, run.current)


@contextmanager
def _no_launches(run: session.Run) -> Iterator[None]:
    assert run.monitor is not None
    assert run.current is not None
    region = Region(host_only.NAME, frozenset({Launch}), host_only.check)
    regions.enter(run, region)
    try:
        yield
    finally:
        run.monitor.leave(region)
        run.current.findings += region.tally.violations
        run.current.unraised += region.tally.violations
    if region.tally.doubts and not region.tally.violations:
        regions.skip(f"not verified: {unverified(region.tally.doubts)}")


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
def collecting(run: session.Run) -> Iterator[None]:
    """Let test modules see the run's fake while they are imported: what they make of it is theirs."""
    run.enter_fake()
    try:
        yield
    finally:
        run.leave_fake()


@contextmanager
def reaching(run: session.Run, item: pytest.Item) -> Iterator[None]:
    """Let processes that a test and its fixtures start be reached, where its marker asks for them."""
    sync = markers.arguments(item, no_implicit_sync.NAME)
    if _host_only(item):
        run.enter_fake()
    try:
        with run.children.reached() if sync is not None and sync.get("children") is True else nullcontext():
            yield
    finally:
        run.leave_fake()
        run.fresh.detach()
        run.current = None


def _raise_what_is_left(record: TestRecord) -> None:
    if record.unraised:
        names = dict.fromkeys(found.invariant for found in record.unraised)
        raise InvariantViolation(" and ".join(names), tuple(record.unraised))


@contextmanager
def policed(run: session.Run, item: pytest.Item, body: bool = False, teardown: bool = False) -> Iterator[None]:
    """Arm a test's invariants around its body, its set-up or its teardown.

    Raises:
        InvariantViolation: one does not hold, and no other exception but a skip is on its way.
    """
    record = run.current
    assert record is not None
    stated = markers.stated_gates(item)
    on_gpu = dict.fromkeys(name for name, _ in stated if gates.GATES[name].gpu)
    sync = markers.arguments(item, no_implicit_sync.NAME)
    imported = markers.arguments(item, no_import_side_effects.NAME)
    fresh = markers.arguments(item, fresh_config_context.NAME)
    try:
        if body and imported is not None:
            imports.check(run, imported)
        if body and fresh is not None and "resolvers" in fresh:
            context_independence.check_all(fresh["resolvers"])
        with ExitStack() as guards:
            if on_gpu and not teardown:
                for name in on_gpu:
                    record.armed(name)
                if gates.host_only(stated) and run.monitor is not None:
                    guards.enter_context(_no_launches(run))
            if body and sync is not None:
                _warm_up(run, item, sync)
                guards.enter_context(_no_sync(run, sync))
            try:
                yield
            finally:
                if teardown:
                    run.fresh.end()
                problem = run.fresh.reads() if body else None
        if problem is not None and not record.unraised:
            regions.skip(f"not verified: {problem}")
    except pytest.skip.Exception:
        _raise_what_is_left(record)  # a test that skips itself does not undo what it did
        raise
    finally:
        record.finished |= body
        left = run.leave_fake() if teardown else []
        outlives = f"the fake outlives the test: {'; '.join(left)}"
        if left and (error := sys.exception()) is not None:
            error.add_note(outlives)
    if left:
        pytest.fail(outlives, pytrace=False)
    _raise_what_is_left(record)


def _judge_fault(record: TestRecord, item: pytest.Item, violated: bool, report: pytest.TestReport) -> None:
    """Apply ``known_fault`` to the report of the test's body."""
    arguments = markers.arguments(item, "known_fault")
    fault = KnownFault(**arguments) if arguments is not None else None  # type: ignore[arg-type]
    if fault is None or not fault.applies or report.outcome == "skipped":
        return
    guarded = markers.arguments(item, fresh_config_context.NAME) is not None
    if report.when == "call" and report.outcome == "passed" and guarded and not record.findings:
        record.fault_undecided = True  # what a test leaves is known when it is torn down
        return
    mismatch = fault.mismatch(record.findings)
    if mismatch is None and report.outcome == "passed":
        record.known_fault = True  # as a warning, or caught by the test: no failure to expect
    elif mismatch is None and violated:
        record.known_fault = True
        report.outcome = "skipped"
        lines = "; ".join(found.line for found in record.findings)
        report.wasxfail = f"known fault: {fault.description}: {lines}"
        report.sections.append(("known fault", section(record.findings)))
    elif report.outcome == "passed":
        report.outcome = "failed"
        report.longrepr = f"known_fault (strict): {mismatch}\n{fault.description}"
    else:
        text = mismatch if violated else "the test fails, but not with the known fault"
        report.sections.append(("known_fault (strict)", f"{text}\n{fault.description}"))


def _is_undecided(record: TestRecord, item: pytest.Item) -> bool:
    """Whether the teardown of a guarded test says something about its known fault."""
    late = any(found not in record.told for found in record.findings)
    return record.fault_undecided or (late and markers.arguments(item, fresh_config_context.NAME) is not None)


def _skip_reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "expected to fail" if hasattr(report, "wasxfail") else "skipped"


def _lead_with_the_line_at_fault(report: pytest.TestReport, error: InvariantViolation) -> None:
    """Let the short summary and JUnit's message begin with the finding, not with the exception's class."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = str(error)


def _label(machine: Machine, device: int) -> str:
    """The hardware of a verdict; state of the process can be policed without any."""
    if machine.kind not in (MachineKind.REAL, MachineKind.SIMULATED):
        return "a host without a GPU"
    return MachineFacts(machine, device).name  # of several real cards, the one that the test has used


def finish(run: session.Run, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Give the report of a phase its sections; that of the last one, the verdict and all properties."""
    record = run.current
    if record is None:
        return
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, InvariantViolation):
        record.reported = True
        _lead_with_the_line_at_fault(report, error)
    if record.finished and (report.when == "call" or _is_undecided(record, item)):
        _judge_fault(record, item, isinstance(error, InvariantViolation), report)
    if not record.known_fault or report.outcome == "failed":
        record.note_outcome(report.outcome, _skip_reason(report) if report.outcome == "skipped" else "")
    if report.when == "call":
        record.device = torch_build.current_device()  # before a fixture makes another one current
    if report.when != "setup":
        told = error.findings if isinstance(error, InvariantViolation) else ()
        _add_sections(record, told, report)
    # The exception on its way took precedence; what it kept back is in the report's sections.
    record.unraised.clear()
    if report.when == "teardown":
        label = _label(_machine(run, item), record.device)
        if record.fakes:
            label = f"{label} faking {', '.join(dict.fromkeys(record.fakes))}"
        verdict = record.verdict(label)
        fake = run.machine.fake
        if verdict is None and fake is not None and record.outcome == "passed":
            verdict = f"{verdicts.NOT_VERIFIED}: passed without a gate on {label}, collected as {fake.label}"
            record.reason = verdict
        stated = any(markers.arguments(item, name) is not None for name in markers.MARKERS)
        refused = record.refused or record.reason.startswith(verdicts.NOT_VERIFIED)
        if verdict is None or not (stated or record.invariants or refused):
            return
        properties = [(verdicts.GPU, label), *record.properties, (verdicts.VERDICT, verdict)]
        item.user_properties += properties
        report.user_properties += properties


def _add_sections(record: TestRecord, told: tuple[Finding, ...], report: pytest.TestReport) -> None:
    known = {*told, *record.told}
    if untold := [found for found in record.findings if found not in known]:
        report.sections.append(("invariants that do not hold", section(untold)))
    if notes := [found for found in record.notes if found not in known]:
        report.sections.append(("notes", section(notes)))
    record.told += (*told, *untold, *notes)
    if report.when != "call":
        return
    if record.config_reads:
        lines = (f"{count} x {reader}" for reader, count in record.config_reads.items())
        report.sections.append(("config reads outside of a context", "\n".join(lines)))
    if record.inherited:
        changed = "\n".join(record.inherited)
        report.sections.append(("variables of the fresh process that are not as the run began", changed))
    calls = [allowance.calls for allowance in record.allowances.values()]
    if covered := [found for tally in calls for found in (*tally.violations, *tally.doubts)]:
        report.sections.append(("allowed calls", section(covered)))
