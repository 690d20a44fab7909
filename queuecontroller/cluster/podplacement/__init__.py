"""Pods that ask for GPUs and go through a scheduler: what is known of them, and their binding."""
