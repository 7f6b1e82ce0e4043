"""The folder through which a test's process and its children speak.  Standard library only.

``armed.json`` holds the regions that are armed, and the exemptions in each; ``generation`` a counter
that children map into memory, so that an event costs them a read of eight bytes; ``<pid>.jsonl`` what
one child found.  A child that can not write it any more, for a limit on its files or another user's
rights, still has ``trouble`` in its memory; ``<pid>.untold``, mapped as well, says that one has made
calls which it has not told yet.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

VARIABLE = "PYTEST_GPUINVARIANTS_CHANNEL"
_GENERATION_BYTES = 8
_FINE = b"\0"
_UNTOLD = ".untold"


@dataclass(frozen=True)
class Armed:
    """A region that is armed in the parent, with what its rule polices."""

    region: int
    kinds: tuple[str, ...]
    pageable_threshold: int
    allowances: tuple[int, ...] = ()
    """Exemptions that the parent has begun inside of it, the innermost first."""


@dataclass(frozen=True)
class Setup:
    """What a child has to know: the simulated machine (None: a real GPU), and the form of its stacks."""

    simulate: str | None
    full_stacks: bool


class Writer:
    """The parent's end."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder
        self._armed: dict[int, Armed] = {}
        self._read: dict[Path, int] = {}
        self._generation = 0
        (folder / "setup.json").write_text(json.dumps(asdict(setup)))
        (folder / "trouble").write_bytes(_FINE)
        self._publish()

    def arm(self, armed: Armed) -> None:
        """Let children police a region."""
        self._armed[armed.region] = armed
        self._publish()

    def disarm(self, region: int) -> None:
        """Let children leave a region alone."""
        del self._armed[region]
        self._publish()

    def allow(self, allowance: int) -> None:
        """Let children tell which calls they make inside an exemption, in the regions that are armed now."""
        for region, armed in self._armed.items():
            self._armed[region] = replace(armed, allowances=(allowance, *armed.allowances))
        self._publish()

    def disallow(self, allowance: int) -> None:
        """The exemption has ended."""
        for region, armed in self._armed.items():
            self._armed[region] = replace(armed, allowances=tuple(one for one in armed.allowances if one != allowance))
        self._publish()

    def _publish(self) -> None:
        new = self.folder / "armed.new"
        new.write_text(json.dumps([asdict(armed) for armed in self._armed.values()]))
        new.rename(self.folder / "armed.json")
        self._generation += 1
        counter = self.folder / "generation"
        # In place: a child has the file mapped, and a new file would not reach it.
        with open(counter, "r+b" if counter.exists() else "w+b") as file:
            file.write(self._generation.to_bytes(_GENERATION_BYTES, "little"))

    def in_trouble(self) -> bool:
        """Whether a child could not write what it had to say, since the last call."""
        with open(self.folder / "trouble", "r+b") as file:
            trouble = file.read() != _FINE
            file.seek(0)
            file.write(_FINE)
        return trouble

    def untold(self) -> list[int]:
        """Processes that have made calls which they have not told."""
        return [int(path.stem) for path in self.folder.glob(f"*{_UNTOLD}") if path.read_bytes() != _FINE]

    def forget_ended(self) -> None:
        """Take no notice any more of what ended processes have not told."""
        for pid in self.untold():
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                state = "X"
            if state in "XZ":
                (self.folder / f"{pid}{_UNTOLD}").write_bytes(_FINE)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What children have written since the last call.  A line that is not finished yet is left for the next."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                finished, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(finished + newline)
            for line in finished.splitlines():
                # A child may have died within a line, and another have been given its id.
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


class Reader:
    """A child's end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.setup = Setup(**json.loads((folder / "setup.json").read_text()))
        with open(folder / "generation", "rb") as file:
            self._counter = mmap.mmap(file.fileno(), _GENERATION_BYTES, access=mmap.ACCESS_READ)
        with open(folder / "trouble", "r+b") as file:
            self._trouble = mmap.mmap(file.fileno(), len(_FINE))
        self._seen = b""
        self._armed: tuple[Armed, ...] = ()
        self._life = time.monotonic_ns()  # a process that runs another program keeps its id

    @property
    def armed(self) -> tuple[Armed, ...]:
        """The regions that are armed now."""
        generation = self._counter[:]
        if generation != self._seen:
            with self._telling_of_trouble():
                entries = json.loads((self._folder / "armed.json").read_text())
            self._armed = tuple(
                Armed(one["region"], tuple(one["kinds"]), one["pageable_threshold"], tuple(one["allowances"]))
                for one in entries
            )
            self._seen = generation  # last: another thread that sees it takes what goes with it
        return self._armed

    def untold(self) -> mmap.mmap:
        """A byte of this process, which is to be 1 while it has made calls that it has not told."""
        path = self._folder / f"{os.getpid()}{_UNTOLD}"
        with self._telling_of_trouble():
            path.write_bytes(_FINE)
            with open(path, "r+b") as file:
                return mmap.mmap(file.fileno(), len(_FINE))

    def tell_unpoliced(self, problem: str) -> None:
        """Let the parent know that a process goes unpoliced, so that what is armed now is not verified."""
        with contextlib.suppress(OSError, ValueError):  # the run has ended
            self.write(error=problem, armed=[one.region for one in self.armed])

    @staticmethod
    def find(folder: Path) -> Reader | None:
        """The child's end of a channel; None when the run that opened it has ended."""
        try:
            return Reader(folder)
        except (OSError, ValueError):
            return None

    def write(self, **line: object) -> None:
        """Add a line; it is in the file when this returns.

        Raises:
            OSError: it can not be; the parent sees that there was one.
        """
        data = json.dumps({"pid": os.getpid(), "life": self._life, **line}).encode() + b"\n"
        path = self._folder / f"{os.getpid()}.jsonl"
        with self._telling_of_trouble():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _telling_of_trouble(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._trouble[0] = 1
            raise
