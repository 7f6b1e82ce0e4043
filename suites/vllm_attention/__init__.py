"""vLLM's attention backends: host-side planning and its synchronizations."""
