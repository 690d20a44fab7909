"""Annotations of a pod about its group: its role, and how many pods there are."""

from __future__ import annotations

from typing import Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.annotations.role_hash import role_hash
from queuecontroller.frameworks.patches import Document, at
from sluicecommon.reader import ManifestError, Reader, shown

MAX_PODS: Final = 10_000
"""Limit of the pods in one group."""
_ANNOTATIONS: Final = ("metadata", "annotations")
_LABELS: Final = ("metadata", "labels")


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


def may_lack(pod: Document, total: int) -> int:
    """Number of pods of its group that a pod allows not to be ready; an invalid one counts as 0."""
    text = text_at(pod, *_ANNOTATIONS, names.GROUP_MAX_NOT_READY)
    if not (text.isascii() and text.isdigit()):
        return 0
    found = int(text[:9])
    return found if found < total else 0


def is_unretriable(pod: Document) -> bool:
    return text_at(pod, *_ANNOTATIONS, names.RETRIABLE) == "false"
