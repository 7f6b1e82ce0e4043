"""Memory of the simulated card: its limit, its separation from the host, byte-exact copies, misuse without a crash."""

from __future__ import annotations

Answers = dict[str, object]
GIB = 1 << 30


def test_out_of_memory_comes_at_the_profiles_size_on_each_device(simulated: Answers) -> None:
    second_half, one_byte, pointer, free, total, freed, again, other, all_of_it = _list(simulated["memory_limit"])
    assert (second_half, one_byte, pointer) == (0, 2, 0)
    assert (free, total) == (0, 80)
    assert (freed, again) == (0, 0)
    assert (other, all_of_it) == (0, 0), "the second device has its own memory"


def test_a_host_load_from_device_memory_faults(simulated: Answers) -> None:
    assert simulated["host_can_not_touch_device_memory"] == "ended with -11"


def test_registered_memory_that_was_unmapped_is_an_invalid_value(simulated: Answers) -> None:
    registered, *copies = _list(simulated["registered_memory_unmapped"])
    assert registered == 0
    assert copies[:3] == [1, 1, 1]
    assert copies[3:] == [0] * 16, "pinned memory that takes the stale addresses is pinned"


def test_copies_through_interior_pointers(simulated: Answers) -> None:
    to, back, same, fits, past_the_end = _list(simulated["interior_pointers"])
    assert (to, back, same) == (0, 0, True)
    assert (fits, past_the_end) == (0, 1)


def test_a_three_dimensional_copy_is_byte_exact(simulated: Answers) -> None:
    assert simulated["copies_in_three_dimensions"] == [0, 0, 0, True]


def test_a_batch_of_copies_is_byte_exact(simulated: Answers) -> None:
    assert simulated["batch_copies"] == [0, True, True]


def test_peer_access_and_copies(simulated: Answers) -> None:
    _, _, enabled, twice, copied, no_such_device, within, back, value, off, off_twice, freed = _list(
        simulated["peer_copies"]
    )
    assert (enabled, twice, off, off_twice) == (0, 704, 0, 705)
    assert (copied, no_such_device, within, back) == (0, 101, 0, 0)
    assert value == "5a" * 16
    assert freed == 0, "memory of another device than the current one"


def test_fills_of_one_two_and_four_bytes(simulated: Answers) -> None:
    *codes, one, two, four = _list(simulated["fill_patterns"])
    assert codes == [0, 0, 0, 0, 1, 1, 0], "a misaligned word and pageable memory are refused"
    assert (one, two, four) == ("121212ee", "3412" * 3 + "eeee", "78563412" * 2 + "ee" * 4)


def test_threads_that_free_each_others_memory_do_not_crash(simulated: Answers) -> None:
    assert simulated["races"] == []


def _list(value: object) -> list[object]:
    assert isinstance(value, list), value
    return value
