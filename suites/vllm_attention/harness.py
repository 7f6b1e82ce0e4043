"""Build vLLM's real SM90 sparse MLA state, plan with it, and read back what it planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from .reference import INT_BYTES, Plan, PlanInfo, PlannedWorkspace, plan_mla, read_workspace

if TYPE_CHECKING:
    import torch

BACKEND_MODULE = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90"
KV_LORA_RANK = 512


@dataclass(frozen=True, slots=True)
class Kernel:
    """What FlashInfer compiles a module for; ``kv_dtype`` names a torch dtype, ``rope_dim`` is in elements."""

    label: str
    rope_dim: int
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class Buffers:
    """Capacity of the staging buffers: rows, and top-k slots a row."""

    label: str
    max_tokens: int
    topk: int


# Every variant is a FlashInfer module of its own, compiled once (15 to 30 s): keep them few.
NOPE_BF16 = Kernel("nope-bf16", 0, "bfloat16")
NOPE_FP8 = Kernel("nope-fp8", 0, "float8_e4m3fn")
ROPE_BF16 = Kernel("rope-bf16", 64, "bfloat16")
ROPE_FP8 = Kernel("rope-fp8", 64, "float8_e4m3fn")
KERNELS = (NOPE_BF16, NOPE_FP8, ROPE_BF16, ROPE_FP8)

SMALL = Buffers("small", 64, 256)
# vLLM's default max_num_batched_tokens for a server on an H100, and the top-k of DeepSeek V3.2.
FULL = Buffers("full", 8192, 2048)
BUFFERS = (SMALL, FULL)


def mixed_lens(tokens: int, topk: int) -> list[int]:
    """Valid keys of each of ``tokens`` rows: full, nearly full, empty and odd ones, in turn."""
    kinds = (topk, topk - 1, 0, 1, 65, topk // 2, 7)
    return [kinds[row % len(kinds)] for row in range(tokens)]


# Batches by name: keys of each row, for buffers of a given size.
BATCHES: dict[str, Callable[[Buffers], list[int]]] = {
    "no-token": lambda b: [],
    "one-token": lambda b: [b.topk],
    "one-key": lambda b: [1],
    "empty-rows": lambda b: [0] * 5,
    "many-tokens": lambda b: mixed_lens(b.max_tokens // 2 + 1, b.topk),
    "max-tokens": lambda b: mixed_lens(b.max_tokens, b.topk),
    "max-keys": lambda b: [b.topk] * b.max_tokens,
}


def import_or_skip(name: str) -> Any:
    """The module ``name``; a skip that says so where its package, or this module of it, is not installed.

    A package that is there and fails to import for another reason is an error, not a skip.
    """
    package = name.partition(".")[0]
    try:
        import_module(package)
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == package:
            pytest.skip(f"not verified: {package} is not installed")
        if error.name and f"{name}.".startswith(f"{error.name}."):
            pytest.skip(f"not verified: the installed {package} has no {error.name}")
        raise


class PinnedPlan:
    """Stands in for ``wrapper.plan`` and hands on a fresh pinned copy of every CPU tensor, in every call.

    That is the fixed form: a copy of its own lives as long as the queued transfer needs it, because torch's host
    allocator records the stream; a reused pinned buffer would be overwritten while the transfer still reads it.

    Args:
        plan: the wrapper's own method.
        pageable: positions of arguments left as they are, to show that each one matters.
    """

    def __init__(self, plan: Callable[..., None], pageable: Sequence[int] = ()) -> None:
        self._plan = plan
        self._pageable = frozenset(pageable)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Plan."""
        pinned = [value if at in self._pageable else _pinned(value) for at, value in enumerate(args)]
        self._plan(*pinned, **{name: _pinned(value) for name, value in kwargs.items()})


def _pinned(value: Any) -> Any:
    is_cpu_tensor = getattr(getattr(value, "device", None), "type", None) == "cpu"
    return value.pin_memory() if is_cpu_tensor else value


class Planner:
    """A real ``_SM90State`` with its wrapper, and the reference for whatever it was asked to plan."""

    def __init__(self, kernel: Kernel, buffers: Buffers, num_heads: int = 16, index_kpool: int = 1) -> None:
        self.torch: Any = import_or_skip("torch")
        import_or_skip("flashinfer")
        self.buffers = buffers
        self.num_heads = num_heads
        self.state: Any = import_or_skip(BACKEND_MODULE)._SM90State(
            self.torch.device("cuda"),
            num_heads,
            getattr(self.torch, kernel.kv_dtype),
            buffers.max_tokens,
            buffers.topk,
            KV_LORA_RANK,
            kernel.rope_dim,
            sm_scale=0.1,
            # The pool's incomplete tail comes on top of the top-k and must fit the row.
            index_topk=buffers.topk - index_kpool + 1,
            index_kpool=index_kpool,
        )

    def pin(self, pageable: Sequence[int] = ()) -> None:
        """Plan in the fixed form from now on."""
        self.state.wrapper.plan = PinnedPlan(self.state.wrapper.plan, pageable)

    def plan(self, lens: Sequence[int]) -> None:
        """Plan rows of exactly ``lens`` keys."""
        self.plan_tensor(self.lens_tensor(lens))

    def plan_tensor(self, lens: torch.Tensor) -> None:
        """Plan rows of exactly ``lens`` keys (CPU int32, ``[tokens]``)."""
        self.state.plan(len(lens), lens, None, None)

    def lens_tensor(self, lens: Sequence[int]) -> torch.Tensor:
        """Keys of each row as vLLM's metadata builder hands them over."""
        tensor: torch.Tensor = self.torch.tensor(lens, dtype=self.torch.int32)
        return tensor

    def warm_up(self) -> None:
        """Compile, and plan at full size until no call needs memory that the allocators do not hold yet.

        A plan's pinned buffers are released only when the next one has replaced it, so one call is not enough.
        """
        for _ in range(3):
            self.plan([self.buffers.topk] * self.buffers.max_tokens)
        self.torch.cuda.synchronize()

    @property
    def info(self) -> PlanInfo:
        """The planner's numbers, as the wrapper publishes them."""
        return PlanInfo(*(int(number) for number in self.state.wrapper._plan_info))

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors of the device, as FlashInfer's C++ is told: a fake does not reach it."""
        cuda = self.torch.cuda
        current = cuda.current_device()  # initialises CUDA, which defines torch's own binding
        return int(cuda._get_device_properties(current).multi_processor_count)

    def padded(self, lens: Sequence[int]) -> list[int]:
        """Keys of every row of the buffers: those past the batch are empty."""
        return [*lens, *[0] * (self.buffers.max_tokens - len(lens))]

    def q_lens(self, lens: Sequence[int]) -> list[int]:
        """Query tokens of every row of the buffers: one each in the batch, none past it."""
        return [1] * len(lens) + [0] * (self.buffers.max_tokens - len(lens))

    def expected(self, lens: Sequence[int]) -> Plan:
        """The reference for rows of ``lens`` keys."""
        return plan_mla(
            self.q_lens(lens),
            self.padded(lens),
            num_heads=self.num_heads,
            head_dim_ckv=KV_LORA_RANK,
            sm_count=self.sm_count,
        )

    def workspace(self) -> PlannedWorkspace:
        """The live part of the int workspace, copied back from the device."""
        staged = self.expected([]).staged_bytes // INT_BYTES
        return read_workspace(self.state._int_ws[:staged].tolist(), self.info, self.sm_count)

    def saved_kv_end(self) -> list[int]:
        """VLLM's copy of the planned ends, the live part, copied back from the device; ``[works]``, in keys."""
        ends: list[int] = self.state._saved_kv_end[: len(self.workspace().works)].tolist()
        return ends

    def metadata_faults(self, lens: Sequence[int]) -> list[str]:
        """Buffers reserved for captured graphs that do not hold on the device what was planned from."""
        kv_lens = self.padded(lens)
        wanted = {
            "kv_len_arr": (self.state.kv_len_arr, kv_lens),
            "kv_indptr": (self.state.kv_indptr, [0, *accumulate(kv_lens)]),
            "qo_indptr": (self.state.wrapper._qo_indptr_buf, [0, *accumulate(self.q_lens(lens))]),
        }
        return [name for name, (buffer, values) in wanted.items() if buffer.tolist() != values]

    def addresses(self) -> dict[str, int]:
        """Device addresses that a captured graph has baked in."""
        buffers = {
            "kv_indices": self.state.kv_indices,
            "kv_len_arr": self.state.kv_len_arr,
            "kv_indptr": self.state.kv_indptr,
            "qo_indptr": self.state.wrapper._qo_indptr_buf,
            "int workspace": self.state._int_ws,
            "float workspace": self.state.workspace,
            "saved kv_end": self.state._saved_kv_end,
        }
        return {name: int(buffer.data_ptr()) for name, buffer in buffers.items()}
