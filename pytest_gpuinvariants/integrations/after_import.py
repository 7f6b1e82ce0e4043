"""Run something once a module has been imported, whoever imports it and whenever."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Calling(Loader):
    def __init__(self, loader: Loader, finder: _Waiting) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, which knows more than this one: its source, its resources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported()


class _Waiting(MetaPathFinder):
    """Finds nothing, but stands in the way when the module is looked for."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback: Callable[[], None] | None = callback
        self._asking: int | None = None
        """The thread on which the other finders are asked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._callback is None or self._asking == threading.get_ident():
            return None
        # It stays in the way: whoever looks for the module need not import it then.
        self._asking = threading.get_ident()
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Calling(spec.loader, self)
        return spec

    def imported(self) -> None:
        callback = self._callback
        self.cancel()
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after_import(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` when a module has been imported; the result calls that off.

    Not for a module that is imported already: ask ``sys.modules`` first.
    """
    waiting = _Waiting(name, callback)
    sys.meta_path.insert(0, waiting)
    return waiting.cancel


def once_imported(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` now where the module is imported already, else when it has been; the result calls that off."""
    if name not in sys.modules:
        return after_import(name, callback)
    callback()
    return lambda: None
