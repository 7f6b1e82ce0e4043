"""What ``--gpu`` says of fakes, and what a test of each kind then sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuinvariants.hardware.fakes import parse_fake, parse_layers
from pytest_gpuinvariants.hardware.gates import refusal
from pytest_gpuinvariants.hardware.machine import Machine, MachineKind, check_choice
from tests.made_facts import Made


@pytest.mark.parametrize(
    ("word", "label", "capability", "arch"),
    [
        ("sm90", "sm_90", (9, 0), "9.0a"),
        ("sm_90", "sm_90", (9, 0), "9.0a"),
        ("sm90a", "sm_90a", (9, 0), "9.0a"),
        ("sm100f", "sm_100f", (10, 0), "10.0f"),
        ("sm103a", "sm_103a", (10, 3), "10.3a"),
        ("sm89", "sm_89", (8, 9), "8.9"),
        ("h100", "H100", (9, 0), "9.0a"),
    ],
)
def test_fakes_are_read(word: str, label: str, capability: tuple[int, int], arch: str) -> None:
    fake = parse_fake(word)
    assert (fake.label, fake.capability, fake.arch) == (label, capability, arch)


@pytest.mark.parametrize("choice", ["fake:sm42", "fake:sm80a", "fake:sm90f", "fake:", "fake:sm90,real", "real,sm90"])
def test_wrong_layers_name_what_is_accepted(choice: str) -> None:
    with pytest.raises(ValueError, match=r"known: sm70|accepted: auto"):
        check_choice(choice)


def test_a_capability_over_a_profile_keeps_the_profile() -> None:
    base, fake = parse_layers("real,fake:gb300,fake:sm90")
    assert base == "real"
    assert fake is not None
    assert fake.profile is not None
    assert (fake.label, fake.capability, fake.profile.key) == ("GB300 faking sm_90", (9, 0), "gb300")
    assert parse_layers("fake:sm90")[0] == "auto"


def test_only_host_only_tests_see_the_fake() -> None:
    machine = Machine(MachineKind.REAL, "real NVIDIA B200", "why", (10, 0), 1, fake=parse_fake("sm90"))
    assert (machine.seen(True).label, machine.seen(True).capability) == ("real NVIDIA B200 faking sm_90", (9, 0))
    assert machine.seen(False) is machine


CARDS = {
    "real H200": Machine(MachineKind.REAL, "real NVIDIA H200", "", (9, 0), 1),
    "real B200": Machine(MachineKind.REAL, "real NVIDIA B200", "", (10, 0), 1),
    "simulated H100": Machine(MachineKind.SIMULATED, "simulated H100", "", (9, 0), 1),
    "simulated L4": Machine(MachineKind.SIMULATED, "simulated L4", "", (8, 9), 1),
}
RUNS = None
NEEDS, KERNELS = "not verified: needs SM 9.x; this is ", "not verified: runs kernels, and needs a real SM 9.x; this is "
NOT_RUN = ", where kernels do not run"


@pytest.mark.parametrize(
    ("card", "fake", "host_only", "kernels"),
    [
        ("real H200", "", RUNS, RUNS),
        ("real H200", ",fake:gb300", f"{NEEDS}real NVIDIA H200 faking GB300, SM 10.3", RUNS),
        ("real H200", ",fake:gb300,fake:sm90", RUNS, RUNS),
        ("real H200", ",fake:sm89", f"{NEEDS}real NVIDIA H200 faking sm_89, SM 8.9", RUNS),
        ("real B200", "", f"{NEEDS}real NVIDIA B200, SM 10.0", f"{NEEDS}real NVIDIA B200, SM 10.0"),
        ("real B200", ",fake:sm90", RUNS, f"{KERNELS}real NVIDIA B200, SM 10.0 (faking sm_90)"),
        ("real B200", ",fake:h100", RUNS, f"{KERNELS}real NVIDIA B200, SM 10.0 (faking H100)"),
        ("simulated H100", "", RUNS, f"{KERNELS}simulated H100, SM 9.0{NOT_RUN}"),
        (
            "simulated H100",
            ",fake:gb300",
            f"{NEEDS}simulated H100 faking GB300, SM 10.3",
            f"{KERNELS}simulated H100, SM 9.0{NOT_RUN}",
        ),
        ("simulated L4", ",fake:sm90a", RUNS, f"{KERNELS}simulated L4, SM 8.9 (faking sm_90a)"),
        ("simulated L4", "", f"{NEEDS}simulated L4, SM 8.9", f"{NEEDS}simulated L4, SM 8.9"),
    ],
)
def test_card_and_fake_and_kind_give_the_verdict(
    card: str, fake: str, host_only: str | None, kernels: str | None
) -> None:
    machine = replace(CARDS[card], fake=parse_layers(f"real{fake}")[1])
    for only, expected in ((True, host_only), (False, kernels)):
        seen = machine.seen(only)
        assert refusal(Made(seen, seen.capability), [("requires_sm90", {"host_only": only})]) == expected
