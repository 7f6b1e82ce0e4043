"""How a run comes by its GPU, on machines made up by monkeypatching what detection asks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuinvariants import outcome, session
from pytest_gpuinvariants.hardware import detection, machine
from pytest_gpuinvariants.hardware.detection import (
    NoCudaTorchError,
    NoGpuError,
    RealGpus,
    find_real_gpus,
    require_cuda_torch,
)
from pytest_gpuinvariants.hardware.facts import MachineFacts
from pytest_gpuinvariants.hardware.identity import Device
from pytest_gpuinvariants.hardware.machine import MachineError, MachineKind, check_choice, choose
from pytest_gpuinvariants.hardware.profiles import PROFILES, Profile
from pytest_gpuinvariants.hardware.simulate import runtime
from pytest_gpuinvariants.hardware.simulate.build import SimulatorBuildError
from pytest_gpuinvariants.hardware.simulate.runtime import SimulatorTooLateError
from pytest_gpuinvariants.integrations import torch_build
from pytest_gpuinvariants.record import TestRecord
from pytest_gpuinvariants.report import verdicts

NO_GPU = NoGpuError("no NVIDIA driver (libcuda.so.1) is installed")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> RealGpus:
        raise NO_GPU

    monkeypatch.setattr(machine, "find_real_gpus", none)


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

    monkeypatch.setattr(machine, "find_real_gpus", forbidden)
    monkeypatch.setattr(machine, "require_cuda_torch", forbidden)
    assert choose("auto", used=False).kind is MachineKind.UNUSED


@pytest.mark.parametrize(
    ("visible", "meant"),
    [
        (None, None),
        ("0,1", None),
        (",".join(runtime.device_uuid(PROFILES["h200"], index) for index in (0, 1)), None),
        ("", "no device"),
        ("1", "cuda:1"),
        ("1,0", "cuda:1, cuda:0"),
        (runtime.device_uuid(PROFILES["h200"], 1), "cuda:1"),
        ("GPU-0", "no device"),
    ],
)
@pytest.mark.usefixtures("simulations")
def test_devices_that_only_a_variable_hides_are_told(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, meant: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    chosen = choose("simulate:h200x2", used=True)
    assert chosen.count == 2
    assert bool(chosen.warnings) == (meant is not None)
    if meant is not None:
        (told,) = chosen.warnings
        assert told.startswith(
            f"CUDA_VISIBLE_DEVICES={visible!r} means {meant} of the 2 simulated, which are all visible"
        )
        assert "--gpu simulate:PROFILExN" in told


def test_auto_takes_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_real_gpus", lambda: RealGpus((Device("u", "NVIDIA GB300", (10, 3)),) * 4))
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


@pytest.fixture
def asked_anew() -> Iterator[None]:
    detection._ask.cache_clear()
    yield
    detection._ask.cache_clear()


@pytest.mark.usefixtures("asked_anew")
def test_a_driver_that_can_not_be_asked_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_PROBE", "raise SystemExit(3)")
    with pytest.raises(NoGpuError, match="could not be asked"):
        find_real_gpus()


ANSWER = {
    "devices": [["u1", "NVIDIA H200", [9, 0], 151 << 30], ["u0", "NVIDIA L4", [8, 9], 24 << 30]],
    "nvml": [["u0", "NVIDIA L4", [8, 9]], ["u1", "NVIDIA H200", [9, 0]]],
    "unlinked": "NVML reports no NVLink between them",
}


@pytest.fixture
def mixed_cards(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose fastest card, the first to CUDA, is the second to NVML."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(detection, "_PROBE", f"print({json.dumps(json.dumps(ANSWER))})")


@pytest.mark.usefixtures("mixed_cards")
def test_a_capability_that_nvml_takes_from_another_card_is_told() -> None:
    chosen = choose("real", used=True)
    assert (chosen.label, chosen.capability, chosen.count) == ("real NVIDIA H200", (9, 0), 2)
    first, second = chosen.warnings
    assert first.startswith("cuda:0 is NVIDIA H200 (SM 9.0), but NVML's device 0 is NVIDIA L4 (SM 8.9): ")
    assert first.endswith("set CUDA_DEVICE_ORDER=PCI_BUS_ID before CUDA starts")
    assert second.startswith("cuda:1 is NVIDIA L4 (SM 8.9), but NVML's device 1 is NVIDIA H200 (SM 9.0): ")


@pytest.mark.usefixtures("mixed_cards")
def test_gates_see_the_current_device_of_a_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = MachineFacts(choose("real", used=True))
    assert (facts.name, facts.capability, facts.count) == ("real NVIDIA H200", (9, 0), 2)
    assert (facts.memory_bytes, facts.nvlink) == (151 << 30, ANSWER["unlinked"])
    monkeypatch.setattr(torch_build, "current_device", lambda: 1)
    assert (facts.name, facts.capability, facts.memory_bytes) == ("real NVIDIA L4", (8, 9), 24 << 30)
    assert MachineFacts(facts.machine, device=0).name == "real NVIDIA H200"
    # Hidden after the start of the run: asked again, since the variable has another value.
    hidden = json.dumps({"why": "no GPU is visible"})
    monkeypatch.setattr(detection, "_PROBE", f"print({hidden!r})")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (facts.capability, facts.count) == (None, 0)
    assert facts.absence == "no GPU is visible any more (see CUDA_VISIBLE_DEVICES)"


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.usefixtures("mixed_cards")
def test_a_verdict_names_the_device_that_was_current_at_the_end_of_the_body(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, current: int
) -> None:
    run = session.current()
    item = request.node
    kept = list(item.user_properties)
    with monkeypatch.context() as patch:
        patch.setattr(run, "current", TestRecord(invariants=["no_implicit_sync"], finished=True))
        patch.setattr(run, "machine", choose("real", used=True))
        for when in ("setup", "call", "teardown"):
            # A fixture makes the first one current again.
            patch.setattr(torch_build, "current_device", lambda when=when: current if when == "call" else 0)
            call = pytest.CallInfo.from_call(lambda: None, when)
            outcome.finish(run, item, call, pytest.TestReport.from_item_and_call(item, call))
    told, item.user_properties = item.user_properties[len(kept) :], kept
    assert (verdicts.GPU, ["real NVIDIA H200", "real NVIDIA L4"][current]) in told


@pytest.mark.parametrize(
    ("choice", "memory", "nvlink"),
    [
        ("simulate:h100x2", 80 << 30, None),
        ("simulate:h100", 80 << 30, "there is 1 GPU"),
        ("simulate:l4x2", 24 << 30, "L4 has no NVLink"),
    ],
)
@pytest.mark.usefixtures("simulations")
def test_gates_see_what_a_profile_declares(choice: str, memory: int, nvlink: str | None) -> None:
    facts = MachineFacts(choose(choice, used=True))
    assert (facts.memory_bytes, facts.nvlink) == (memory, nvlink)


def test_the_cuda_of_torch_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\nfrom pytest_gpuinvariants.integrations.torch_build import cuda_version, current_device\n"
        "read, index = cuda_version(), current_device()\nassert 'torch' not in sys.modules\nimport torch\n"
        "print(read == torch.version.cuda == cuda_version(), index)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "0"]


@pytest.mark.parametrize(
    "choice", ["fake", "simulate:", "simulate:h1000", "simulate:h100x0", "simulate:h100x17", "cuda", ""]
)
def test_wrong_choices_are_named(choice: str) -> None:
    with pytest.raises(ValueError, match=r"simulate:PROFILE|known: h100|1 to 16"):
        check_choice(choice)
