"""Where vLLM keeps its current configuration, and what reads it."""

from __future__ import annotations

CURRENT = "_current_vllm_config"
"""The module's variable; None outside any context."""
READERS = {"vllm.config.vllm": ["get_current_vllm_config", "get_current_vllm_config_or_none"]}
"""By module, the functions that read it.  ``get_cached_compilation_config`` goes through the first."""
