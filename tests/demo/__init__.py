"""The main job, told as scenes on a simulated two-GPU node; `make demo` runs it."""
