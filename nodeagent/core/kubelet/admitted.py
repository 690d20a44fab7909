"""Judges whether the Workload of a queued pod is admitted, from Kueue's objects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
WORKLOAD: Final = "kueue.x-k8s.io/workload"
"""Annotation with the name of a pod's Workload, written when the pod or its job is started."""
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: UID of the job that it was created for."""


def is_admitted(workload: Mapping[str, Any]) -> bool:
    """Raises TypeError or AttributeError for an object of another form."""
    return any(
        one.get("type") == "Admitted" and one.get("status") == "True"
        for one in (workload.get("status") or {}).get("conditions") or ()
    )


def is_for(workload: Mapping[str, Any], uids: Collection[str]) -> bool:
    """True if one of these objects owns the Workload: an annotation alone could name another
    tenant's. A Workload without owners is one that its user has created (prebuilt)."""
    owners = {one.get("uid") for one in workload["metadata"].get("ownerReferences") or ()}
    return not owners or not owners.isdisjoint(uids)


def why_pending(workload: Mapping[str, Any]) -> str:
    """The reason in the Workload's condition; empty if it has none yet."""
    for one in (workload.get("status") or {}).get("conditions") or ():
        if one.get("type") == "QuotaReserved" and one.get("status") != "True":
            return str(one.get("message") or "")[:300]
    return ""
