"""Reads a pod's placement: an annotation that the queue controller writes when it binds the pod to
this node; no other client may write it.

    {"node": "gpu-1", "containers": {"main": [{"uuid": "GPU-…", "memory_bytes": 1}]}}

Only the GPUs are taken from it; the amounts come from the pod's own requests, so a forged
annotation can choose a card and nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

LONGEST: Final = 64 << 10
MAX_GPUS: Final = 64


def placed_gpus(text: str, container: str) -> tuple[str, ...]:
    """UUIDs for a container, in order; empty if it is not placed. Raises ValueError for an
    annotation that the controller would not have written."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {str(error)[:100]}") from error
    containers = found.get("containers") if isinstance(found, Mapping) else None
    if not isinstance(containers, Mapping):
        raise ValueError("containers: expected an object")
    shares = containers.get(container, [])
    if not isinstance(shares, list) or len(shares) > MAX_GPUS:
        raise ValueError(f"has no list of at most {MAX_GPUS} shares for {container}")
    return tuple(_uuid(one) for one in shares)


def is_queued(text: str) -> bool:
    """True if the annotation names a workload, so that the queue decides about the pod."""
    try:
        found = json.loads(text) if 0 < len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        return False
    return isinstance(found, Mapping) and bool(found.get("workload"))


def _uuid(share: Any) -> str:
    uuid = share.get("uuid") if isinstance(share, Mapping) else None
    if not isinstance(uuid, str) or not 0 < len(uuid) <= 128 or not uuid.isprintable():
        raise ValueError("has a share without a GPU's uuid")
    return uuid
