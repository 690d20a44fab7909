"""NVML through child processes with timeouts, and the kernel's uevents of GPUs."""
