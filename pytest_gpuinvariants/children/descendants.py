"""Processes below a test's that use CUDA, as the kernel's ``/proc`` knows them.

A process that was started before anything asked for children, or in a way that is not watched, goes
unpoliced without a word; while it lives it can be seen from outside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_DRIVER = b"/libcuda.so"


def _parents() -> dict[int, int]:
    parents = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            # The program's name, in parentheses, may hold anything.
            fields = entry.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended just now
        if fields[0] not in (b"Z", b"X"):
            parents[int(entry.parent.name)] = int(fields[1])
    return parents


def below(process: int) -> Iterator[int]:
    """The ids of all processes below one."""
    parents = _parents()
    wave = {process}
    while wave := {child for child, parent in parents.items() if parent in wave}:
        yield from sorted(wave)


def with_cuda(process: int) -> dict[int, str]:
    """Processes below one that have loaded the CUDA driver: their ids and names."""
    found = {}
    for identity in below(process):
        try:
            if _DRIVER in (_PROC / str(identity) / "maps").read_bytes():
                program = (_PROC / str(identity) / "cmdline").read_bytes().partition(b"\0")[0]
                found[identity] = f"{Path(os.fsdecode(program)).name} (pid {identity})"
        except OSError:
            continue
    return found


def has_variable(process: int, name: str, value: str) -> bool:
    """Whether a process was started with an environment variable."""
    try:
        return os.fsencode(f"{name}={value}") in (_PROC / str(process) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
