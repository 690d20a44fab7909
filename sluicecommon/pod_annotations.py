"""Parses Sluice's own annotations of pods, which the node honours and the queue counts:
`sluice.dev/share-policy`, `sluice.dev/checkpoint`, `sluice.dev/placement` and
`resize.sluice.dev/CONTAINER: "gpumem=8192 gpucores=40"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHARE_POLICY: Final = "sluice.dev/share-policy"
HARD: Final = "hard"
"""The share is guaranteed, and a cap."""
ELASTIC: Final = "elastic"
"""The share is a weight: all of the GPU's time while others are idle."""
EXCLUSIVE: Final = "exclusive"
"""The GPUs hold nothing else."""
POLICIES: Final = (HARD, ELASTIC, EXCLUSIVE)
PLACEMENT: Final = "sluice.dev/placement"
"""Annotation of a pod: its node and GPUs, written by the leader with the binding. `workload` names
the workload of the queue whose reservation the pod uses."""
CHECKPOINT: Final = "sluice.dev/checkpoint"
"""Written by the queue controller: SAVE or RESTORE, and the time of its decision."""
SAVE: Final = "save"
RESTORE: Final = "restore"
RESIZE_PREFIX: Final = "resize.sluice.dev/"
REQUEST_PREFIX: Final = "request.sluice.dev/"
"""Annotation of a new pod: the guaranteed part of a container's memory, in the same words."""
LONGEST: Final = 256
"""Characters of one annotation."""
MEMORY, PERCENT, CORES = "gpumem", "gpumem-percentage", "gpucores"
KNOWN: Final = (MEMORY, PERCENT, CORES)


def share_policy(annotations: Mapping[str, str]) -> str:
    """The policy that a pod names; empty if its requests decide it. Raises ValueError."""
    text = str(annotations.get(SHARE_POLICY) or "").strip()
    if text and text not in POLICIES:
        raise ValueError(f"{SHARE_POLICY}: must be one of {', '.join(POLICIES)}, got {text[:40]!r}")
    return text


def words(text: str) -> dict[str, str]:
    """Amounts by name, not parsed yet. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError(f" is longer than {LONGEST} characters")
    given: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, equals, amount = word.partition("=")
        if name not in KNOWN or not equals:
            raise ValueError(f": {word[:40]!r} is not NAME=AMOUNT with {', '.join(KNOWN)}")
        if name in given:
            raise ValueError(f": {name} is given twice")
        given[name] = amount
    if MEMORY in given and PERCENT in given:
        raise ValueError(f": {MEMORY} and {PERCENT} both set the memory: leave one out")
    return given
