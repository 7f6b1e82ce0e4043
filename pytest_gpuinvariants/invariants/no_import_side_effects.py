"""``no_import_side_effects``: a module that is imported changes nothing but ``sys.modules``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePath

from pytest_gpuinvariants.events import Frame, ImportEffect
from pytest_gpuinvariants.findings import Finding

NAME = "no_import_side_effects"
KINDS: dict[str, str] = {
    "cuda-init": "the CUDA driver is initialised, by whomever: a process that is forked afterwards can not use CUDA",
    "environment": "an environment variable is set, changed or removed, and stays so",
    "config-read": "vLLM's current configuration is read outside of any context",
    "file-write": "a file or folder is written, made, renamed or removed, the bytecode cache aside",
    "thread": "a Python thread is started",
    "process": "a process is started or forked",
    "socket": "a socket is bound or connected, or a host is looked up",
    "global-state": "sys.path, a signal handler, multiprocessing's start method or torch's default dtype is changed",
    "native-thread": "a thread is started by a library, such as BLAS's pool",
}
"""The kinds of finding, each with its meaning."""
DEFAULT_KINDS = frozenset(KINDS) - {"native-thread"}
"""What is policed unless kinds are chosen: numpy alone starts BLAS's threads."""

_MESSAGES = {
    "cuda-init": "initialises CUDA: a process that is forked afterwards can not use it",
    "environment": "{detail} {subject} in the environment",
    "config-read": "{subject}() outside of any context",
    "file-write": "writes to the file system: {subject} {detail}",
    "thread": "starts a thread: {subject}",
    "process": "starts a process: {detail}",
    "socket": "uses the network: {subject} {detail}",
    "global-state": "{detail} {subject}",
    "native-thread": "starts native threads named {subject} ({detail})",
}


def _is_module(frame: Frame) -> bool:
    # Not what exec() runs, as dataclasses and named tuples do.
    return frame.function == "<module>" and not frame.file.startswith("<")


def _is_standard(frame: Frame) -> bool:
    return frame.module.partition(".")[0] in sys.stdlib_module_names


def check(effect: ImportEffect) -> Finding:
    """The finding that an effect is; its place is the line of a module's body, which is what an import runs."""
    module = next((index for index, frame in enumerate(effect.stack) if _is_module(frame)), 0)
    message = _MESSAGES[effect.kind].format(subject=effect.subject, detail=effect.detail)
    inner = next((frame for frame in effect.stack[:module] if not _is_standard(frame)), None)
    if inner is not None:
        message += f" (in {inner.qualified}, {PurePath(inner.file).name}:{inner.line})"
    stack = effect.stack[module:]
    return Finding(NAME, effect.kind, effect.subject, message, effect.thread, stack, process=effect.process)


def allowed_by(effect: ImportEffect, patterns: Iterable[str]) -> str | None:
    """The first pattern that matches the subject, the detail or the ``module.qualname`` of a frame; None without."""
    names = (effect.subject, effect.detail, *(frame.qualified for frame in effect.stack))
    return next((pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names)), None)
