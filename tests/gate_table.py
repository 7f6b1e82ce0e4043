"""The answers of our gates, of vLLM's predicates and of FlashInfer's to every known compute capability.

``python -m tests.gate_table`` prints the tables of docs/gates.md, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from pytest_gpuinvariants.hardware.gates import NAMED, Capability, satisfies

CAPABILITIES: tuple[Capability, ...] = (
    *((7, 0), (7, 2), (7, 5), (8, 0), (8, 6), (8, 7), (8, 8), (8, 9), (9, 0)),
    *((10, 0), (10, 1), (10, 3), (11, 0), (12, 0), (12, 1)),
)
NUMBERS = (80, 89, 90, 100, 103, 120)
TARGETS = (
    *("9.0a", "10.0a", "10.0f", "10.1a", "10.1f", "10.3a", "10.3f", "11.0a", "11.0f"),
    *("12.0a", "12.0f", "12.1a", "12.1f"),
)
Held = Callable[[Capability], bool]


def ours() -> dict[str, Held]:
    """Our gates, bare, as pure decisions."""

    def named(name: str) -> Held:
        major, minor = NAMED[name]
        return lambda capability: satisfies(capability, major, minor or None)

    return {f"`{name}`": named(name) for name in NAMED}


def of_targets() -> dict[str, Held]:
    """The gate for code of each suffixed target: ``a`` runs there alone, ``f`` on its family."""

    def gate(target: str) -> Held:
        major, minor = (int(part) for part in target[:-1].split("."))
        return lambda capability: satisfies(capability, major, minor, family=target.endswith("f"))

    return {target: gate(target) for target in TARGETS}


def vllm() -> dict[str, Held]:
    """VLLM's three predicates, of its real platform class with the capability replaced."""
    from vllm.platforms.cuda import NvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    def predicate(name: str, number: int) -> Held:
        def held(capability: Capability) -> bool:
            answer = mock.Mock(return_value=DeviceCapability(*capability))
            with mock.patch.object(NvmlCudaPlatform, "get_device_capability", answer):
                return bool(getattr(NvmlCudaPlatform, name)(number))

        return held

    return {
        f"`{name}({number})`": predicate(name, number)
        for name in ("has_device_capability", "is_device_capability", "is_device_capability_family")
        for number in NUMBERS
    }


def flashinfer() -> dict[str, Held]:
    """Every ``is_sm…_supported`` of FlashInfer, with the capability replaced."""
    import torch
    from flashinfer import utils

    def gate(name: str) -> Held:
        def held(capability: Capability) -> bool:
            with mock.patch.object(utils, "get_compute_capability", return_value=capability):
                return bool(getattr(utils, name)(torch.device("cuda")))

        return held

    names = sorted(name for name in vars(utils) if name.startswith("is_sm") and name.endswith("_supported"))
    return {f"`{name}`": gate(name) for name in names}


def cutlass() -> dict[str, Held]:
    """``is_family_of`` of the CuTe DSL, asked with the suffix-less name that a device has, and with ``a``."""
    from cutlass.base_dsl.enums import Arch

    def family(target: Any, suffix: str) -> Held:
        def held(capability: Capability) -> bool:
            name = f"sm_{capability[0]}{capability[1]}{suffix}"
            return hasattr(Arch, name) and bool(getattr(Arch, name).is_family_of(target))

        return held

    return {
        f"`Arch(…{suffix}).is_family_of(sm_{number}f)`": family(getattr(Arch, f"sm_{number}f"), suffix)
        for number in (100, 103, 110, 120)
        for suffix in ("", "a")
    }


def rows(gates: dict[str, Held], capabilities: Sequence[Capability] = CAPABILITIES) -> Iterator[str]:
    """A table in Markdown: a gate a line, a capability a column."""
    yield f"| | {' | '.join(f'{major}.{minor}' for major, minor in capabilities)} |"
    yield f"|---|{'|'.join('---' for _ in capabilities)}|"
    for name, held in gates.items():
        yield f"| {name} | {' | '.join('x' if held(one) else ' ' for one in capabilities)} |"


def sections() -> dict[str, Callable[[], Iterator[str]]]:
    """The generated tables, by the name that stands in their markers in docs/gates.md."""
    return {
        "named": lambda: rows(ours()),
        "targets": lambda: rows(of_targets()),
        "vllm": lambda: rows(vllm()),
        "flashinfer": lambda: rows(flashinfer()),
        "cutlass": lambda: rows(cutlass()),
    }


def generated() -> str:
    """All tables, as they stand in docs/gates.md."""
    return "\n\n".join(f"<!-- {name} -->\n" + "\n".join(lines()) for name, lines in sections().items())


if __name__ == "__main__":
    # vLLM's platform loads libcuda.so.1.
    from pytest_gpuinvariants.hardware.profiles import parse_profile
    from pytest_gpuinvariants.hardware.simulate.runtime import open_runtime

    open_runtime(*parse_profile("h100"))
    print(generated())
