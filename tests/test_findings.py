"""Findings: identity, counting, text."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from pytest_gpuinvariants.events import Frame, Thread
from pytest_gpuinvariants.findings import MAX_DISTINCT, Finding, InvariantViolation, Tally, section

HERE = str(Path(__file__))


def make(
    line: int = 1, *, function: str = "plan", message: str = "cudaMemcpyAsync H2D of 4 B", note: bool = False
) -> Finding:
    stack = (Frame("package.code", function, HERE, line), Frame("test_x", "test_x", "/gone.py", 2))
    return Finding(
        "no_implicit_sync", "pageable-copy", "cudaMemcpyAsync:H2D", message, Thread(3, "worker"), stack, note
    )


def test_id_is_the_same_for_other_lines_sizes_and_counts() -> None:
    assert make(1).id == make(99).id == replace(make(1, message="of 8 B"), count=5).id
    assert make(1).id != make(1, function="run").id


def test_repeats_are_counted_not_kept() -> None:
    tally = Tally()
    for _ in range(1000):
        tally.add(make())
    tally.add(make(2))
    tally.add(make(3, note=True))
    assert [(item.stack[0].line, item.count) for item in tally.violations] == [(1, 1000), (2, 1)]
    assert [item.stack[0].line for item in tally.notes] == [3]
    assert tally.violations[0].line == "cudaMemcpyAsync H2D of 4 B (1000 times)"


def test_memory_is_bounded_and_the_rest_is_counted() -> None:
    tally = Tally()
    for line in range(MAX_DISTINCT + 50):
        tally.add(make(line))
    assert (len(tally.violations), tally.overflow) == (MAX_DISTINCT, 50)
    assert "and 50 more calls" in section(tally.violations, tally.overflow)


def test_section_shows_thread_and_source_innermost_first_once_for_one_place() -> None:
    text = section([make(1, message="first"), make(2, message="other"), make(1, message="second")])
    lines = text.splitlines()
    assert lines[:4] == ["pageable-copy: first", f"  id: {make().id}", "pageable-copy: second", f"  id: {make().id}"]
    assert lines[4:8] == [
        "  thread: worker (3)",
        f"  {HERE}:1 in plan",
        '      """Findings: identity, counting, text."""',
        "  /gone.py:2 in test_x",
    ]
    assert text.count("thread: worker") == 2


def test_a_call_without_python_frames_is_still_located() -> None:
    native = replace(make(), stack=())
    assert native.id.endswith("@<native thread>")
    assert native.place == "a native thread"
    assert "no Python stack" in section([native])


def test_violation_leads_with_the_first_finding_and_survives_pickling() -> None:
    error = InvariantViolation("no_implicit_sync", (replace(make(4), count=2), make(9)), overflow=3)
    first = str(error).splitlines()[0]
    assert first == (
        "no_implicit_sync: tests/test_findings.py:4: cudaMemcpyAsync H2D of 4 B (2 times), and 4 more calls"
    )
    assert not isinstance(error, Exception), "except Exception in the code under test must not hide it"
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.findings, str(copied)) == (error.findings, str(error))
