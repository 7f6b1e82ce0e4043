"""What the native recorders have in common: the C event, and how it becomes one of ours."""

from __future__ import annotations

import ctypes
import sys
from enum import IntEnum, IntFlag
from pathlib import Path
from types import CodeType, FrameType

from _pytest.python import pytest_pyfunc_call

from pytest_gpuinvariants.events import Allocation, ApiCall, Copy, Event, Launch, Memory, Synchronization
from pytest_gpuinvariants.hardware import native_build
from pytest_gpuinvariants.recorders import stacks, torch_copies
from pytest_gpuinvariants.recorders.protocol import Again, Sink


class MemoryKind(IntEnum):
    """What the driver knows about an address; the values are the C source's."""

    WILD = -1
    PAGEABLE = 0
    PINNED = 1
    DEVICE = 2
    REGISTERED = 3


class EventClass(IntFlag):
    """Classes of calls that a listener can ask for; the values are the C source's."""

    SYNC = 1
    COPY_STALL = 2
    COPY_ASYNC = 4
    ALLOC = 8
    LAUNCH = 16
    TORCH_LAUNCH = 32


class NativeEvent(ctypes.Structure):
    """``gi_event`` of ``csrc/native_event.h``."""

    _fields_ = [
        ("api", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("library", ctypes.c_char_p),
        ("bytes", ctypes.c_uint64),
        ("rows", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("thread", ctypes.c_uint64),
        ("event_class", ctypes.c_int32),
        ("destination", ctypes.c_int32),
        ("source", ctypes.c_int32),
        ("blocking", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("capturing", ctypes.c_int32),
        ("result", ctypes.c_int32),
    ]


_SOURCES = Path(__file__).parent / "csrc"
_MOST_KNOWN = 4096
_PYTHON_FUNCTIONS = (
    "PyGILState_Check",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyEval_GetFrame",
    "PyFrame_GetBack",
    "PyFrame_GetCode",
    "PyFrame_GetLasti",
    "Py_IncRef",
    "Py_DecRef",
    "PyObject_CallFunction",
    "PyErr_Fetch",
    "PyErr_Restore",
    "PyErr_WriteUnraisable",
    "Py_AddPendingCall",
)
_PYTHON = (ctypes.c_void_p * len(_PYTHON_FUNCTIONS))(
    *(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _PYTHON_FUNCTIONS)
)

_CLASSES: dict[type[ApiCall], EventClass] = {
    # Copies that can not stall are filtered out before any Python runs.
    Copy: EventClass.COPY_STALL,
    Synchronization: EventClass.SYNC,
    Allocation: EventClass.ALLOC,
    # torch's own kernels are no finding of any rule, and are too many to call Python for.
    Launch: EventClass.LAUNCH,
}
_MEMORY = {
    -1: Memory.INVALID,
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.PINNED,
}


def build(name: str, sources: tuple[str, ...], cache: Path | None = None) -> Path:
    """One of the recorders' libraries, compiled first if this content was never built here.

    Args:
        name: the library's name.
        sources: its C files.
        cache: the folder that holds builds; the user's cache folder when None.

    Raises:
        NativeBuildError: no compiler, or a compilation that failed.
    """
    purpose, library = "the recorder of CUDA calls", f"libgpuinvariants_{name}.so"
    command = [*native_build.find_compiler(purpose), *native_build.FLAGS, "-shared", "-fvisibility=hidden"]

    def produce(folder: Path) -> None:
        files = [str(_SOURCES / source) for source in sources]
        native_build.compile_sources([*command, "-o", library, *files, "-ldl"], folder, purpose)

    root = cache if cache is not None else native_build.cache_root() / name
    return native_build.cached(root, native_build.content_hash(command, sorted(_SOURCES.iterdir())), produce) / library


def classes_of(wanted: frozenset[type[ApiCall]]) -> EventClass:
    """The classes of calls from which events of these types are made."""
    classes = EventClass(0)
    for kind in wanted:
        classes |= _CLASSES[kind]
    return classes


def event_of(native: NativeEvent, frame: FrameType | None, full_stacks: bool = False) -> Event:
    """The event that a native call is.

    Args:
        native: the call; this must run on its thread, while it is under way.
        frame: the innermost Python frame of the caller, None on a thread that Python did not start.
        full_stacks: keep torch's frames and the test runner's.
    """
    api = native.api.decode()
    thread, stack = stacks.current_thread(native.thread), stacks.capture(full_stacks)
    stream, device, result = native.stream, native.device, native.result
    capturing = bool(native.capturing)
    event_class = native.event_class
    if event_class & EventClass.SYNC:
        return Synchronization(
            api=api, thread=thread, stack=stack, stream=stream, device=device, capturing=capturing, result=result
        )
    if event_class & EventClass.ALLOC:
        return Allocation(
            api=api,
            thread=thread,
            stack=stack,
            device=device,
            capturing=capturing,
            result=result,
            bytes=native.bytes,
        )
    if event_class & (EventClass.LAUNCH | EventClass.TORCH_LAUNCH):
        return Launch(
            api=api,
            thread=thread,
            stack=stack,
            stream=stream,
            device=device,
            capturing=capturing,
            result=result,
            kernel=(native.kernel or b"?").decode(errors="replace"),
            library=(native.library or b"an unknown library").decode(errors="replace"),
        )
    source, destination = _MEMORY[native.source], _MEMORY[native.destination]
    return Copy(
        api=api,
        thread=thread,
        stack=stack,
        stream=stream,
        device=device,
        capturing=capturing,
        result=result,
        bytes=native.bytes,
        source=source,
        destination=destination,
        blocking=bool(native.blocking),
        gapped=(source is Memory.PAGEABLE or destination is Memory.PAGEABLE)
        and torch_copies.is_gapped(frame, destination is Memory.DEVICE),
    )


class _Known:
    """A call that was told: how to count one more, and what to look at before, if it copies pageable memory."""

    __slots__ = ("again", "gapped", "to_device")

    def __init__(self, again: Again, event: Event) -> None:
        self.again = again
        self.gapped: bool | None = None
        self.to_device = False
        if isinstance(event, Copy) and Memory.PAGEABLE in (event.source, event.destination):
            self.gapped = event.gapped
            self.to_device = event.destination is Memory.DEVICE


class Hearing:
    """The way of native calls to a sink.  What goes wrong on it is kept, since C could not pass it on.

    A call that was made before, from the same place, is only counted: the C side gives such calls
    the same key, and the sink has said how to count one more.
    """

    def __init__(self, full_stacks: bool = False) -> None:
        self._full_stacks = full_stacks
        self._sink: Sink | None = None
        self._failure: BaseException | None = None
        self._known: dict[int, _Known] = {}
        # The C side tells places apart by the addresses of their code, so those must stay in use.
        self._codes: set[CodeType] = set()
        self._bound = self._receive
        self._library: ctypes.CDLL | None = None

    def begin(self, sink: Sink, from_allocator: bool) -> ctypes.c_void_p:
        """Hand events to ``sink`` from now on; the result is the listener for the C side.

        Args:
            sink: takes the events.
            from_allocator: calls may be told from inside torch's allocator, where Python must not be waited for.

        Raises:
            NativeBuildError: the C side can not be built here.
        """
        if self._library is None:
            self._library = ctypes.CDLL(str(build("hearing", ("hearing.c",))))
        self._library.gi_hearing_open(
            ctypes.byref(_PYTHON), ctypes.py_object(self._bound), ctypes.c_void_p(id(pytest_pyfunc_call.__code__))
        )
        self._sink = sink
        listener = self._library.gi_hear_or_set_aside if from_allocator else self._library.gi_hear
        return ctypes.cast(listener, ctypes.c_void_p)

    def end(self) -> None:
        """Hand over no more.

        Raises:
            RuntimeError: a call could not be told, since ``begin``.
        """
        if self._library is not None:
            self._library.gi_tell_aside()  # what this thread has not told yet
        self._sink = None
        self._forget()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError("a CUDA call could not be told") from failure

    def _forget(self) -> None:
        self._known.clear()
        self._codes.clear()

    def _receive(self, key: int, address: int) -> None:
        try:
            known = self._known.get(key)
            if known is not None:
                # The same call from the same place, but perhaps of another tensor.
                same = known.gapped is None or known.gapped is torch_copies.is_gapped(
                    sys._getframe().f_back, known.to_device
                )
                if same and known.again():
                    return
            sink = self._sink
            if sink is not None:  # else stopped just now, by another thread
                self._tell(sink, key, NativeEvent.from_address(address), sys._getframe().f_back)
        except BaseException as error:
            self._failure = error

    def _tell(self, sink: Sink, key: int, native: NativeEvent, frame: FrameType | None) -> None:
        event = event_of(native, frame, self._full_stacks)
        again = sink(event)
        if again is None:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._forget()
        while frame is not None:
            self._codes.add(frame.f_code)
            frame = frame.f_back
        self._known[key] = _Known(again, event)
