"""What we know of torch, vLLM, FlashInfer and Triton."""
