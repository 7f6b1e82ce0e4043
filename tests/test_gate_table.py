"""Our gates beside vLLM's, FlashInfer's and CUTLASS's, over every known capability: docs/gates.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import gate_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "gates.md"


@pytest.mark.parametrize("name", ["named", "targets", "vllm", "flashinfer", "cutlass"])
@pytest.mark.usefixtures("card")
def test_the_document_shows_what_the_real_gates_answer(name: str) -> None:
    shown = re.search(rf"<!-- {name} -->\n((?:\|.*\n)+)", DOCUMENT.read_text(encoding="utf-8"))
    assert shown is not None
    assert shown[1].splitlines() == list(gate_table.sections()[name]()), "print them with: python -m tests.gate_table"


@pytest.mark.usefixtures("card")
def test_families_are_those_of_cutlass() -> None:
    """The CuTe DSL has NVIDIA's family rule; a device that it names without suffix is of no family to it."""
    cutlass, targets = gate_table.cutlass(), gate_table.of_targets()
    for number, target in ((100, "10.0f"), (103, "10.3f"), (120, "12.0f")):
        asked = [cutlass[f"`Arch(…a).is_family_of(sm_{number}f)`"](one) for one in gate_table.CAPABILITIES]
        assert asked == [targets[target](one) for one in gate_table.CAPABILITIES]
        assert not any(cutlass[f"`Arch(…).is_family_of(sm_{number}f)`"](one) for one in gate_table.CAPABILITIES)
