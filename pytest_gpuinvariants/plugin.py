"""pytest's hooks, and nothing else."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import pytest

from pytest_gpuinvariants import markers, order, order_child, outcome, settings
from pytest_gpuinvariants import session as state
from pytest_gpuinvariants.fresh import Singletons

_RUN = pytest.StashKey[state.Run]()


class _WorkerNode(Protocol):
    """The part of an xdist worker's controller that is read."""

    workeroutput: dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    settings.add_options(parser)


def _start(config: pytest.Config) -> state.Run:
    if _RUN not in config.stash:
        config.stash[_RUN] = state.start(config)
    return config.stash[_RUN]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose the GPU before any conftest.py can import torch."""
    _start(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers.  An xdist worker without plugin autoload has not started yet."""
    for marker in markers.MARKERS.values():
        config.addinivalue_line("markers", marker.line)
    run = _start(config)
    state.activate(run)
    if run.accounts.ledger is not None:
        config.pluginmanager.register(_Collecting(run), "gpuinvariants-collecting")
    order_child.join(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporting(run), "gpuinvariants-reporting")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In an xdist worker, tell the controller what the simulated runtime saw, and what collection has not found."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        run = session.config.stash[_RUN]
        output["gpuinvariants"] = {**run.summary.output, **run.accounts.output}
        output["gpuinvariants-order"] = order.marked(session.items)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run."""
    if _RUN in config.stash:
        state.stop(config.stash[_RUN])
        del config.stash[_RUN]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which GPU the run has, and what may be taken for it."""
    machine = config.stash[_RUN].machine
    return [machine.header, *(f"gpu: warning: {warning}" for warning in machine.warnings)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect under the run's fake."""
    with outcome.collecting(session.config.stash[_RUN]):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a wrong use of a marker into a collection error that names test and argument."""
    report = yield
    known = markers.registered(collector.config)
    wrong = [
        f"{node.nodeid}: {problem}"
        for node in report.result or ()
        if isinstance(node, pytest.Item)
        for problem in markers.problems(node, known)
    ]
    if wrong:
        report.outcome = "failed"
        report.longrepr = "\n".join(wrong)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Reach the processes that the test starts, where it asks for that."""
    with outcome.reaching(item.config.stash[_RUN], item):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip what can not be verified here, before its fixtures run; police the fixtures of a host-only test."""
    run = item.config.stash[_RUN]
    outcome.begin(run, item)
    with outcome.policed(run, item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Note the process-wide state that a fixture of wider scope than a test makes."""
    with request.config.stash[_RUN].fresh.setting_up(fixturedef, request):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Note what it undoes."""
    if _RUN in request.config.stash:
        request.config.stash[_RUN].fresh.torn_down(fixturedef)


@pytest.fixture
def gpu_singletons(request: pytest.FixtureRequest) -> Singletons:
    """Register process-wide state of your own, for a test marked ``fresh_config_context``."""
    return Singletons(request.config.stash[_RUN].fresh)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Police the test itself.  Innermost of the wrappers, so that other plugins' work is not policed."""
    with outcome.policed(item.config.stash[_RUN], item, body=True):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Let nothing be lost that fixtures have found."""
    with outcome.policed(item.config.stash[_RUN], item, teardown=True):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the report its verdict.  Outermost, so that it sees what xfail made of the outcome."""
    report = yield
    outcome.finish(item.config.stash[_RUN], item, call, report)
    return report


class _Collecting:
    """Registered with a ledger: sees what collection finds, in the process that collects."""

    def __init__(self, run: state.Run) -> None:
        self._accounts = run.accounts

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """What is left out has not vanished."""
        self._accounts.deselected(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Find what has."""
        self._accounts.collected(session)


class _Reporting:
    """Registered where results are told: not in an xdist worker."""

    def __init__(self, run: state.Run) -> None:
        self._run = run
        self._order = order.begin(run)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that skips itself; a worker sends such reports too."""
        self._run.accounts.file_skipped(self._run.config, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the verdict."""
        self._run.summary.add(report)
        self._run.accounts.add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _WorkerNode) -> None:
        """Take in what an xdist worker saw; one that crashed has nothing to say."""
        output = getattr(node, "workeroutput", {}).get("gpuinvariants", {})
        self._run.summary.merge(output)
        self._run.accounts.merge(output)
        if self._order is not None:
            self._order.modules.update(getattr(node, "workeroutput", {}).get("gpuinvariants-order", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """What is owed fails the run; with strict allowances, so does one that matched nothing."""
        run = self._run
        run.accounts.settle(session)
        owed = run.accounts.shortfalls or (run.settings.strict_allowances and run.summary.unmatched)
        if owed and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._order is not None:
            self._order.finish(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was verified, and on which hardware."""
        verbose = terminalreporter.verbosity >= 2
        lines = [*self._run.summary.lines(verbose, self._run.settings.strict_allowances), *self._run.accounts.lines()]
        if lines:
            terminalreporter.write_sep("=", "gpuinvariants")
            for line in lines:
                terminalreporter.write_line(line)
        if self._order is not None:
            self._order.tell(terminalreporter)
