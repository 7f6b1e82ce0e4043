"""Found by a child process through PYTHONPATH: waits for torch to be imported, and joins the channel.

A child that never imports torch pays for this file and nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Joining(Loader):
    """Loads torch with the simulated card before it and the recorder after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._child: ModuleType | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        # Before torch is in sys.modules, where the simulator takes it for imported.
        self._child = self._join()
        if self._child is not None:
            self._child.prepare()
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if self._child is not None:
            self._child.join()

    @staticmethod
    def _join() -> ModuleType | None:
        try:
            from pytest_gpuinvariants.children import child
        except ImportError as error:
            _tell(f"{sys.executable}: {error}")
            return None
        return child


def _tell(error: str) -> None:
    """Let the parent know that this process goes unpoliced."""
    path = os.path.join(os.environ["PYTEST_GPUINVARIANTS_CHANNEL"], f"{os.getpid()}.jsonl")
    with open(path, "a") as file:
        file.write(json.dumps({"error": error}) + "\n")


class _Waiting(MetaPathFinder):
    """Finds nothing; but stands in the way when torch is looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Joining(spec.loader)
        return spec


def _next_sitecustomize() -> None:
    """Run the one that this file hides, if there is any."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    for entry in rest:
        candidate = os.path.join(entry, "sitecustomize.py")
        if os.path.isfile(candidate):
            spec = importlib.util.spec_from_file_location("sitecustomize", candidate)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


if os.environ.get("PYTEST_GPUINVARIANTS_CHANNEL") and "torch" not in sys.modules:
    sys.meta_path.insert(0, _Waiting())
_next_sitecustomize()
