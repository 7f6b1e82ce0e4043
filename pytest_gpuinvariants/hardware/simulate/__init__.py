"""The simulated CUDA runtime: its C source, its build and its Python side."""
