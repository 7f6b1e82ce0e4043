"""What vLLM and FlashInfer choose on each card, each card faked."""
