"""Which card a number means: CUDA_VISIBLE_DEVICES, and CUDA's order against NVML's."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.hardware.identity import Device, disagreements, resolve

CARDS = ("GPU-5e1a0000-1111", "GPU-5e1b0000-2222", "GPU-77770000-3333")
INSTANCES = ("MIG-aaaa-1", "MIG-aaaa-2", "MIG-bbbb-1")
Cases = list[tuple[str | None, tuple[int, ...]]]
NUMBERED: Cases = [
    (None, (0, 1, 2)),
    ("", ()),
    (" ", ()),
    ("0", (0,)),
    ("2,0", (2, 0)),
    (" 2 , 0 ", (2, 0)),
    ("+1", (1,)),
    ("1x,2y", (1, 2)),
    ("-1", ()),
    ("0,-1,1", (0,)),
    ("0,3,1", (0,)),
    ("0,,1", (0,)),
    ("0,none,1", (0,)),
    ("none", ()),
    ("NoDevFiles", ()),
    ("0,0", ()),
    ("1,2,1", ()),
    ("0,GPU-7777", (0,)),
]
BY_UUID: Cases = [
    ("GPU-77770000-3333", (2,)),
    ("GPU-7", (2,)),
    ("GPU-5e1b,GPU-5e1a", (1, 0)),
    ("GPU-5e1", ()),
    ("GPU-7,GPU-5e1,GPU-5e1a", (2,)),
    ("GPU-9", ()),
    ("gpu-7", ()),
    ("GPU-7,0", (2,)),
    ("GPU-7,GPU-77", ()),
]


@pytest.mark.parametrize(("visible", "left"), NUMBERED + BY_UUID)
def test_visible_cards(visible: str | None, left: tuple[int, ...]) -> None:
    assert resolve(visible, CARDS) == left


@pytest.mark.parametrize(("visible", "left"), [("0", (0,)), ("GPU-5", (0,)), ("GPU-", ()), ("MIG-5e1a0000-1111", ())])
def test_of_a_single_card(visible: str, left: tuple[int, ...]) -> None:
    assert resolve(visible, CARDS[:1]) == left


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("MIG-aaaa-2", (1,)),
        ("MIG-b", (2,)),
        ("MIG-a", ()),
        ("MIG-bbbb-1,MIG-aaaa-1", (2,)),
        ("MIG-bbbb-1,MIG-bbbb-1", ()),
        ("MIG-c", ()),
    ],
)
def test_of_mig_instances_cuda_takes_one(visible: str, left: tuple[int, ...]) -> None:
    assert resolve(visible, INSTANCES) == left


@pytest.mark.parametrize("visible", [visible for visible, _ in NUMBERED + BY_UUID if visible != " "])
def test_torch_reads_the_variable_so_too(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own reading of it, which it has for NVML; it checks numbers against NVML's count by itself."""
    import torch

    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: len(CARDS))
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: list(CARDS))
    assert torch.cuda._device_count_nvml() == len(resolve(visible, CARDS))


H200 = Device("h", "NVIDIA H200", (9, 0))
H100 = Device("g", "NVIDIA H100", (9, 0))
L4 = Device("l", "NVIDIA L4", (8, 9))


@pytest.mark.parametrize(
    ("cuda", "nvml", "visible", "told"),
    [
        ((H200, L4), (H200, L4), None, []),
        ((H200, L4), (L4, H200), None, [(0, 0), (1, 1)]),
        ((H200, H100), (H100, H200), None, []),  # other cards, but what is told of them holds
        ((L4,), (L4, H200), "1", [(0, 1)]),  # CUDA's device 1 is NVML's 0
        ((H200,), (L4, H200), "1", []),
        ((L4,), (L4, H200), "GPU-l", []),  # a UUID is the same card to both
        ((H200, L4), (L4, H200), "", [(0, 0), (1, 1)]),  # vLLM takes an empty variable for none
        ((H200,), (), None, []),
    ],
)
def test_capabilities_that_nvml_takes_from_another_card(
    cuda: tuple[Device, ...], nvml: tuple[Device, ...], visible: str | None, told: list[tuple[int, int]]
) -> None:
    lines = list(disagreements(cuda, nvml, visible))
    assert len(lines) == len(told)
    for line, (index, other) in zip(lines, told, strict=True):
        assert line.startswith(f"cuda:{index} is {cuda[index].name} ")
        assert f"NVML's device {other} is {nvml[other].name} " in line
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in line
