"""The scenarios' answers, each set got once from a process that has neither torch nor the plugin loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Answers = dict[str, object]


def _answers(target: str) -> Answers:
    result = subprocess.run(
        [sys.executable, "-m", "tests.simulate.scenarios", target],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answers: Answers = json.loads(result.stdout)
    return answers


@pytest.fixture(scope="session")
def answers() -> Answers:
    """What the simulated H200 answers in the scenarios that a real one answered too."""
    return _answers("simulate:h200")


@pytest.fixture(scope="session")
def simulated() -> Answers:
    """What two simulated H100s answer in the scenarios for the simulator alone."""
    return _answers("simulated:h100x2")
