"""Python processes that are started in a way in which they can not be reached.

A process finds the channel through its environment.  One that is started with another environment, or
told to ignore it, goes unpoliced, and that must be said.  The interpreter tells of every start by
``subprocess`` and ``os``, but not of those by ``multiprocessing``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuinvariants.children.channel import VARIABLE
from pytest_gpuinvariants.children.descendants import has_variable

Told = Callable[[str], None]
BOOTSTRAP = Path(__file__).parent / "bootstrap"

_told: Told | None = None
_hooked = False
# Each with the program first, its arguments, and the environment last.
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.exec")


def watch(told: Told | None) -> None:
    """Call ``told`` with a sentence for each such start, from now on; None stops that."""
    global _told, _hooked
    _told = told
    if not _hooked and told is not None:
        _hooked = True
        # For the life of the process: an audit hook knows no way back.
        sys.addaudithook(_audit)
        _watch_multiprocessing()


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _told is None or event not in _STARTS:
        return
    executable, argv, environment = arguments[0], arguments[1], arguments[-1]
    problem = unreachable(executable, argv, environment)
    if problem is not None:
        _told(problem)


def _watch_multiprocessing() -> None:
    from multiprocessing import forkserver, util  # not before a test asks for its children

    connect = forkserver.connect_to_new_process
    server: Any = forkserver._forkserver  # the process's only one

    def watched_connect(fds: Sequence[int]) -> tuple[int, int]:
        before, channel = server._forkserver_pid, os.environ.get(VARIABLE, "")
        if _told is not None and before is not None and not has_variable(before, VARIABLE, channel):
            _told("forkserver: it was started before a children=True region or fixture")
        return connect(fds)

    forkserver.connect_to_new_process = watched_connect
    spawn: Callable[..., int] = util.spawnv_passfds

    def watched_spawn(path: object, args: Sequence[object], passfds: object) -> int:
        tracker = any("multiprocessing.resource_tracker" in _text(word) for word in args)
        if _told is not None and not tracker and (problem := unreachable(path, args, None)) is not None:
            _told(problem)
        return spawn(path, args, passfds)

    util.spawnv_passfds = watched_spawn


def _text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes | str | os.PathLike) else ""


def _is_python(program: str) -> bool:
    found = shutil.which(program) or program
    if Path(found).name.startswith("python"):
        return True
    try:
        with open(found, "rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def without_bootstrap(search: str) -> list[str]:
    """The other entries of a ``PYTHONPATH``."""
    return [entry for entry in search.split(os.pathsep) if entry and Path(entry) != BOOTSTRAP]


def _finds_the_bootstrap(search: str) -> bool:
    """Whether Python, given such a ``PYTHONPATH``, takes its ``sitecustomize`` from the bootstrap's folder."""
    for entry in filter(None, search.split(os.pathsep)):
        if Path(entry) == BOOTSTRAP:
            return True
        if Path(entry, "sitecustomize.py").is_file():
            return False
    return False


def unreachable(executable: object, argv: object, environment: object) -> str | None:
    """Why a process will not find the channel; None when it will, or is no Python.

    Args:
        executable: as the audit event ``subprocess.Popen`` has it; None stands for the first argument.
        argv: the arguments, program first.
        environment: the new environment, None when it is inherited.
    """
    words = [_text(word) for word in argv] if isinstance(argv, Sequence) and not isinstance(argv, str | bytes) else []
    program = _text(executable) or (words[0] if words else "")
    if not program:
        return None
    name = Path(program).name
    if name == "env" and any(map(_takes_away, words[1:])) and any(map(_is_python, words[1:])):
        return "env: it starts Python with an environment of its own"
    if not _is_python(program):
        return None
    variables = {
        _text(key): _text(value)
        for key, value in (environment if isinstance(environment, Mapping) else os.environ).items()
    }
    if VARIABLE not in variables:
        return f"{name}: started with an environment of its own"
    if not _finds_the_bootstrap(variables.get("PYTHONPATH", "")):
        return f"{name}: started with a PYTHONPATH of its own; the test's has to stay in it, first"
    if ignored := set(_flags(words[1:])) & set("IES"):
        return f"{name}: started with -{min(ignored)}, which keeps it from the test's environment"
    return None


def _takes_away(word: str) -> bool:
    """Whether it is an option of ``env`` that takes variables away."""
    return word == "-" or word.startswith(("--ignore-environment", "--unset", "-i", "-u"))


def _flags(words: Sequence[str]) -> Iterator[str]:
    """The interpreter's own options, of a letter each: those before a program, which have no value."""
    rest = iter(words)
    for word in rest:
        if len(word) < 2 or not word.startswith("-"):
            return  # the program, or - for the standard input
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":
                return  # a program, and its own arguments
            if letter in "WX":
                if place == len(word):
                    next(rest, None)
                break
            yield letter
