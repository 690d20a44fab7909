"""Annotations of KAI and Run:ai on pods: parts of GPUs, and how they are scheduled."""
