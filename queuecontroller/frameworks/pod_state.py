"""State of a queued pod by its document: its group, its role, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.annotations.role_hash import role_hash
from queuecontroller.frameworks.comparing import condition_of, holds, is_list
from queuecontroller.frameworks.patches import ABSENT, Document, at
from queuecontroller.frameworks.starting import is_suspended
from queuecontroller.frameworks.state import Finished, finished
from queuecontroller.frameworks.table import Framework, framework_named
from queuecontroller.scheduler.model import reasons
from sluicecommon.reader import ManifestError, Reader, shown

MAX_PODS: Final = 10_000
"""Limit of the pods in one group."""
_ANNOTATIONS: Final = ("metadata", "annotations")
_LABELS: Final = ("metadata", "labels")


def _pod_framework() -> Framework:
    fw = framework_named("pod")
    assert fw is not None
    return fw


POD: Final = _pod_framework()


def text_at(document: Document, *path: str) -> str:
    found = at(document, path)
    return found if isinstance(found, str) else ""


def group_of(pod: Document) -> str:
    """The name of its group, which is that of the group's Workload; empty: it is not in a group."""
    return text_at(pod, *_LABELS, names.GROUP_NAME) or text_at(pod, *_ANNOTATIONS, names.GROUP_NAME)


def role_of(pod: Document) -> str:
    """Pods of one role are one pod set."""
    return text_at(pod, *_ANNOTATIONS, names.ROLE_HASH) or role_hash(pod)


def total_of(pod: Document) -> int:
    """Total number of pods of the group. Raises ManifestError."""
    reader = Reader(pod).child("metadata").child("annotations")
    text = reader.text(names.GROUP_TOTAL)
    if text.isascii() and text.isdigit() and 0 <= int(text[:9]) <= MAX_PODS:
        return int(text[:9])
    what = f"expected a whole number up to {MAX_PODS}, got {shown(text)}" if text else "is required"
    reader.problem(names.GROUP_TOTAL, what, "write the number of pods of the group, in quotes")
    raise ManifestError(reader.problems)


def is_over(pod: Document) -> bool:
    """True for a pod that runs no more: it has ended, or was deleted without a grace period, as one
    is that no node has."""
    grace_s = at(pod, ("metadata", "deletionGracePeriodSeconds"))
    leaving = at(pod, ("metadata", "deletionTimestamp")) not in (ABSENT, None)
    return finished(POD, pod) is not None or (leaving and grace_s == 0)


def age_of(pod: Document) -> tuple[bool, str, str]:
    """Sort key of the pods to keep: running ones first, then the oldest."""
    made = text_at(pod, "metadata", "creationTimestamp")
    return is_suspended(POD, pod), made, text_at(pod, "metadata", "name")


@dataclass(frozen=True, slots=True)
class PodState:
    document: Document
    name: str
    role: str
    gated: bool
    done: Finished | None
    leaving: bool
    """True if it is being deleted."""

    @property
    def alive(self) -> bool:
        return self.done is None and not self.leaving

    @property
    def is_evicted(self) -> bool:
        """True if it was stopped because its Workload was evicted."""
        reason = condition_of(self.document, reasons.TERMINATION_TARGET).get("reason")
        evicted = isinstance(reason, str) and reason.startswith(reasons.WORKLOAD_EVICTED)
        return self.leaving and evicted

    @property
    def held(self) -> bool:
        """True if the finalizer keeps it."""
        found = at(self.document, ("metadata", "finalizers"))
        return isinstance(found, list) and names.MANAGED in found

    @property
    def ready(self) -> bool:
        return holds(self.document, "Ready")


def read_pod_state(pod: Document) -> PodState:
    return PodState(
        pod,
        text_at(pod, "metadata", "name"),
        role_of(pod),
        is_suspended(POD, pod),
        finished(POD, pod),
        at(pod, ("metadata", "deletionTimestamp")) not in (ABSENT, None),
    )


def count_of(pod_set: Mapping[str, Any]) -> int:
    found = pod_set.get("count", 1)
    return found if type(found) is int else 0


def may_lack(pod: Document, total: int) -> int:
    """Number of pods of its group that a pod allows not to be ready; an invalid one counts as 0."""
    text = text_at(pod, *_ANNOTATIONS, names.GROUP_MAX_NOT_READY)
    if not (text.isascii() and text.isdigit()):
        return 0
    found = int(text[:9])
    return found if found < total else 0


def is_unretriable(pod: Document) -> bool:
    return text_at(pod, *_ANNOTATIONS, names.RETRIABLE) == "false"


def without_finalizer(pod: Document) -> dict[str, Any]:
    found = at(pod, ("metadata", "finalizers"))
    rest = [one for one in found if one != names.MANAGED] if is_list(found) else []
    return {"metadata": {"finalizers": rest or None}}
