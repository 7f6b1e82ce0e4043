"""Whether the files about to be collected use an invariant, found out without importing them.

A simulated GPU must be open before torch is imported, and torch is imported by the files that
collection imports.  So the decision is taken on their text; a run with nothing of ours in it stays
as it would be without the plugin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware import gates
from pytest_gpuinvariants.markers import MARKERS

# Names such as requires_cuda are other people's helpers too: a gate counts as a mark only, and one of
# the software needs no GPU.
_GATES = [name for name in MARKERS if name in gates.GATES and gates.GATES[name].gpu]
_OWN = [name for name in MARKERS if name not in gates.GATES]
_WORDS = re.compile("|".join([*_OWN, "pytest_gpuinvariants", rf"""(?:mark\.|["'])(?:{"|".join(_GATES)})\b"""]).encode())
# Never test code, and large.  A virtual environment is recognized by its pyvenv.cfg.
_SKIPPED = frozenset({".git", ".hg", ".tox", ".nox", "node_modules", "__pycache__", "build", "dist", ".eggs", ".venv"})


def _python_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if "pyvenv.cfg" in files or real in seen:  # a link can lead back to where it is
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if name not in _SKIPPED]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def mentions(path: Path) -> bool:
    """Whether a file names a marker or this package."""
    try:
        return _WORDS.search(path.read_bytes()) is not None
    except OSError:
        return False


def _package_folder(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin else None


def roots(config: pytest.Config) -> list[Path]:
    """Files and folders that collection will start from."""
    given = config.known_args_namespace
    base = config.invocation_params.dir
    names: Iterable[str] = [str(name).split("::")[0] for name in given.file_or_dir or ()]
    if not names and base == config.rootpath:
        # As pytest does; it expands shell patterns too, and so does a folder's own walk.
        names = [name if not re.search(r"[*?\[]", name) else "." for name in config.getini("testpaths")]
    found: list[Path] = []
    for name in names or ["."]:
        path = base / name
        if not path.exists() and getattr(given, "pyargs", False):
            path = _package_folder(name) or path
        found.append(path)
    return found


def uses_invariants(config: pytest.Config) -> bool:
    """Whether any file under the roots, or a conftest.py above them, names a marker or this package."""
    starts = roots(config)
    above = {
        parent / "conftest.py"
        for start in starts
        for parent in start.absolute().parents
        if parent.is_relative_to(config.rootpath)
    }
    return any(mentions(path) for path in above) or any(
        mentions(path) for start in starts for path in _python_files(start)
    )
