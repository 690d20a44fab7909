"""Admission of pods that request GPU shares, and what it follows: quotas, nodes, claim
templates."""
