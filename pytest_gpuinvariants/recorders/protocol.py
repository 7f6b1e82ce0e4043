"""What a source of events must be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Protocol

from pytest_gpuinvariants.events import ApiCall, Event

Again = Callable[[int], None]
"""Counts so many more calls like the one that it was returned for."""
Sink = Callable[[Event], Again | None]
"""Takes an event.  A recorder may use what it returns for calls that differ in nothing, from the same place."""


class RecorderUnavailableError(RuntimeError):
    """The recorder can not see this machine's calls now; the message says why, and who is in the way."""


class Recorder(Protocol):
    """A source of events.

    ``start`` may be called again after ``stop``; between them the sink is called on the thread that
    made the call, while that call is under way; of a thread that Python does not know, later, and
    at the latest by ``settle``.  A recorder subscribes as late and leaves as early
    as it can, and costs nothing while it is stopped.
    """

    @property
    def name(self) -> str:
        """Short name for reports, for example ``simulator``."""
        ...

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        """Hand events of the ``wanted`` types to ``sink``; those that can not matter may be left out.

        Raises:
            RecorderUnavailableError: the calls can not be seen now.
        """
        ...

    def widen(self, wanted: frozenset[type[ApiCall]]) -> None:
        """Hand over events of these types, too, from now on, and meanwhile lose none of the others."""
        ...

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        """Let a byte be 1 while calls have happened that are not handed over yet, from ``start`` to ``forget``."""
        ...

    def settle(self) -> None:
        """Use up what the sink has returned so far: what it depends on has changed."""
        ...

    def end_thread(self) -> None:
        """Hand over what is left of the calling thread's calls: it ends."""
        ...

    def stop(self) -> None:
        """Hand over no more events.

        Raises:
            Exception: a call could not be told since ``start``.  The recorder is stopped all the same.
        """
        ...

    def forget(self) -> None:
        """Be stopped in a process that was forked off, and drop what the parent has still to use up."""
        ...
