"""The part of ``--gpu-shuffle-check`` in a fresh pytest process: run these tests in this order, and tell verdicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants.report import verdicts

VARIABLE = "GPUINVARIANTS_ORDER"
"""Environment variable with the path of the request."""
_NAME = "gpuinvariants-order"
# Of what the run was started with: other selections, and files that the run itself writes.
_OFF = {
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "xmlpath": None,
    "log_file": None,
    "pastebin": None,
}


def name_of(item: pytest.Item) -> str:
    """The test's name within its file.

    The start of a node id depends on what pytest was started with, and xdist's groups are put at its end.
    """
    within = item.parent.nodeid.partition("::")[2] if item.parent is not None else ""
    return f"{within}::{item.name}" if within else item.name


def join(config: pytest.Config) -> None:
    """In a process of the check, take over selection and order; else do nothing."""
    request = os.environ.pop(VARIABLE, None)  # not for the processes that the tests start
    if request is None:
        return
    asked = json.loads(Path(request).read_text())
    config.args = [asked["path"]]
    for name, value in _OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.pluginmanager.register(_Telling(asked["tests"], asked["answer"]), _NAME)


def is_child(config: pytest.Config) -> bool:
    """Whether this is a process of the check."""
    return bool(config.pluginmanager.hasplugin(_NAME))


class _Telling:
    """Keeps to the order, and writes a line before and after each test."""

    def __init__(self, tests: list[str], answer: str) -> None:
        self._tests = {name: index for index, name in enumerate(tests)}
        self._answer = answer
        self._reports: list[pytest.TestReport] = []

    def _write(self, **line: str) -> None:
        with open(self._answer, "a") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Choose and sort the tests, after all other plugins."""
        every = list(items)
        try:
            return (yield)
        finally:
            chosen = {name_of(item): item for item in every if name_of(item) in self._tests}
            items[:] = sorted(chosen.values(), key=lambda item: self._tests[name_of(item)])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Tell of the test, around all that is done for it."""
        self._reports.clear()
        self._write(begun=name_of(item))
        result = yield
        text, detail = _verdict(self._reports)
        self._write(test=name_of(item), verdict=text, detail=detail)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the verdict is made of; a rerun starts anew."""
        if str(report.outcome) == "rerun":
            self._reports.clear()
        else:
            self._reports.append(report)


def _verdict(reports: list[pytest.TestReport]) -> tuple[str, str]:
    """Outcome, phase and reason, our own verdict and the ids of the findings; and the message of a failure."""
    failed = [report for report in reports if report.failed]
    skipped = [report for report in reports if report.skipped]
    detail = ""
    if failed:
        text = f"failed in {' and '.join(dict.fromkeys(str(report.when) for report in failed))}"
        crash: Any = getattr(failed[0].longrepr, "reprcrash", None)
        detail = str(crash.message if crash is not None else failed[0].longrepr).partition("\n")[0]
    elif any(hasattr(report, "wasxfail") for report in reports):
        text = "xfailed" if skipped else "xpassed"
    elif skipped:
        longrepr = skipped[0].longrepr
        text = f"skipped: {longrepr[2].removeprefix('Skipped: ') if isinstance(longrepr, tuple) else longrepr}"
    else:
        text = "passed" if reports else "not run (no report was made)"
    properties = [(name, str(value)) for name, value in (reports[-1].user_properties if reports else ())]
    own = [value for name, value in properties if name == verdicts.VERDICT]
    own = [value for value in own if value not in text and not (failed and value.startswith("failed on"))]
    found = sorted({value.partition(": ")[0] for name, value in properties if name == verdicts.FINDING})
    return ", ".join([text, *own, *found]), detail
