"""Streams, events and graphs of the simulated card: stale handles, lifetimes, nesting, devices."""

from __future__ import annotations

Answers = dict[str, object]


def test_stale_and_foreign_handles_are_errors(simulated: Answers) -> None:
    answer = simulated["stale_handles"]
    assert isinstance(answer, list)
    reused, *codes = answer
    assert reused is False, "a destroyed stream's address is not handed out again at once"
    assert codes == [400] * 8 + [1] * 4 + [400]


def test_objects_destroyed_during_their_capture(simulated: Answers) -> None:
    answer = simulated["lifetimes"]
    assert isinstance(answer, list)
    graph, origin, given = answer[:4], answer[4:7], answer[7:]
    assert graph == [0, 0, 1, 0], "the capture ends with an error, not with a graph that is gone"
    assert origin == [0, 0, 0], "streams that had joined leave the capture with its origin"
    assert given == [0, 900, 901, 0], "a graph that the caller gave survives a capture that failed"


def test_a_graph_in_a_graph_and_an_external_event(simulated: Answers) -> None:
    assert simulated["nested_graphs"] == [0, 0, "00000000", 400, 0, "33333333", 0, True]


def test_streams_belong_to_the_device_they_were_created_on(simulated: Answers) -> None:
    answer = simulated["devices_of_streams"]
    assert isinstance(answer, list)
    assert answer[:2] == [0, 0]
    assert answer[2:4] == [0, 400], "an event is recorded on its own device's streams only"
    assert answer[4:6] == [0, 0]
    assert answer[6] == [0, 1], "the current device is a thread's own"
