"""Whole pytest runs in processes of their own, as a user starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from pytest_gpuinvariants import environment, session
from pytest_gpuinvariants.hardware.machine import MachineKind
from pytest_gpuinvariants.settings import OPTIONS


class Run(Protocol):
    """Run pytest on a file's text; ``-p gpuinvariants`` unless other arguments are given first."""

    def __call__(
        self, source: str, *args: str, load: tuple[str, ...] = ("-p", "gpuinvariants")
    ) -> pytest.RunResult: ...


@pytest.fixture(autouse=True)
def _as_a_user_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what imports have set in this process: vLLM's make torch ask NVML whether there is a card."""
    for name, value in environment.changed_since(session.current().variables).items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)

    def start(source: str, *args: str, load: tuple[str, ...] = ("-p", "gpuinvariants")) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(*load, *args)

    return start


Lines = Callable[[pytest.RunResult], str]


def text(result: pytest.RunResult) -> str:
    """Everything that a run printed."""
    return "\n".join([*result.outlines, *result.errlines])


def found_card() -> str:
    """The card that a run finds when no option names one, as verdicts name it."""
    machine = session.current().machine
    return machine.label if machine.kind is MachineKind.REAL else "simulated H100"
