"""Events on jobs and pods that wait: one when the reason of their Workload's condition changes.

Users look at these first. New amounts in the message alone are no event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuecontroller.cluster.cache.job_context import kind_of
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    controller_of,
    is_leaving,
    key_of,
)
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.scheduler.model.reasons import (
    FINISHED,
    QUOTA_RESERVED,
    PendingReason,
)
from sluicecommon.kubernetes.resources import Resource

MAX_OWNERS: Final = 8
"""Pods of one group that get the event."""
_PASSING: Final = (PendingReason.PENDING_EVALUATION, "Pending", "")
"""Reasons of Workloads that have not been evaluated yet."""


class WaitingReasons:
    def __init__(self) -> None:
        self._recorded: dict[str, tuple[str, str]] = {}
        """UID and last recorded reason by Workload."""

    def forget(self, key: str) -> None:
        self._recorded.pop(key, None)

    def changed(self, before: Document, after: Document) -> KubernetesEvent | None:
        """Return the event for the owners of a Workload whose status was written; None if the
        reason is the last recorded one, or it does not wait."""
        key, uid = key_of(after), str(after["metadata"].get("uid"))
        now, last = (condition_of(one, QUOTA_RESERVED) for one in (after, before))
        over = condition_of(after, FINISHED).get("status") == "True" or is_leaving(after)
        if over or now.get("status") != "False":
            self.forget(key)
            return None
        reason = str(now.get("reason") or "")
        if reason in _PASSING:
            return None
        # An earlier leader has recorded what the status had before.
        earlier = str(last.get("reason") or "") if last.get("status") == "False" else ""
        known = self._recorded.get(key, (uid, earlier))
        self._recorded[key] = uid, reason
        if known == (uid, reason):
            return None
        text = f"waits in its queue (Workload {after['metadata']['name']}): {now.get('message')}"
        return KubernetesEvent(reason, text, warning=True)


def owners_to_tell(workload: Document) -> Iterator[tuple[Resource, Document]]:
    """Yield kind, name and UID of the job or pod that waits; of a group, of its first pods."""
    controller = controller_of(workload)
    owners = workload["metadata"].get("ownerReferences") or ()
    for one in [controller] if controller else owners[:MAX_OWNERS]:
        group, _, version = str(one.get("apiVersion") or "").rpartition("/")
        kind = kind_of(one) or Resource(group, version, "", str(one.get("kind")))
        head = {name: one.get(name) for name in ("name", "uid")}
        yield kind, {"metadata": {**head, "namespace": workload["metadata"].get("namespace")}}
