"""What is to run after an import runs once, after it, whatever else looks for the module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from pytest_gpuinvariants.integrations.after_import import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "waited_for.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    return "waited_for"


def test_it_runs_once_after_the_import(module: str) -> None:
    seen: list[int] = []
    before = list(sys.meta_path)
    stops = [after_import(module, lambda number=number: seen.append(number)) for number in (1, 2)]  # type: ignore[misc]
    assert importlib.util.find_spec(module) is not None  # looked for, and not imported
    assert seen == []
    imported = importlib.import_module(module)
    assert sorted(seen) == [1, 2]
    assert imported.value == 3
    assert imported.__spec__ is not None
    assert imported.__spec__.loader is imported.__loader__
    assert type(imported.__loader__).__name__ == "SourceFileLoader"
    assert sys.meta_path == before
    importlib.reload(imported)
    assert sorted(seen) == [1, 2]
    for stop in stops:
        stop()


def test_it_is_called_off(module: str) -> None:
    seen: list[int] = []
    before = list(sys.meta_path)
    after_import(module, lambda: seen.append(1))()
    importlib.import_module(module)
    assert (seen, sys.meta_path) == ([], before)


def test_a_module_that_is_not_there_is_not_found() -> None:
    stop = after_import("no_such_module_at_all", lambda: None)
    assert importlib.util.find_spec("no_such_module_at_all") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
    stop()
