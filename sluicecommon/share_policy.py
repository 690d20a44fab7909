"""Parses the pod annotation `sluice.dev/share-policy`, which the node honours and the queue
counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ANNOTATION: Final = "sluice.dev/share-policy"
HARD: Final = "hard"
"""The share is guaranteed, and a cap."""
ELASTIC: Final = "elastic"
"""The share is a weight: all of the GPU's time while others are idle."""
EXCLUSIVE: Final = "exclusive"
"""The GPUs hold nothing else."""
POLICIES: Final = (HARD, ELASTIC, EXCLUSIVE)


def share_policy(annotations: Mapping[str, str]) -> str:
    """The policy that a pod names; empty if its requests decide it. Raises ValueError."""
    text = str(annotations.get(ANNOTATION) or "").strip()
    if text and text not in POLICIES:
        raise ValueError(f"{ANNOTATION}: must be one of {', '.join(POLICIES)}, got {text[:40]!r}")
    return text
