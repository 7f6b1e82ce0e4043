"""What a card is made to look like: parsed from ``--gpu``, pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gpuinvariants.hardware.profiles import PROFILES, Profile

FORMS = "auto, real or simulate:PROFILE, then fakes: fake:sm90, fake:sm103a, fake:h100 (layers separated by commas)"
CAPABILITIES = ["7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1"]
"""Compute capabilities that CUDA names, from 7.0 on (CUDA C++ Programming Guide, compute capabilities)."""


@dataclass(frozen=True)
class Fake:
    """What code is told instead of the truth.

    ``label`` is for reports (``sm_90``, ``GB300``); ``arch`` the entry of ``FLASHINFER_CUDA_ARCH_LIST``;
    ``profile`` None leaves name, SM count, memory and clocks true.
    """

    label: str
    capability: tuple[int, int]
    arch: str
    profile: Profile | None = None

    @property
    def faked(self) -> str:
        """What is faked, and what stays true, for the report's header."""
        what = f"faking {self.label} for collection and host_only tests: capability"
        if self.profile is None:
            return f"{what} only; SM count, memory and clocks stay true"
        return f"{what}, name, SM count, memory, shared memory and clocks of {self.profile.label}"


def parse_fake(text: str) -> Fake:
    """Read ``sm90``, ``sm_90``, ``sm90a``, ``sm100f`` or a profile's name.

    Raises:
        ValueError: it is neither; the message lists what is accepted.
    """
    word = text.strip().lower()
    if profile := PROFILES.get(word):
        return Fake(profile.label, profile.capability, profile.arch_list, profile)
    match = re.fullmatch(r"sm_?(?P<major>\d{1,2})(?P<minor>\d)(?P<suffix>[af]?)", word)
    capability = f"{int(match['major'])}.{match['minor']}" if match else ""
    first = {"": 0, "a": 9, "f": 10}[match["suffix"] if match else ""]
    if match is None or capability not in CAPABILITIES or int(match["major"]) < first:
        known = ", ".join(f"sm{one.replace('.', '')}" for one in CAPABILITIES)
        raise ValueError(
            f"unknown fake {text!r}; known: {known} (with a from sm90 on, f from sm100 on), {', '.join(PROFILES)}"
        )
    major, minor = int(match["major"]), int(match["minor"])
    suffix = match["suffix"] or ("a" if major >= 9 else "")
    return Fake(f"sm_{major}{minor}{match['suffix']}", (major, minor), f"{capability}{suffix}")


def layered(fakes: Iterable[Fake]) -> Fake | None:
    """One laid over the other: a capability over a profile leaves the rest of the profile; None without any."""
    result: Fake | None = None
    for fake in fakes:
        if result is None or fake.profile is not None:
            result = fake
        else:
            inner = result.profile.label if result.profile else None
            label = f"{inner} faking {fake.label}" if inner else fake.label
            result = Fake(label, fake.capability, fake.arch, result.profile)
    return result


def parse_layers(choice: str) -> tuple[str, Fake | None]:
    """Split a ``--gpu`` choice into its base (``auto`` when none is named) and its fake.

    Raises:
        ValueError: a fake is not known, or a base does not come first.
    """
    layers = [layer.strip() for layer in choice.split(",")]
    base = "auto" if layers[0].startswith("fake:") else layers.pop(0)
    wrong = [layer for layer in layers if not layer.startswith("fake:")]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not a fake; accepted: {FORMS}")
    return base, layered(parse_fake(layer.removeprefix("fake:")) for layer in layers)
