"""A daemon with invented GPUs, and tenants without CUDA."""
