"""Which card a device number means: to CUDA, to NVML, and under ``CUDA_VISIBLE_DEVICES``.

CUDA numbers the visible devices, by default the fastest first; NVML, nvidia-smi and what reads them
number all of the machine's cards by PCI bus.  Rules of ``CUDA_VISIBLE_DEVICES``: CUDA Programming
Guide, "CUDA Environment Variables"
(https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Device:
    """One card.  ``uuid`` has no prefix; ``memory_bytes`` is all of its memory, 0 where that was not asked."""

    uuid: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int = 0


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    """The card that an entry means; None when it means none, or not one alone."""
    if entry.startswith(("GPU-", "MIG-")):
        named = entry[4:]  # the bare prefix means none, even of a single card
        found = [index for index, uuid in enumerate(uuids) if named and uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = re.match(r"\+?\d+", entry)  # as strtoul reads it: what follows the digits is not looked at
    index = int(number[0]) if number else -1
    return index if 0 <= index < len(uuids) else None


def resolve(visible: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves of a machine's cards, as their indexes, in the order of its entries.

    The first entry that means no card ends the list.  Entries are either all numbers or all UUIDs: one
    of the other form means no card.  A card that is named twice leaves no device at all.  Of MIG
    instances CUDA takes the first alone.

    Args:
        visible: the variable's text, None when it is not set.
        uuids: of each card in CUDA's order, as ``nvidia-smi -L`` prints them: ``GPU-…``, ``MIG-…``.
    """
    if visible is None:
        return tuple(range(len(uuids)))
    entries = [entry.strip() for entry in visible.split(",")]
    form = entries[0][:4] if entries[0].startswith(("GPU-", "MIG-")) else ""
    found: list[int] = []
    for entry in entries:
        index = _index(entry, uuids) if entry.startswith(form or tuple("+0123456789")) else None
        if index is None:
            break
        if index in found:
            return ()
        found.append(index)
    return tuple(found[:1] if form == "MIG-" else found)


def disagreements(cuda: Sequence[Device], nvml: Sequence[Device], visible: str | None) -> Iterator[str]:
    """Devices of which a program that asks NVML learns another compute capability than CUDA has.

    Such a program, vLLM for one, takes the n-th entry of ``CUDA_VISIBLE_DEVICES`` (or n itself) as an
    index into NVML's order.  Entries that are UUIDs mean the same card to both.

    Args:
        cuda: the visible devices in CUDA's order.
        nvml: all cards in NVML's order.
        visible: ``CUDA_VISIBLE_DEVICES``, None when it is not set.
    """
    entries = visible.split(",") if visible else [str(index) for index in range(len(cuda))]
    for index, (device, entry) in enumerate(zip(cuda, entries, strict=False)):
        if not entry.strip().isdecimal() or int(entry) >= len(nvml):
            continue
        other = nvml[int(entry)]
        if other.capability != device.capability:
            yield (
                f"cuda:{index} is {_told(device)}, but NVML's device {int(entry)} is {_told(other)}: what asks NVML "
                f"for the capability of cuda:{index} is told that of another card; set {ORDER}=PCI_BUS_ID before "
                "CUDA starts"
            )


def _told(device: Device) -> str:
    return f"{device.name} (SM {device.capability[0]}.{device.capability[1]})"
