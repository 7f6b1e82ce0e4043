"""The registry's entries: what is seen, out of range, vanished, the same, and told twice."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from pytest_gpuinvariants.integrations import singletons
from pytest_gpuinvariants.integrations.singletons import Registry, Singleton, builtin, cache, container, same, variable


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = types.ModuleType("made_up")
    made.pool, made.table, made.holder = None, {"a": 1}, types.SimpleNamespace(inner=3)
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


def test_a_variable_is_seen_and_put_back(module: Any) -> None:
    pool, inner = variable("pool", "made_up:pool"), variable("inner", "made_up:holder.inner")
    assert (pool.states(), inner.states()) == ({"": None}, {"": 3})
    pool.put_back("", 4)
    inner.put_back("", 5)
    assert (module.pool, module.holder.inner) == (4, 5)


def test_a_container_stays_the_object_that_it_is(module: Any) -> None:
    table, held = container("table", "made_up:table", dict), module.table
    before = table.states()[""]
    held["b"] = 2
    assert before == {"a": 1}
    table.put_back("", before)
    assert module.table is held
    assert held == {"a": 1}


@pytest.mark.parametrize(
    ("requires", "in_range"),
    [(None, True), ("pytest>=1", True), ("pytest<1", False), ("no-such-package>=1", False), ("no-such-package", True)],
)
def test_out_of_range_it_is_skipped_silently(module: Any, requires: str | None, in_range: bool) -> None:
    entry = variable("pool", "made_up:pool", requires=requires)
    assert entry.in_range is in_range
    assert entry.loaded is (module if in_range else None)
    assert entry.states() == ({"": None} if in_range else {})


def test_what_vanished_is_nothing_to_guard_and_raises_where_it_is_looked_for(module: Any) -> None:
    for entry in (
        variable("gone", "made_up:gone"),
        variable("gone", "made_up:holder.gone"),
        cache("gone", "made_up:gone"),
    ):
        assert entry.states() == {}
        with pytest.raises(AttributeError):
            entry.see(module)


def test_a_module_that_is_not_imported_is_not_imported() -> None:
    entry = variable("this", "this:s")
    assert (entry.loaded, entry.states()) == (None, {})
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (None, None, True),
        (1, 1, True),
        (1, True, False),
        ({"a": sys}, {"a": sys}, True),
        ({"a": []}, {"a": []}, False),
        ([1, None], [1, None], True),
        ([1], [1, 2], False),
        ({1}, {1}, True),
        ([], [], True),
        (object(), object(), False),
    ],
)
def test_same(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal


def test_names_are_taken_once(module: Any) -> None:
    registry = Registry([variable("pool", "made_up:pool")])
    with pytest.raises(ValueError, match="'pool' is registered already"):
        registry.add(variable("pool", "made_up:pool"))
    assert registry.snapshot() == {("pool", ""): None}


def test_builtin_entries_have_names_of_their_own_and_ranges() -> None:
    entries = list(Registry(builtin()))
    assert len(entries) > 40
    assert [entry.name for entry in entries if entry.requires is None and entry.name.startswith("vllm.")] == []


class _Point:
    name = "mine"

    def __init__(self, given: object) -> None:
        self._given = given

    def load(self) -> object:
        return self._given


@pytest.mark.parametrize(
    "given", [(variable("mine.pool", "made_up:pool"),), lambda: [variable("mine.pool", "made_up:pool")]]
)
def test_entry_points_add_entries(monkeypatch: pytest.MonkeyPatch, given: object) -> None:
    monkeypatch.setattr(singletons, "entry_points", lambda group: [_Point(given)])
    assert next(entry.name for entry in singletons.load()) == "mine.pool"


def test_an_entry_point_that_gives_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singletons, "entry_points", lambda group: [_Point(["pool"])])
    with pytest.raises(ValueError, match=r"entry point 'mine' of gpuinvariants\.singletons gives 'pool'"):
        singletons.load()


def test_a_state_in_parts_is_put_back_by_part(module: Any) -> None:
    entry = Singleton(
        name="table",
        module="made_up",
        see=lambda module: module.table,
        put=lambda module, name, state: module.table.update({name: state}),
        parts=True,
    )
    assert entry.states() == {"a": 1}
    entry.put_back("a", 7)
    assert module.table == {"a": 7}
