"""Found by a child process through PYTHONPATH: waits for torch to be imported, and joins the channel.

A child that never imports torch pays for this file and nothing else, unless it starts others that may
not find the channel.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import sys
from _thread import get_ident
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_VARIABLE = "PYTEST_GPUINVARIANTS_CHANNEL"


class _Joining(Loader):
    """Loads torch with the simulated card before it and the recorder after it."""

    def __init__(self, loader: Loader, waiting: _Waiting) -> None:
        self._loader = loader
        self._waiting = waiting
        self._child: ModuleType | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        # Before torch is in sys.modules, where the simulator takes it for imported.
        self._child = _joining()
        if self._child is not None:
            self._child.prepare()
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, which knows more than this one: its source, its resources.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._waiting.leave()  # not before: an import that fails may be tried again
        if self._child is not None:
            self._child.join()


def _joining() -> ModuleType | None:
    """What makes this process police itself; None, and the parent told, where it is not there."""
    try:
        from pytest_gpuinvariants.children import child
    except ImportError as error:
        _tell(f"{sys.executable}: {error}")
        return None
    return child


def _has_cuda() -> bool:
    """Whether this process has loaded the CUDA driver, which a runtime does when it is first used."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        return any("/libcuda.so" in line for line in maps)
    return False


def _tell(error: str) -> None:
    """Let the parent know that this process goes unpoliced."""
    path = os.path.join(os.environ[_VARIABLE], f"{os.getpid()}.jsonl")
    # The run may have ended, and its channel be gone.
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "error": error}) + "\n")


class _Waiting(MetaPathFinder):
    """Finds nothing; but stands in the way when torch is looked for, until it is imported.

    Whoever looks for it need not import it: vLLM asks where it is first.
    """

    def __init__(self) -> None:
        self._asking: int | None = None
        """The thread on which the other finders are asked."""
        sys.meta_path.insert(0, self)
        atexit.register(self._never_met)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch" or self._asking == get_ident():
            return None
        self._asking = get_ident()
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Joining(spec.loader, self)
        return spec

    def leave(self) -> None:
        """Torch has been imported."""
        atexit.unregister(self._never_met)
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _never_met(self) -> None:
        """At the end: CUDA may have been used past this hook, and nothing have been policed."""
        child = sys.modules.get("pytest_gpuinvariants.children.child")
        if child is not None and child.monitor() is not None:
            return  # met in another way
        if "torch" in sys.modules:
            _tell(f"{sys.executable} (pid {os.getpid()}): torch was imported past the hook that waits for it")
        elif _has_cuda():
            _tell(f"{sys.executable} (pid {os.getpid()}): CUDA was used without torch, whose CUPTI the recorder needs")


def _may_not_find_the_channel(words: Sequence[object], environment: object) -> bool:
    """Whether a start is worth a closer look, which takes a quarter of a second."""
    search = os.environ.get("PYTHONPATH")
    variables = environment if isinstance(environment, Mapping) else os.environ
    if _VARIABLE not in variables or variables.get("PYTHONPATH") != search:
        return True
    program = os.path.basename(str(words[0])) if words else ""
    return program == "env" or any(str(word)[:1] == "-" and set("IES") & set(str(word)) for word in words[1:])


def _watch_starts(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: a process without torch, too, may start others that do not find the channel."""
    if event not in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        return
    executable, argv, environment = arguments[0], arguments[1], arguments[-1]
    words = argv if isinstance(argv, list | tuple) else [executable]
    if "torch" in sys.modules or not _may_not_find_the_channel(words, environment):
        return  # a process that polices itself looks by itself
    with contextlib.suppress(ImportError):
        from pytest_gpuinvariants.children import processes

        if (problem := processes.unreachable(executable, argv, environment)) is not None:
            _tell(problem)


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


if os.environ.get(_VARIABLE):
    sys.addaudithook(_watch_starts)
    if "torch" not in sys.modules:
        _Waiting()
    elif (_child := _joining()) is not None:  # imported by a .pth file
        _child.join()
_next_sitecustomize()
