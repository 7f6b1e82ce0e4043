"""Events of the simulated CUDA runtime."""

from __future__ import annotations

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

    def start(self, sink: Sink, wanted: frozenset[type[ApiCall]]) -> None:
        """See :class:`~pytest_gpuinvariants.recorders.protocol.Recorder`."""
        try:
            listener = self._hearing.begin(sink, Copy in wanted, from_allocator=False)
        except NativeBuildError as error:
            raise RecorderUnavailableError(str(error)) from error
        self._runtime.attach(listener, int(native.classes_of(wanted)))

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
