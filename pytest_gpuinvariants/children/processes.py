"""Python processes that are started in a way in which they can not be reached.

A process finds the channel through its environment.  One that is started with another environment, or
told to ignore it, goes unpoliced, and that must be said.  The interpreter tells of every start.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gpuinvariants.children.channel import VARIABLE

Told = Callable[[str], None]

_told: Told | None = None
_hooked = False


def watch(told: Told | None) -> None:
    """Call ``told`` with a sentence for each such start, from now on; None stops that."""
    global _told, _hooked
    _told = told
    if not _hooked and told is not None:
        _hooked = True
        sys.addaudithook(_audit)  # for the life of the process: there is no way back


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _told is None or event != "subprocess.Popen":
        return
    executable, argv, _, environment = arguments
    problem = unreachable(executable, argv, environment)
    if problem is not None:
        _told(problem)


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


def unreachable(executable: object, argv: object, environment: object) -> str | None:
    """Why a process will not find the channel; None when it will, or is no Python.

    Args:
        executable: as the audit event ``subprocess.Popen`` has it; None stands for the first argument.
        argv: the arguments, program first.
        environment: the new environment, None when it is inherited.
    """
    words = [_text(word) for word in argv] if isinstance(argv, Sequence) and not isinstance(argv, str | bytes) else []
    program = _text(executable) or (words[0] if words else "")
    if not program or not _is_python(program):
        return None
    name = Path(program).name
    if isinstance(environment, Mapping) and not {VARIABLE, os.fsencode(VARIABLE)} & set(environment):
        return f"{name}: started with an environment of its own"
    for word in words[1:]:
        if not re.fullmatch(r"-[A-Za-z]+", word) or word[1] in "cm":
            break
        if ignored := set(word[1:]) & set("IES"):
            return f"{name}: started with -{min(ignored)}, which keeps it from the test's environment"
    return None
