"""Shipped tests of real vLLM and FlashInfer code; see README.md."""
