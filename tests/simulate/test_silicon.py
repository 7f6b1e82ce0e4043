"""The simulated H200 answers as a real one did: every scenario that runs on both, code for code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulate import capture_scenarios, memory_scenarios, stream_scenarios

SILICON: dict[str, object] = json.loads(Path(__file__).with_name("h200.json").read_text())
NAMES = [
    scenario.__name__
    for module in (memory_scenarios, stream_scenarios, capture_scenarios)
    for scenario in module.SCENARIOS
]
# Where the simulator differs on purpose.
DIFFERENT = {
    "unmapped_host": "the real driver dereferences the address and the process ends",
    "handles": "work on silicon takes time, so an event asked for at once is not ready",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DIFFERENT])
def test_scenario_answers_as_silicon(name: str, answers: dict[str, object]) -> None:
    assert answers[name] == SILICON[name]


def test_every_scenario_has_silicons_answer() -> None:
    assert sorted(NAMES) == sorted(SILICON)


def test_unmapped_host_memory_is_an_invalid_value_where_silicon_crashes(answers: dict[str, object]) -> None:
    assert SILICON["unmapped_host"] == "ended with -11"
    assert answers["unmapped_host"] == [1, 1]


def test_work_is_done_when_it_is_queued(answers: dict[str, object]) -> None:
    silicon, simulated = SILICON["handles"], answers["handles"]
    assert isinstance(silicon, list)
    assert isinstance(simulated, list)
    not_ready = silicon.index(600)
    assert simulated == [*silicon[:not_ready], 0, *silicon[not_ready + 1 :]]
