"""The state of the run, for hooks and for regions inside tests."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_gpuinvariants import allowances, environment, markers, scan, settings
from pytest_gpuinvariants.allowances import Allowance
from pytest_gpuinvariants.children.channel import Setup
from pytest_gpuinvariants.children.child import follow
from pytest_gpuinvariants.children.parent import Children
from pytest_gpuinvariants.events import Launch, MulticastRequest
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.fresh import Fresh
from pytest_gpuinvariants.hardware.fakes import Fake, layered
from pytest_gpuinvariants.hardware.machine import Machine, MachineError, MachineKind, choose
from pytest_gpuinvariants.integrations import multicast, seams, vllm_sync
from pytest_gpuinvariants.invariants import host_only
from pytest_gpuinvariants.invariants import multicast as multicast_rule
from pytest_gpuinvariants.monitor import Monitor
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.recorders import stacks
from pytest_gpuinvariants.recorders.choice import make_recorder
from pytest_gpuinvariants.report import ledger
from pytest_gpuinvariants.report.accounts import Accounts
from pytest_gpuinvariants.report.summary import Summary
from pytest_gpuinvariants.settings import Settings

if TYPE_CHECKING:
    from pytest_gpuinvariants.integrations.faking import Faking


@dataclass(eq=False)
class Run:
    """The run: its options, its GPU, its recorder (None: none for this machine), and the test under way."""

    config: pytest.Config
    settings: Settings
    machine: Machine
    monitor: Monitor | None = None
    current: TestRecord | None = None
    summary: Summary = field(default_factory=Summary)
    accounts: Accounts = field(default_factory=Accounts)
    environment: environment.Before = field(default_factory=dict)
    faking: Faking | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment that the run began with."""
    guards: ExitStack = field(default_factory=ExitStack)
    """What is in place for the whole run, and is taken away at its end."""

    def __post_init__(self) -> None:
        simulated = self.machine.kind is MachineKind.SIMULATED
        self.fresh = Fresh(self.settings.full_stacks)
        self.summary.remarks = self.fresh.remarks
        self.children = Children(Setup(self.machine.profile if simulated else None, self.settings.full_stacks))

    def enter_fake(self) -> None:
        """Lay the run's fake over the card; does nothing without one, or when it is on."""
        if self.machine.fake is not None and self.faking is None:
            self._lay(self.machine.fake)

    def _lay(self, fake: Fake) -> None:
        from pytest_gpuinvariants.integrations import refusing
        from pytest_gpuinvariants.integrations.faking import Faking

        self.faking = Faking(fake)
        self.faking.also(refusing.install(self.refuse_launch))
        if self.machine.kind is MachineKind.SIMULATED:
            from pytest_gpuinvariants.hardware.simulate.runtime import opened

            runtime = opened()
            assert runtime is not None
            runtime.refuse(True)
            self.faking.also(functools.partial(runtime.refuse, False))

    def leave_fake(self) -> list[str]:
        """Take it off; what still holds it."""
        faking, self.faking = self.faking, None
        if faking is None:
            return []
        faking.leave()
        return faking.leftovers()

    @contextmanager
    def faked(self, fake: Fake) -> Iterator[None]:
        """Another fake in the place of the run's, for a part of a test.

        Raises:
            pytest.fail.Exception: something still holds it at the end, and no other exception is on its way.
        """
        outer = self.faking.fake if self.faking is not None else None
        left = self.leave_fake()
        whole = layered([outer, fake] if outer is not None else [fake])
        assert whole is not None
        self._lay(whole)
        if self.current is not None:
            self.current.fakes.append(fake.label)
        try:
            yield
        finally:
            left += self.leave_fake()
            if outer is not None:
                self._lay(outer)
            outlives = f"the fake outlives its block: {'; '.join(left)}"
            if left and (error := sys.exception()) is not None:
                error.add_note(outlives)
        if left:
            pytest.fail(outlives, pytrace=False)

    def refuse_launch(self, kernel: str, library: str) -> NoReturn:
        """Take down a kernel that was about to be launched under a fake: its test fails, whatever it makes of it.

        Raises:
            LaunchRefusedError: always.
        """
        from pytest_gpuinvariants.integrations.refusing import LaunchRefusedError

        assert self.faking is not None
        test = os.environ.get("PYTEST_CURRENT_TEST", "collection").rpartition(" (")[0] or "collection"
        thread = stacks.current_thread()
        where = stacks.capture(self.settings.full_stacks)
        event = Launch(api="launch", kernel=kernel, library=library, thread=thread, stack=where)
        found = host_only.refused(event, self.faking.fake.label, test)
        if self.current is not None:
            self.current.findings.append(found)
            self.current.unraised.append(found)
        raise LaunchRefusedError(found.message)

    def exemptions(self, found: Finding) -> tuple[Allowance, ...]:
        """What the ini file and vLLM itself exempt a finding by, with the counts of the test under way."""
        exemptions = [one for one in self.settings.allowances if one.matches(found)]
        if allowances.VLLM.matches(found) and vllm_sync.allows():
            exemptions.insert(0, allowances.VLLM)
        record = self.current or TestRecord()
        return tuple(record.covered_by(one) for one in exemptions)

    def exempt(self, found: Finding) -> Finding | None:
        """What is left of a child's finding when the run's exemptions have taken theirs; None: nothing."""
        left = found.count
        for allowance in self.exemptions(found):
            left -= allowance.takes(found, left)
        return replace(found, count=left) if left else None

    def refuse_multicast(self, label: str) -> None:
        """Take down who asked for NVLink multicast, in the test's record and in the summary.

        Raises:
            MulticastRefusedError: always.
        """
        thread = stacks.current_thread()
        request = MulticastRequest(api=label, thread=thread, stack=stacks.capture(self.settings.full_stacks))
        self.summary.refused[label] += 1
        if self.current is not None:
            self.current.notes.append(multicast_rule.check(request))
        raise multicast.refusal(label)

    @functools.cached_property
    def known_markers(self) -> frozenset[str]:
        """Names of all markers that anyone has declared."""
        return markers.registered(self.config)

    @property
    def unverifiable(self) -> str | None:
        """Why no event-based invariant can be checked on this machine; None when it can."""
        return None if self.monitor is not None else f"not verified: {self.machine.absence}"


_runs: list[Run] = []  # a stack: pytester runs a session inside a session


def start(config: pytest.Config) -> Run:
    """Resolve the options and find or simulate the GPU.

    Raises:
        pytest.UsageError: an option is wrong, or the GPU that was asked for can not be had.
    """
    try:
        chosen = settings.resolve(config)
        accounts = _accounts(config, chosen)
        machine = choose(chosen.gpu, chosen.gpu != "auto" or scan.uses_invariants(config))
    except (MachineError, settings.SettingError) as error:
        raise pytest.UsageError(str(error)) from error
    run = Run(config, chosen, machine, accounts=accounts)
    run.summary.standing = tuple(exemption.label for exemption in chosen.allowances)
    simulated = machine.kind is MachineKind.SIMULATED
    if simulated:
        _simulated(run)
    if simulated or machine.kind is MachineKind.REAL:
        seams.watch_lazy_gates()
        run.monitor = Monitor(make_recorder(simulated, chosen.full_stacks), run.exemptions)
        if not chosen.allow_multicast:
            run.guards.callback(environment.restore, environment.set_variables(multicast.ENVIRONMENT))
            run.guards.enter_context(multicast.install(run.refuse_multicast))
    run.variables = dict(os.environ)
    return run


def _accounts(config: pytest.Config, chosen: Settings) -> Accounts:
    if not chosen.ledger:
        if chosen.ledger_update:
            raise settings.SettingError("--gpu-ledger-update: there is no ledger to update: give --gpu-ledger too")
        return Accounts(chosen.require_verified)
    try:
        expected = ledger.read(config.rootpath / chosen.ledger, must_exist=not chosen.ledger_update)
    except ledger.LedgerError as error:
        raise settings.SettingError(f"--gpu-ledger: {error}") from error
    return Accounts(chosen.require_verified, expected, chosen.ledger_update)


def activate(run: Run) -> None:
    """Make a run the current one, for regions inside tests."""
    _runs.append(run)


def is_running() -> bool:
    """Whether a run is under way in this process."""
    return bool(_runs)


def _before_fork() -> None:
    for run in _runs:
        if run.monitor is not None:
            run.monitor.before_fork()


def _after_fork() -> None:
    for run in _runs:
        if run.monitor is not None:
            run.monitor.after_fork()


def _forked() -> None:
    """In a process forked off a test: what was armed there is not armed here, but for ``children=True``."""
    for run in _runs:
        if run.monitor is not None:
            follow(run.monitor, run.children.reader)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)


def _simulated(run: Run) -> None:
    # Imported here: runs without a simulated card pay nothing for it.
    from pytest_gpuinvariants.hardware.simulate.runtime import opened
    from pytest_gpuinvariants.integrations import jit

    runtime = opened()
    assert runtime is not None
    variables = jit.simulated_environment(runtime.profile, runtime.libraries, os.environ)
    run.environment = environment.set_variables(variables)
    run.summary.watch(runtime)


def stop(run: Run) -> None:
    """End a run and put its environment variables back.  A simulated GPU stays until the process ends."""
    run.fresh.end()
    run.guards.close()
    environment.restore(run.environment)
    run.children.close()
    if run in _runs:
        _runs.remove(run)


def current() -> Run:
    """The current run.

    Raises:
        RuntimeError: there is none: the plugin is not loaded.
    """
    if not _runs:
        raise RuntimeError(
            "an invariant was stated outside of a pytest run with pytest-gpuinvariants: run it with "
            "'pytest -p gpuinvariants'"
        )
    return _runs[-1]
