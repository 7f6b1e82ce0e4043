"""What ``--gpu`` says of fakes, and what a test of each kind then sees."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.hardware.fakes import parse_fake, parse_layers
from pytest_gpuinvariants.hardware.machine import Machine, MachineKind, check_choice


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
