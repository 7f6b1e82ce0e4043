"""Events of the simulated CUDA runtime."""

from __future__ import annotations

import ctypes

from pytest_gpuinvariants.events import ApiCall, Copy
from pytest_gpuinvariants.hardware.native_build import NativeBuildError
from pytest_gpuinvariants.hardware.simulate.runtime import SimulatedRuntime
from pytest_gpuinvariants.recorders import native
from pytest_gpuinvariants.recorders.protocol import RecorderUnavailableError, Sink


class SimulatorRecorder:
    """Turns calls of the simulated runtime into events."""

    name = "simulator"

    def __init__(self, runtime: SimulatedRuntime, full_stacks: bool = False) -> None:
        self._runtime = runtime
        self._hearing = native.Hearing(full_stacks)
        self._listener = ctypes.c_void_p()
        self._classes = native.EventClass(0)

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        try:
            self._listener = self._hearing.begin(sink, from_allocator=False)
        except NativeBuildError as error:
            raise RecorderUnavailableError(str(error)) from error
        self._classes = native.EventClass(0)
        self.widen(wanted)

    def widen(self, wanted: frozenset[type[ApiCall]]) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.widen(Copy in wanted)
        self._classes |= native.classes_of(wanted)
        self._runtime.attach(self._listener, int(self._classes))

    def mark_untold(self, byte: ctypes.c_uint8) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.mark_untold(byte)

    def settle(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._hearing.settle()

    def end_thread(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._runtime.deliver()

    def stop(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._runtime.attach(None)
        self._hearing.end()

    def forget(self) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        self._runtime.attach(None)
        self._hearing.forget()
