"""How a run comes by its GPU, on machines made up by monkeypatching what detection asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware import detection, machine
from pytest_gpuinvariants.hardware.detection import (
    NoCudaTorchError,
    NoGpuError,
    RealGpu,
    find_real_gpu,
    require_cuda_torch,
)
from pytest_gpuinvariants.hardware.machine import MachineError, MachineKind, check_choice, choose
from pytest_gpuinvariants.hardware.profiles import Profile
from pytest_gpuinvariants.hardware.simulate import runtime
from pytest_gpuinvariants.hardware.simulate.build import SimulatorBuildError
from pytest_gpuinvariants.hardware.simulate.runtime import SimulatorTooLateError

NO_GPU = NoGpuError("no NVIDIA driver (libcuda.so.1) is installed")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> RealGpu:
        raise NO_GPU

    monkeypatch.setattr(machine, "find_real_gpu", none)


@pytest.fixture
def simulations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What would have been simulated."""
    asked: list[tuple[str, int]] = []

    def open_runtime(profile: Profile, count: int) -> None:
        asked.append((profile.key, count))

    monkeypatch.setattr(runtime, "open_runtime", open_runtime)
    return asked


def test_auto_without_a_use_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(machine, "find_real_gpu", forbidden)
    monkeypatch.setattr(machine, "require_cuda_torch", forbidden)
    assert choose("auto", used=False).kind is MachineKind.UNUSED


def test_auto_takes_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_real_gpu", lambda: RealGpu("NVIDIA GB300", (10, 3), 4))
    chosen = choose("auto", used=True)
    assert (chosen.kind, chosen.label, chosen.capability) == (MachineKind.REAL, "real NVIDIA GB300", (10, 3))
    assert chosen.header == "gpu: real NVIDIA GB300 (SM 10.3), 4 devices: found by the NVIDIA driver"


@pytest.mark.usefixtures("no_gpu")
def test_auto_simulates_an_h100_and_says_why(simulations: list[tuple[str, int]]) -> None:
    chosen = choose("auto", used=True)
    assert simulations == [("h100", 1)]
    assert (chosen.kind, chosen.label) == (MachineKind.SIMULATED, "simulated H100")
    assert chosen.header == f"gpu: simulated H100 (SM 9.0): {NO_GPU}; kernels are recorded, not run"


@pytest.mark.parametrize(
    ("choice", "asked", "capability"),
    [
        ("simulate:h100x2", ("h100", 2), (9, 0)),
        ("simulate:gb300", ("gb300", 1), (10, 3)),
        ("simulate:l4", ("l4", 1), (8, 9)),
    ],
)
def test_simulate_what_was_named(
    choice: str, asked: tuple[str, int], capability: tuple[int, int], simulations: list[tuple[str, int]]
) -> None:
    chosen = choose(choice, used=False)
    assert simulations == [asked]
    assert (chosen.capability, chosen.count) == (capability, asked[1])


@pytest.mark.usefixtures("no_gpu")
def test_real_without_a_gpu_is_an_error() -> None:
    with pytest.raises(MachineError, match=r"--gpu real: no NVIDIA driver"):
        choose("real", used=True)


@pytest.mark.parametrize(
    "error", [SimulatorTooLateError("torch came first"), SimulatorBuildError("apt-get install gcc")]
)
@pytest.mark.usefixtures("no_gpu")
def test_a_simulator_that_can_not_open_is_an_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(profile: Profile, count: int) -> None:
        raise error

    monkeypatch.setattr(runtime, "open_runtime", refuse)
    with pytest.raises(MachineError, match=str(error)):
        choose("auto", used=True)


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_other_systems_have_no_gpu(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    chosen = choose("auto", used=True)
    assert (chosen.kind, chosen.why) == (MachineKind.NONE, f"CUDA can neither be used nor simulated on {system}")
    with pytest.raises(MachineError, match=system):
        choose("simulate:h100", used=True)


def test_torch_must_be_a_cuda_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_cuda_torch()  # the one installed here is

    monkeypatch.setattr(detection, "find_spec", lambda name: None)
    with pytest.raises(NoCudaTorchError, match="torch is not installed"):
        require_cuda_torch()

    package = tmp_path / "torch" / "__init__.py"
    package.parent.mkdir()
    package.touch()
    monkeypatch.undo()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + (
        "from pytest_gpuinvariants.hardware.detection import NoCudaTorchError, require_cuda_torch\n"
        "try:\n    require_cuda_torch()\nexcept NoCudaTorchError as error:\n    print(error, 'torch' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "the installed torch has no CUDA (a CPU build) False"


def test_a_driver_that_can_not_be_asked_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_PROBE", "raise SystemExit(3)")
    with pytest.raises(NoGpuError, match="could not be asked"):
        find_real_gpu()
    monkeypatch.setattr(detection, "_PROBE", 'print(\'{"name": "NVIDIA L4", "major": 8, "minor": 9, "count": 2}\')')
    assert find_real_gpu() == RealGpu("NVIDIA L4", (8, 9), 2)


@pytest.mark.parametrize(
    "choice", ["fake", "simulate:", "simulate:h1000", "simulate:h100x0", "simulate:h100x17", "cuda", ""]
)
def test_wrong_choices_are_named(choice: str) -> None:
    with pytest.raises(ValueError, match=r"simulate:PROFILE|known: h100|1 to 16"):
        check_choice(choice)
