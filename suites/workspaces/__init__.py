"""vLLM's and FlashInfer's workspaces: no hidden global decides which one is used."""
