"""Looks at who uses the GPUs, and carries out what is done about it."""
