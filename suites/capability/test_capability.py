"""What FlashInfer and vLLM choose for a card of each capability, asked under a fake of it.

The tables are those of the libraries' documentation: FlashInfer's ``determine_attention_backend`` and
MLA wrapper (FA3 is for SM 9.x), vLLM's "Attention Backend Feature Support" (priorities and compute
capabilities), and the tuned sizes in vLLM's ``all_reduce_utils``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_gpuinvariants import faking, requires_package, requires_sm

# Relative: the suites have another name when they are installed.
from ..vllm_attention.harness import NOPE_BF16, SMALL, Planner, import_or_skip  # noqa: TID252

# Any card will do: nothing is launched, and each test lays its own fake over it.
pytestmark = [requires_sm(7, or_newer=True, host_only=True), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CARDS = ("sm80", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
MIB = 2**20
TUNED = requires_package("vllm>=0.33,<0.34")


@pytest.mark.parametrize("card", CARDS)
def test_flashinfer_prefers_fa3_on_hopper_alone(card: str) -> None:
    """FA3 is for SM 9.x; everything else, newer cards too, gets FA2 from the automatic choice."""
    utils = import_or_skip("flashinfer.utils")
    torch = import_or_skip("torch")
    half, device = torch.bfloat16, torch.device("cuda", 0)
    with faking(card):
        chosen = utils.determine_attention_backend(device, 0, False, False, half, half)
    assert chosen == ("fa3" if card == "sm90" else "fa2")


@pytest.mark.parametrize("card", CARDS)
def test_fa3_gate_of_the_mla_plan(card: str) -> None:
    """FlashInfer's FA3 backend plans MLA on SM 9.x, and refuses by its own message elsewhere.

    The plan is host code, compiled for the faked architecture: it copies, and launches nothing.
    """
    lens = [SMALL.topk] * 3
    with faking(card):
        planner = Planner(NOPE_BF16, SMALL)
        if card == "sm90":
            planner.plan(lens)
            assert planner.metadata_faults(lens) == []
        else:
            with pytest.raises(ValueError, match=r"fa3 MLA requires SM90 and CUDA >= 12\.3"):
                planner.plan(lens)


@contextmanager
def _configured() -> Iterator[Any]:
    """VLLM's backends look at the current configuration; its platform."""
    config = import_or_skip("vllm.config")
    with config.set_current_vllm_config(config.VllmConfig()):
        yield import_or_skip("vllm.platforms").current_platform


def _selected(kind: str, **options: Any) -> str:
    """Name of the backend that vLLM selects by itself, ``none`` when it finds none."""
    selector, torch = import_or_skip("vllm.v1.attention.selector"), import_or_skip("torch")
    wanted: dict[str, Any] = {
        "dense": {"head_size": 128},
        "mla": {"head_size": 576, "use_mla": True},
        "sparse-mla": {"head_size": 576, "use_mla": True, "use_sparse": True},
        "sparse-nope-mla": {"head_size": 512, "use_mla": True, "use_sparse": True},
    }[kind]
    chosen = selector.AttentionSelectorConfig(dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None, **wanted)
    with _configured() as platform:
        try:
            path = platform.get_attn_backend_cls(options.get("backend"), chosen, num_heads=128)
        except ValueError as error:
            if re.search("No valid attention backend|is not valid for this configuration", str(error)) is None:
                raise
            return "none"
    resolve = import_or_skip("vllm.utils.import_utils").resolve_obj_by_qualname
    return str(resolve(path).get_name())


# By vLLM's priorities, and the capabilities that each backend declares.
SELECTED = {
    "dense": {"sm100": "FLASHINFER", "sm103": "FLASHINFER", "": "FLASH_ATTN"},
    "mla": {"sm90": "FLASH_ATTN_MLA", "sm100": "FLASHINFER_MLA", "sm103": "FLASHINFER_MLA", "": "TRITON_MLA"},
    "sparse-mla": {
        **{"sm90": "FLASH_ATTN_MLA_SPARSE", "sm100": "FLASHMLA_SPARSE", "sm103": "FLASHMLA_SPARSE"},
        **{"sm120": "FLASHINFER_MLA_SPARSE_SM120", "sm121": "FLASHINFER_MLA_SPARSE_SM120", "": "none"},
    },
}


@TUNED
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("kind", SELECTED)
def test_vllm_selects_the_backend_of_the_card(kind: str, card: str) -> None:
    """VLLM's own choice for bf16: dense attention, MLA, and sparse MLA."""
    with faking(card):
        assert _selected(kind) == SELECTED[kind].get(card, SELECTED[kind][""])


@TUNED
@pytest.mark.parametrize("card", CARDS)
def test_the_sm90_sparse_backend_is_refused_elsewhere(card: str) -> None:
    """``FLASHINFER_MLA_SPARSE_SM90``, asked for by name, is had on SM 9.x alone."""
    backends = import_or_skip("vllm.v1.attention.backends.registry").AttentionBackendEnum
    with faking(card):
        chosen = _selected("sparse-mla", backend=backends.FLASHINFER_MLA_SPARSE_SM90)
    assert chosen == ("FLASHINFER_MLA_SPARSE_SM90" if card == "sm90" else "none")


# Bytes for a group of 8 on one node: FlashInfer's MNNVL all-reduce is tuned for 10.0 and 10.3, to 128 MB.
MNNVL = {"sm100": 128 * MIB, "sm103": 128 * MIB}


@TUNED
@pytest.mark.parametrize("card", CARDS)
def test_flashinfer_all_reduce_has_a_tuned_size_on_blackwell(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is asked with the capability that the platform tells; other cards have no tuned size."""
    module = import_or_skip("vllm.distributed.device_communicators.flashinfer_all_reduce")
    monkeypatch.setattr(module, "_node_count", lambda group: 1)
    with faking(card):
        assert module._get_tuned_standalone_max_size(8, "mnnvl", object()) == MNNVL.get(card)
        assert module._get_tuned_standalone_max_size(8, "trtllm", object()) is None


@TUNED
@pytest.mark.parametrize("card", CARDS)
def test_all_reduce_across_nodes_is_for_blackwell(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across nodes only MNNVL will do, from SM 10.0 on; SM 12.x counts as newer (``has_device_capability``)."""
    module = import_or_skip("vllm.distributed.device_communicators.flashinfer_all_reduce")
    monkeypatch.setattr(module, "_node_count", lambda group: 2)
    monkeypatch.setenv("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "auto")
    with faking(card):
        backend, fallback = module._resolve_fi_ar_backend(object())
    assert (backend, fallback) == ((None if card in ("sm80", "sm89", "sm90") else "mnnvl"), False)


# Bytes for a group of 8: custom all-reduce (min. with symmetric memory), and symmetric memory.
SIZES = {
    "sm90": (MIB // 4, 64 * MIB),
    "sm100": (1 * MIB, 128 * MIB),
    "sm103": (4 * MIB, 64 * MIB),
}


@TUNED
@pytest.mark.parametrize("card", CARDS)
def test_all_reduce_sizes_by_the_name_of_the_capability(card: str) -> None:
    """VLLM looks both tables up by the platform's version string: an unlisted card has no symmetric memory."""
    sizes = import_or_skip("vllm.distributed.device_communicators.all_reduce_utils")
    with faking(card):
        name = import_or_skip("vllm.platforms").current_platform.get_device_capability().as_version_str()
    tables = (sizes.CUSTOM_ALL_REDUCE_MAX_SIZES, sizes.SYMM_MEM_ALL_REDUCE_MAX_SIZES)
    assert [table.get(name, {}).get(8) for table in tables] == list(SIZES.get(card, (None, None)))
