"""What the imports of vLLM, FlashInfer and their foundations do."""
