"""The annotation that tells apart the roles of a pod group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.frameworks.patches import TOO_DEEP, Document, at
from sluicecommon.reader import ManifestError

_SHAPE: Final = (
    "initContainers",
    "containers",
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "priority",
    "topologySpreadConstraints",
    "overhead",
    "resourceClaims",
)
"""Fields that the pods of one role have in common."""


def role_hash(pod: Document) -> str:
    """Hash of the fields that decide where and how a pod may run. Raises ManifestError."""
    spec = at(pod, ("spec",))
    known: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {}
    shape = {key: known[key] for key in _SHAPE if known.get(key) not in (None, {}, [])}
    for key in ("initContainers", "containers"):
        if isinstance(shape.get(key), list):
            shape[key] = [_container(one) for one in shape[key]]
    try:
        text = json.dumps(shape, sort_keys=True, default=str)
    except RecursionError:
        raise ManifestError([TOO_DEEP]) from None
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def _container(one: object) -> object:
    if not isinstance(one, Mapping):
        return one
    return {key: one[key] for key in ("resources", "ports", "restartPolicy") if key in one}
