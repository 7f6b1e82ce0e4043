"""Calls of the real CUDA runtime and driver, as CUPTI reports them.

CUPTI admits one subscriber in a process, so this recorder subscribes when a region is armed and
leaves at its end.  Where another tool holds CUPTI, nothing can be verified, and that is what the
test says.

A process that is forked off before CUDA is initialised inherits the subscription and can subscribe
anew.  One that is forked off later gets an error from every call, so that there is nothing to hear.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from pytest_gpuinvariants.events import ApiCall, Copy
from pytest_gpuinvariants.hardware import native_build
from pytest_gpuinvariants.recorders import native
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError, Sink

_C_FILES = ("cupti_recorder.c", "cupti_kernels.c")
_HELD = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_HOLDER_SIZE = 256
_UNNAMED = "<not provided>"  # what CUPTI says of a subscriber that gave no name, as Kineto does not
# What the libraries that a tool injects into a process are called.
_TOOLS = {
    "ToolsInjection": "Nsight Systems",
    "cuda-injection": "Nsight Compute",
    "sanitizer-collection": "compute-sanitizer",
    "cudadebugger": "cuda-gdb",
}
_INJECTION_VARIABLES = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED

_in_use = False  # CUDA was initialised before the last fork, by this process or by one that it was forked off


def mapped_libraries() -> list[str]:
    """Paths of the shared objects in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return list(dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line))


def cuda_is_initialized() -> bool:
    """Whether CUDA is initialised in this process.  Loads no library and initialises nothing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _before_fork() -> None:
    global _in_use
    _in_use = _in_use or cuda_is_initialized()


os.register_at_fork(before=_before_fork)


def _libcupti() -> str:
    """The CUPTI that torch brought: a second copy in the process would not see its calls."""
    import torch  # noqa: F401

    for path in mapped_libraries():
        if Path(path).name.startswith("libcupti.so"):
            return path
    raise RecorderUnavailableError("torch has loaded no libcupti (it is built without its profiler)")


def _injected_tool() -> str | None:
    """The tool that has put a library of its own into this process."""
    libraries = [Path(path).name for path in mapped_libraries()]
    for part, tool in _TOOLS.items():
        if any(part in name for name in libraries):
            return tool
    for variable in _INJECTION_VARIABLES:
        if path := os.environ.get(variable):
            return f"the tool that {variable}={path} injects"
    return None


def holder(named: str) -> str:
    """Who holds CUPTI, as well as can be known.

    Args:
        named: what CUPTI itself says, possibly nothing.
    """
    if tool := _injected_tool():
        return tool
    torch = sys.modules.get("torch")
    if torch is not None and torch.autograd._profiler_enabled():
        return "torch.profiler, which is running"
    if named and _UNNAMED not in named:
        return named
    return "torch.profiler, which keeps it from its first run to the end of the process: profile in another one"


class CuptiRecorder:
    """Turns calls of the real runtime and driver into events."""

    name = "CUPTI"

    def __init__(self, full_stacks: bool = False, libraries: tuple[str, str] | None = None) -> None:
        """Prepare to record.

        Args:
            full_stacks: keep torch's frames and the test runner's.
            libraries: libcupti and libcuda to use; torch's and the system's when None.
        """
        self._hearing = native.Hearing(full_stacks)
        self._libraries = libraries
        self._library: ctypes.CDLL | None = None
        self._nothing_to_hear = False  # forked off a process that uses CUDA: no call can succeed here

    def _open(self) -> ctypes.CDLL:
        """The native library, bound to torch's CUPTI; made at the first region, when torch may be imported."""
        if self._library is None:
            library = ctypes.CDLL(str(native.build("cupti", _C_FILES)))
            problem = ctypes.c_char_p()
            cupti, cuda = self._libraries or (_libcupti(), "libcuda.so.1")
            if library.gi_cupti_open(os.fsencode(cupti), os.fsencode(cuda), ctypes.byref(problem)):
                why = (problem.value or b"a function is missing").decode(errors="replace")
                raise RecorderUnavailableError(f"CUPTI can not be used: {why}")
            library.gi_cupti_start.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
            self._library = library
        return self._library

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        if self._nothing_to_hear:
            return
        try:
            library, listener = self._open(), self._hearing.begin(sink, from_allocator=True)
        except native_build.NativeBuildError as problem:
            raise RecorderUnavailableError(str(problem)) from problem
        self._hearing.widen(Copy in wanted)
        name = ctypes.create_string_buffer(_HOLDER_SIZE)
        if error := library.gi_cupti_start(listener, int(native.classes_of(wanted)), name, len(name)):
            self._hearing.end()
            if error == _HELD:
                raise RecorderUnavailableError(f"CUPTI is held by {holder(name.value.decode(errors='replace'))}")
            tool = _injected_tool()
            raise RecorderUnavailableError(
                f"CUPTI refuses to report calls (error {error}){f': {tool} is in this process' if tool else ''}"
            )

    def widen(self, wanted: frozenset[type[ApiCall]]) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        if self._library is not None and not self._nothing_to_hear:
            self._hearing.widen(Copy in wanted)
            self._library.gi_cupti_widen(ctypes.c_uint32(int(native.classes_of(wanted))))

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.mark_untold(byte)

    def settle(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.settle()

    def end_thread(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.end_thread()

    def stop(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._unsubscribe()
        self._hearing.end()

    def forget(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._nothing_to_hear = _in_use
        self._unsubscribe()
        self._hearing.forget()

    def _unsubscribe(self) -> None:
        if self._library is not None and not self._nothing_to_hear:
            self._library.gi_cupti_stop()
