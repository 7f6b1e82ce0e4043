"""Compile the plugin's C sources where they run, once per content, and keep the result."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra")


class NativeBuildError(RuntimeError):
    """The C sources can not be built here; the message names the remedy."""


def cache_root() -> Path:
    """The user's cache folder for this plugin (``XDG_CACHE_HOME`` is honoured)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pytest-gpuinvariants"


def find_compiler(purpose: str) -> list[str]:
    """The C compiler to run: ``$CC``, else gcc, cc or clang.

    Args:
        purpose: what it is needed for, as the subject of the message.

    Raises:
        NativeBuildError: there is none.
    """
    if named := os.environ.get("CC"):
        command = shlex.split(named)
        if command and shutil.which(command[0]):
            return command
        raise NativeBuildError(f"CC={named} names no program: unset it, or name a C compiler")
    for candidate in ("gcc", "cc", "clang"):
        if found := shutil.which(candidate):
            return [found]
    raise NativeBuildError(
        f"{purpose} needs a C compiler and there is none on PATH: apt-get install gcc libc6-dev, or set CC"
    )


def compile_sources(command: list[str], folder: Path, purpose: str) -> None:
    """Run a compiler in a folder.

    Raises:
        NativeBuildError: it fails; the message holds what it printed.
    """
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise NativeBuildError(
            f"compiling {purpose} failed (exit {result.returncode}):\n{shlex.join(command)}\n{result.stderr.strip()}"
        )


def content_hash(command: Iterable[str], files: Iterable[Path]) -> str:
    """Identity of a build: the compiler's command and all that it reads."""
    digest = hashlib.sha256(shlex.join(command).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


def cached(root: Path, identity: str, produce: Callable[[Path], None]) -> Path:
    """The folder that holds a build, produced first if this one was never made here.

    Safe beside other processes: one produces, the others wait; a build that dies leaves only a
    scratch folder that the next one ignores.

    Raises:
        NativeBuildError: the folder can not be used, or whatever ``produce`` raises.
    """
    target = root / identity
    if target.is_dir():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_dir():
                with tempfile.TemporaryDirectory(dir=root, prefix="building-") as scratch:
                    done = Path(scratch) / "done"
                    done.mkdir()
                    produce(done)
                    done.rename(target)
    except OSError as error:
        raise NativeBuildError(f"the cache folder {root} can not be used ({error}): set XDG_CACHE_HOME") from error
    return target
