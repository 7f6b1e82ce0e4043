"""vLLM's engine, whole: its steps never wait for the GPU but where they must."""
