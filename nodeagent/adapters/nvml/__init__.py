"""NVML, through child processes with a deadline; and the kernel's word of GPUs."""
