"""GPU models, detection of the one at hand, and the simulated CUDA runtime."""
