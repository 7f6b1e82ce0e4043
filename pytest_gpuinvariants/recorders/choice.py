"""The recorder that fits a machine.  Imports one only when it is made: what is not used costs nothing."""

from __future__ import annotations

from pytest_gpuinvariants.recorders.protocol import Recorder


def make_recorder(simulated: bool, full_stacks: bool = False) -> Recorder:
    """The recorder of a simulated card, which must be open, or of a real one.

    Raises:
        RuntimeError: the simulated card is not open in this process.
    """
    if not simulated:
        from pytest_gpuinvariants.recorders.cupti import CuptiRecorder

        return CuptiRecorder(full_stacks)
    from pytest_gpuinvariants.hardware.simulate.runtime import opened
    from pytest_gpuinvariants.recorders.simulator import SimulatorRecorder

    runtime = opened()
    if runtime is None:
        raise RuntimeError("the simulated card was not opened before torch was imported")
    return SimulatorRecorder(runtime, full_stacks)
