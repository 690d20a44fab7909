"""Detection of GPU use outside grants, and the response to it."""
