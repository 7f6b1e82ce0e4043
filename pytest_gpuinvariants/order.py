"""``--gpu-shuffle-check``: the marked tests of a module alone, in order and reversed, in fresh processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_gpuinvariants import markers, session
from pytest_gpuinvariants.invariants.order import NOT_RUN, Verdict, check
from pytest_gpuinvariants.order_child import VARIABLE, is_child, name_of

Modules = dict[str, list[str]]
"""The names of the marked tests of each module's file, in order."""
_FLAG = "--gpu-shuffle-check"
_REFUSED = {
    "collectonly": "--collect-only",
    "setupplan": "--setup-plan",  # sets the next one too
    "setuponly": "--setup-only",
    "usepdb": "--pdb",
    "trace": "--trace",
    "looponfail": "--looponfail",
}
_TAIL = 1000  # characters of what a process printed before it ended


def refuse(config: pytest.Config) -> None:
    """Refuse what the fresh processes can not do.

    Raises:
        pytest.UsageError: an option that excludes the check, or a plugin that is an object.
    """
    for name, flag in _REFUSED.items():
        if config.getoption(name, False):
            raise pytest.UsageError(f"{_FLAG} can not be used with {flag}: its tests run in processes of their own")
    if any(not isinstance(plugin, str) for plugin in config.invocation_params.plugins or ()):
        raise pytest.UsageError(f"{_FLAG} can not be used with plugin objects given to pytest.main(): name them")


def marked(items: Iterable[pytest.Item]) -> Modules:
    """The tests that carry a marker of ours, by file."""
    found: Modules = {}
    for item in items:
        if any(mark.name in markers.MARKERS for mark in item.iter_markers()):
            found.setdefault(str(item.path), []).append(name_of(item))
    return found


def begin(run: session.Run) -> Check | None:
    """The check of a run that asks for it.

    Raises:
        pytest.UsageError: it can not be done.
    """
    if not run.settings.shuffle_check or is_child(run.config):
        return None
    refuse(run.config)
    return Check(run.config, run.variables, run.settings.shuffle_timeout)


@dataclass
class Check:
    """The check of one run: what there is to check, and what came of it."""

    config: pytest.Config
    variables: Mapping[str, str]
    """The environment that the run began with."""
    timeout: float
    modules: Modules = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    failed: bool = False

    def finish(self, ended: pytest.Session) -> None:
        """Check, after the run itself; a verdict that depends on the order fails it."""
        self.modules.update(marked(ended.items))
        stopped = ended.shouldfail or ended.shouldstop
        if stopped or ended.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.lines.append(f"not checked: {stopped or 'the run did not come to its end'}")
            return
        self._check_modules()
        if self.failed:
            ended.exitstatus = pytest.ExitCode.TESTS_FAILED

    def tell(self, terminal: pytest.TerminalReporter) -> None:
        """Write the section ``order``."""
        terminal.write_sep("=", "order")
        for line in self.lines:
            terminal.write_line(line)

    def _check_modules(self) -> None:
        compared = sum(len(tests) for tests in self.modules.values() if len(tests) > 1)
        wrong = 0
        for path, tests in self.modules.items():
            if len(tests) > 1:
                wrong += self._check(path, tests)
        self.failed |= bool(wrong)
        single = sum(len(tests) == 1 for tests in self.modules.values())
        self.lines.append(f"{compared - wrong} of {compared} verdicts do not depend on the order")
        if single:
            self.lines.append(f"no order in {single} module{'s' if single > 1 else ''} with one marked test")

    def _check(self, path: str, tests: list[str]) -> int:
        module = os.path.relpath(path, self.config.rootpath)
        alone: dict[str, Verdict] = {}
        for test in tests:
            alone |= self._verdicts(module, path, [test])
        table = {
            "alone": alone,
            "in order": self._verdicts(module, path, tests),
            "reversed": self._verdicts(module, path, tests[::-1]),
        }
        wrong = list(check(tests, table))
        self.lines += [f"{module}::{test} {text}" for test, text in wrong]
        return len(wrong)

    def _command(self, folder: str) -> list[str]:
        given = [os.fspath(argument) for argument in self.config.invocation_params.args]
        end = given.index("--") if "--" in given else len(given)
        # What the run as a whole owes is not theirs to settle.
        own = ["--maxfail=0", "--gpu-require-verified=no", "--gpu-ledger=", "--no-gpu-ledger-update"]
        has = self.config.pluginmanager.hasplugin
        if has("xdist"):
            own.append("-n0")
        if has("cacheprovider"):
            own += ["-o", f"cache_dir={folder}/cache"]
        if has("tmpdir"):
            own.append(f"--basetemp={folder}/base")
        return [sys.executable, "-m", "pytest", *given[:end], *own, *given[end:]]

    def _verdicts(self, module: str, path: str, tests: list[str]) -> dict[str, Verdict]:
        """The verdicts of tests that a fresh process runs in this order."""
        with tempfile.TemporaryDirectory(prefix="gpuinvariants-order-", ignore_cleanup_errors=True) as folder:
            request, answer, printed = (Path(folder, name) for name in ("request.json", "answer.jsonl", "output"))
            request.write_text(json.dumps({"path": path, "tests": tests, "answer": str(answer)}))
            answer.touch()
            with open(printed, "wb") as printing:
                process = subprocess.Popen(
                    self._command(folder),
                    cwd=self.config.invocation_params.dir,
                    env={**self.variables, VARIABLE: str(request)},
                    stdin=subprocess.DEVNULL,
                    stdout=printing,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    end = _ending(process.wait(self.timeout))
                except subprocess.TimeoutExpired:
                    end = f"timed out after {self.timeout:g} s"
                finally:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            lines = [json.loads(line) for line in answer.read_text().splitlines()]
            output = printed.read_text(errors="replace").strip()[-_TAIL:]
        found = read(lines, tests, end)
        whole = len(found) == len(tests) and not any(one.text.startswith(NOT_RUN) for one in found.values())
        if end and whole and not any(one.text.startswith(end) for one in found.values()):
            self.failed = True
            self.lines.append(f"{module}: the process of {tests[0]}{', …' if tests[1:] else ''} {end} after its tests")
        if not whole:
            self.lines += [f"{module}: a process that ran {tests[0]} first printed:", *output.splitlines()]
        return found


def _ending(status: int) -> str:
    """How a process ended, where that is not pytest's own way; with a verdict of its tests it is."""
    if status < 0:
        return f"crashed by {signal.Signals(-status).name}"
    return "" if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else f"ended with exit status {status}"


def read(lines: list[dict[str, str]], tests: list[str], end: str) -> dict[str, Verdict]:
    """The verdicts that a process told, and what became of the tests that it did not come to.

    Args:
        lines: its answer.
        tests: names, in the order in which it was to run them.
        end: how it ended, where that is not pytest's own way.
    """
    found = {line["test"]: Verdict(line["verdict"], line["detail"]) for line in lines if "verdict" in line}
    begun = [line["begun"] for line in lines if "begun" in line]
    if begun and begun[-1] not in found:
        found[begun[-1]] = Verdict(end or "crashed: the process ended in the test")
    reason = f"{begun[-1]} {found[begun[-1]].text} before it" if begun else end or "it was not collected"
    return {test: found.get(test, Verdict(f"{NOT_RUN} ({reason})")) for test in tests}
