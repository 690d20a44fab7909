"""The trusted group that a pod names by the annotation `sluice.dev/trusted-group`: its own
namespace's, where the node permits such groups."""

from __future__ import annotations

import re
from typing import Final

from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.ports.kubelet import ContainerRequests, PermanentError
from nodeagent.units import SharePolicy

ANNOTATION: Final = "sluice.dev/trusted-group"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def trusted_group(requests: ContainerRequests, policy: SharePolicy, defaults: DefaultLimits) -> str:
    """The group with its owner; empty if the pod names none. Raises PermanentError."""
    name = dict(requests.annotations).get(ANNOTATION, "").strip()
    if not name:
        return ""
    if not defaults.trusted_groups:
        raise PermanentError(
            f"{ANNOTATION}: this node permits no trusted groups (kubelet.trusted_groups)"
        )
    if not _NAME.fullmatch(name):
        raise PermanentError(f"{ANNOTATION}: not a name: {name[:40]!r}")
    if policy is SharePolicy.EXCLUSIVE:
        raise PermanentError(f"{ANNOTATION}: a trusted group has no exclusive grants")
    return f"namespace {requests.pod.namespace}/{name}"


def refuse_group(requests: ContainerRequests) -> None:
    """Raises PermanentError if a pod names a group although its GPUs were decided elsewhere, where
    groups are not known."""
    if dict(requests.annotations).get(ANNOTATION, "").strip():
        raise PermanentError(f"{ANNOTATION}: not for pods whose GPUs a queue or scheduler chooses")
