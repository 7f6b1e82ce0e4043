"""A user's logits processor for vLLM that waits for the GPU, in its engine's process."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor


class Reading(LogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Reads a logit in each step, and copies a pageable mask."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.device = device

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if logits[0, 0].item() > 1e30:
            logits.zero_()
        mask = torch.zeros(logits.shape[-1])
        return logits + mask.to(self.device, non_blocking=True)
