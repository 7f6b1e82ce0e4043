"""What recorders see, with the Python stack that made it: calls of the CUDA API, configuration reads, global state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Memory(StrEnum):
    """What the driver knows about an address."""

    PAGEABLE = "pageable"
    PINNED = "pinned"
    DEVICE = "device"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame: dotted module, qualified name, file, line number (from 1)."""

    module: str
    function: str
    file: str
    line: int

    @property
    def qualified(self) -> str:
        """``module.Class.method``: stable across lines, versions and machines."""
        return f"{self.module}.{self.function}"


Stack = tuple[Frame, ...]
"""Frames, innermost first, cut to the caller's code: libraries' own plumbing and pytest are gone."""


@dataclass(frozen=True, slots=True)
class Thread:
    """The calling thread: native id and, when Python started it, its name."""

    native_id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of the CUDA runtime or driver API.

    ``result`` is the CUDA error code the caller got (0: success); ``capturing`` says that the stream
    was being captured into a graph, or that the capture refused the call.  Of a call that is not
    ``simulated`` only its name is known: the simulated runtime answers "not supported".
    """

    api: str
    thread: Thread
    stack: Stack
    stream: int = 0
    device: int = 0
    capturing: bool = False
    result: int = 0
    simulated: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(ApiCall):
    """A transfer of ``bytes`` bytes.

    ``blocking`` means that the call has no asynchronous contract (``cudaMemcpy``); ``gapped`` that
    the host side is a non-contiguous pinned tensor, of which torch copies a pageable duplicate.
    """

    bytes: int
    source: Memory
    destination: Memory
    blocking: bool
    gapped: bool = False

    @property
    def direction(self) -> str:
        """``H2D``, ``D2H``, ``D2D`` or ``H2H``."""
        sides = ["D" if memory is Memory.DEVICE else "H" for memory in (self.source, self.destination)]
        return "2".join(sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronization(ApiCall):
    """The host waits for a stream, an event or a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(ApiCall):
    """Memory taken from the driver or given back to it (``bytes`` is 0 then)."""

    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(ApiCall):
    """A kernel launch: the kernel's name as registered, and the file it came from."""

    kernel: str
    library: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastRequest:
    """Code was about to create an NVLink multicast object; ``api`` is the function that does it."""

    api: str
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendResolved:
    """A resolver answered: ``accepted`` backends, the preferred one first, for a process group (by ``id``)."""

    accepted: tuple[str, ...]
    group: int
    in_context: bool
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendAsked:
    """A workspace of this backend was asked for, for a process group (by ``id``)."""

    backend: str
    group: int
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceGiven:
    """A getter gave a shared workspace: what was ``asked`` for, and what it was ``made`` for, by the same names."""

    asked: Mapping[str, str]
    made: Mapping[str, str]
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceMade:
    """The creation of a shared workspace began; ``syncs_allowed`` tells whether it may wait for the device."""

    syncs_allowed: bool
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswered:
    """A gate admitted or refused ``what``; ``sufficient`` is what the workspace itself says, or another rank."""

    what: str
    admitted: bool
    sufficient: bool
    thread: Thread
    stack: Stack


Event = Copy | Synchronization | Allocation | Launch
EVENT_TYPES: tuple[type[ApiCall], ...] = (Copy, Synchronization, Allocation, Launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportEffect:
    """Something that the import of a module did to its process or to the machine.

    ``subject`` is what was touched, the same on every machine (a variable, an operation, a function);
    ``detail`` what differs between machines (a path, an address, a command).  ``process`` names the
    process that imported it.  The stack is whole, innermost frame first; line 0 stands for a module
    of which only the whole is known to be at fault.
    """

    kind: str
    subject: str
    detail: str
    thread: Thread
    stack: Stack
    process: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRead:
    """A read of vLLM's current configuration while none is set.

    ``function`` is the getter, ``answer`` what the reader got: ``None``, ``a default`` or the name of
    an exception.  The stack begins with the reader.
    """

    function: str
    answer: str
    thread: Thread
    stack: Stack

    @property
    def reader(self) -> str:
        """``module.qualname`` of the reader."""
        return self.stack[0].qualified if self.stack else "a native thread"


class Change(StrEnum):
    """How process-wide state was not what it should have been."""

    LEFT = "left"
    """It came into being, and was still there at the end."""
    CHANGED = "changed"
    """It had another value at the end."""
    INHERITED = "inherited"
    """It was there from the beginning, or a fixture of wider scope made it, and it could not be moved away."""
    ASIDE = "aside"
    """It was there before, and was set aside for the time of the test."""
    KEPT = "kept"
    """A fixture of wider scope changed it: that is the fixture's to undo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """Process-wide state that a test made, changed or found.

    ``name`` is that of the registry's entry.  The stack is that of its creation, or of its last change.
    """

    name: str
    change: Change
    detail: str
    thread: Thread
    stack: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a resolver answered: ``under`` the condition that is looked at, or not.

    Equal answers have one ``value``; ``asked`` is how often the configuration was read for it, anywhere.
    """

    under: bool
    value: int
    shown: str
    asked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolutions:
    """A resolver's answers with and without a condition, in each order, each order with fresh caches.

    ``condition`` is ``context``, ``environment`` or ``import``, ``name`` what it is in words.  ``reads``
    are those of the configuration outside of a context, with their counts, the most frequent first.
    """

    resolver: str
    condition: str
    name: str
    orders: tuple[tuple[Answer, Answer], ...]
    reads: tuple[tuple[ConfigRead, int], ...]
    thread: Thread
    stack: Stack
