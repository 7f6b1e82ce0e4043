"""What the native recorders have in common: the C event, and how it becomes one of ours."""

from __future__ import annotations

import ctypes
import sys
import threading
from contextvars import ContextVar
from enum import IntEnum, IntFlag
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from _pytest.python import pytest_pyfunc_call

from pytest_gpuinvariants.events import (
    Allocation,
    ApiCall,
    Copy,
    Event,
    Launch,
    Memory,
    Stack,
    Synchronization,
    Thread,
)
from pytest_gpuinvariants.hardware import native_build
from pytest_gpuinvariants.integrations import vllm_sync
from pytest_gpuinvariants.recorders import frame_layout, stacks, torch_copies
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
    NOT_SIMULATED = 64


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
_C_FILES = ("hearing.c", "native_threads.c", "frames.c", "copying.c")
_MOST_NAMED = 4096  # as in hearing.c
_MOST_NATIVE = 1024  # as in native_threads.c
_NATIVE_THREAD = "native"
_PYTHON_FUNCTIONS = (
    "Py_IsInitialized",
    "PyGILState_Check",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyGILState_GetThisThreadState",
    "PyThreadState_Get",
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
    "PyContextVar_Get",
    "PyType_FromSpec",
    "PyType_GenericAlloc",
    "PyMethod_New",
    "PyObject_GetAttr",
    "PyObject_Vectorcall",
    "PyVectorcall_Call",
    "PyTuple_Size",
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
    MemoryKind.WILD: Memory.INVALID,
    MemoryKind.PAGEABLE: Memory.PAGEABLE,
    MemoryKind.PINNED: Memory.PINNED,
    MemoryKind.DEVICE: Memory.DEVICE,
    MemoryKind.REGISTERED: Memory.PINNED,
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
    identity = native_build.content_hash([*command, *sources], sorted(_SOURCES.iterdir()))
    return native_build.cached(root, identity, produce) / library


def classes_of(wanted: frozenset[type[ApiCall]]) -> EventClass:
    """The classes of calls from which events of these types are made."""
    classes = EventClass(0)
    for kind in wanted:
        classes |= _CLASSES[kind]
    return classes


def event_of(native: NativeEvent, thread: Thread, stack: Stack) -> Event:
    """The event that a native call is."""
    call: dict[str, Any] = {
        "api": native.api.decode(),
        "thread": thread,
        "stack": stack,
        "stream": native.stream,
        "device": native.device,
        "capturing": bool(native.capturing),
        "result": native.result,
        "simulated": not native.event_class & EventClass.NOT_SIMULATED,
    }
    event_class = native.event_class
    if event_class & EventClass.SYNC:
        return Synchronization(**call)
    if event_class & EventClass.ALLOC:
        return Allocation(**call, bytes=native.bytes)
    if event_class & (EventClass.LAUNCH | EventClass.TORCH_LAUNCH):
        kernel = (native.kernel or b"?").decode(errors="replace")
        library = (native.library or b"an unknown library").decode(errors="replace")
        return Launch(**call, kernel=kernel, library=library)
    source, destination = _MEMORY[native.source], _MEMORY[native.destination]
    pageable = source is Memory.PAGEABLE or destination is Memory.PAGEABLE
    return Copy(
        **call,
        bytes=native.bytes,
        source=source,
        destination=destination,
        blocking=bool(native.blocking),
        gapped=pageable and bool(stack) and torch_copies.is_gapped(),
    )


class Hearing:
    """The way of native calls to a sink.  What goes wrong on it is kept, since C could not pass it on.

    A call like one before, from the same place, does not get here: the C side counts it, and the
    sink has said how to count more of them.
    """

    def __init__(self, full_stacks: bool = False) -> None:
        self._full_stacks = full_stacks
        self._sink: Sink | None = None
        self._failure: BaseException | None = None
        self._named: dict[int, Again] = {}
        # The C side tells places apart by the addresses of their code, so those must stay in use.
        # By identity: equal code at another address is another place.
        self._codes: dict[int, CodeType] = {}
        self._variable: ContextVar[int] | None = None
        self._bound = self._receive
        self._bound_native = self._tell_native_calls
        self._naming = threading.RLock()
        self._generation = 0
        """How often was settled."""
        self._mark: ctypes.c_uint8 | None = None
        self._telling = threading.RLock()  # a signal's handler may come in between
        self._keys = (ctypes.c_uint64 * _MOST_NAMED)()
        self._counts = (ctypes.c_uint64 * _MOST_NAMED)()
        self._library: ctypes.PyDLL | None = None

    def begin(self, sink: Sink, from_allocator: bool) -> ctypes.c_void_p:
        """Hand events to ``sink`` from now on; the result is the listener for the C side.

        Args:
            sink: takes the events.
            from_allocator: calls may be told from inside torch's allocator, where Python must not be waited for.

        Raises:
            NativeBuildError: the C side can not be built here.
        """
        if self._library is None:
            # Its functions run under Python's lock.
            self._library = ctypes.PyDLL(str(build("hearing", _C_FILES)))
            self._library.gi_take_counts.restype = ctypes.c_size_t
            self._library.gi_native_calls.restype = self._library.gi_take_native_calls.restype = ctypes.c_size_t
        self._library.gi_hearing_open(ctypes.byref(_PYTHON), ctypes.py_object(self._bound))
        self._library.gi_native_threads_open(ctypes.py_object(self._bound_native))
        frames = frame_layout.layout()
        self._library.gi_frames_open(
            ctypes.c_void_p(id(pytest_pyfunc_call.__code__)), None if frames is None else ctypes.byref(frames)
        )
        self._depend_on(vllm_sync.variable())
        self._take_native_calls()  # of a thread that was in the middle of one as the last region ended
        self._sink = sink
        listener = self._library.gi_hear_or_set_aside if from_allocator else self._library.gi_hear
        return ctypes.cast(listener, ctypes.c_void_p)

    def widen(self, copies: bool) -> None:
        """Prepare for what may be among the events from now on.

        Args:
            copies: copies are.
        """
        if copies and self._library is not None:
            torch_copies.install(self._library)

    def settle(self) -> None:
        """Count what the C side has only counted, and have every call told anew from now on."""
        if self._library is None:
            return
        self._library.gi_tell_aside()  # what this thread has not told yet
        self._tell_native_calls()
        with self._naming:
            self._generation += 1
            taken = self._library.gi_take_counts(self._keys, self._counts)
            counted = [(self._named[self._keys[index]], self._counts[index]) for index in range(taken)]
            self._named.clear()
            self._codes.clear()
        for again, count in counted:
            again(count)

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        """Let a byte be 1 while there are calls that this process would take with it if it died now.

        Args:
            byte: must stay where it is, until another one takes its place.
        """
        self._mark = byte
        if self._library is not None:
            self._library.gi_native_threads_mark(ctypes.byref(byte))

    def end_thread(self) -> None:
        """Hand over what is left of the calling thread's calls."""
        if self._library is not None:
            self._library.gi_tell_aside()

    def end(self) -> None:
        """Hand over no more.

        Raises:
            RuntimeError: a call could not be told, since ``begin``.
        """
        try:
            self.settle()
        except BaseException as error:
            self._failure = error
        torch_copies.remove()
        if self._library is not None:
            self._depend_on(None)
        self._sink = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError("a CUDA call could not be told") from failure

    def forget(self) -> None:
        """End in a process that was forked off: what was not handed over yet is the parent's to hand over."""
        if self._library is not None:
            self._library.gi_drop_aside()
            self._library.gi_drop_native_calls()
            self._telling = threading.RLock()
            self._library.gi_take_counts(self._keys, self._counts)
        self._naming = threading.RLock()
        self._named = {}
        self._failure = None
        self.end()

    def _depend_on(self, variable: ContextVar[int] | None) -> None:
        assert self._library is not None
        if variable is not self._variable:
            self._library.gi_depend_on(None if variable is None else ctypes.py_object(variable))
            self._variable = variable

    def _tell_native_calls(self) -> None:
        """Tell the calls of threads that Python does not know.  Returns when they are told, by whichever thread."""
        with self._telling:
            if self._library is None or (sink := self._sink) is None:
                return
            for native, count in self._take_native_calls():
                event = event_of(native, Thread(native.thread, _NATIVE_THREAD), ())
                if (again := sink(event)) is not None:
                    again(count - 1)
                    continue
                for _ in range(count - 1):
                    sink(event)
            self._library.gi_native_calls_told()

    def _take_native_calls(self) -> list[tuple[NativeEvent, int]]:
        library = self._library
        if library is None or not library.gi_native_calls():
            return []
        events, counts, missed = (NativeEvent * _MOST_NATIVE)(), (ctypes.c_uint64 * _MOST_NATIVE)(), ctypes.c_uint64()
        taken = library.gi_take_native_calls(events, counts, ctypes.byref(missed))
        if missed.value:
            self._failure = RuntimeError(f"{missed.value} calls of native threads were too many to keep apart")
        return list(zip(events[:taken], counts[:taken], strict=True))

    def _receive(self, key: int, address: int) -> None:
        try:
            sink = self._sink
            if sink is not None:  # else stopped just now, by another thread
                self._tell(sink, key, NativeEvent.from_address(address), sys._getframe().f_back)
        except BaseException as error:
            self._failure = error

    def _tell(self, sink: Sink, key: int, native: NativeEvent, frame: FrameType | None) -> None:
        # On the calling thread, while the call is under way.
        generation = self._generation
        again = sink(event_of(native, stacks.current_thread(native.thread), stacks.capture(self._full_stacks)))
        if again is None:
            return
        if len(self._named) >= _MOST_NAMED:
            self.settle()
        assert self._library is not None
        self._depend_on(vllm_sync.variable())  # vLLM may have been imported meanwhile
        with self._naming:
            if self._generation != generation:
                return  # settled meanwhile, by another thread: what is armed may be something else
            while frame is not None:
                self._codes[id(frame.f_code)] = frame.f_code
                frame = frame.f_back
            self._named[key] = again
            self._library.gi_name(ctypes.c_uint64(key))
