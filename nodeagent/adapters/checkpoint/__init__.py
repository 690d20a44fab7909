"""Checkpoints of CUDA processes, and the host memory they go to."""
