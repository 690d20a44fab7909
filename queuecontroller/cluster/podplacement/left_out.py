"""Pods with GPU shares that kept a scheduler which does not know of shares, because no replica
answered the webhook when they were created: no scheduler places them, and a pod cannot change its
scheduler.

Such a pod of a ReplicaSet or StatefulSet is deleted, and its owner creates it again, which costs
nothing: it has never been on a node. Others have an event that says what to do: nobody creates a
bare pod again, and a Job counts a pod that is deleted as one that has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.objects import ObjectCache, labels_of
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.gpushares.extender.pods import asks_for_part, refusal_of
from queuecontroller.scheduler.model.reasons import NOT_PLACED_HERE
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import IGNORE, OPT_OUT, ResourceNames
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import NAMESPACES, PODS
from sluicecommon.newest import Newest

log = logging.getLogger(__name__)
CREATED_AGAIN: Final = frozenset({"ReplicaSet", "StatefulSet"})
"""Kinds of owners that create a deleted pod again and do not count it."""
GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
"""Label of a LeaderWorkerSet's pods, which may all be restarted if one is deleted."""
MOST_OF_OWNER: Final = 16
"""Deleted pods of one owner: it may create them such on purpose."""
OWNERS: Final = 1024
Document = Mapping[str, Any]


class LeftOutPods:
    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        names: ResourceNames,
        sharing: SharePods | None,
        record: Callable[[Document, KubernetesEvent], None],
        may_write: Callable[[], bool],
    ) -> None:
        """`cache` has the namespaces. `sharing` is None without webhooks for shares: no pod is left
        out then."""
        self._client = client
        self._cache = cache
        self._names = names
        self._sharing = sharing
        self._record = record
        self._may_write = may_write
        self._known: set[str] = set()
        """UIDs of pods that were dealt with."""
        self._deleted = Newest[str, int](OWNERS)
        """Numbers of deleted pods by their owner's UID."""
        self._background = BackgroundTasks()

    def end(self) -> None:
        self._background.cancel()

    def pod_changed(self, uid: str, pod: Document | None) -> None:
        """Deal with a pod that is left out, once."""
        if pod is None or pod["spec"].get("nodeName"):
            self._known.discard(uid)
            return
        rules = self._sharing.rules if self._sharing is not None else None
        if rules is None or not rules.scheduler or rules.claims or uid in self._known:
            return
        scheduler = pod["spec"].get("schedulerName")
        if scheduler not in rules.replaced or not refusal_of(pod):
            return
        if pod["metadata"].get("deletionTimestamp") or not asks_for_part(pod, self._names):
            return
        self._known.add(uid)
        text = (
            f"{scheduler} does not know which GPUs have room. The pod kept it because no replica"
            " of the queue controller answered when it was created, or because of the label"
            f" {OPT_OUT}. "
        )
        if owner := self._owner(pod):
            self._background.spawn(self._delete(pod), "deletion of a pod without its scheduler")
            text += f"It is deleted, and its {owner} creates it again"
        else:
            text += f"Create it again, or with schedulerName: {rules.scheduler}"
        self._record(pod, KubernetesEvent(NOT_PLACED_HERE, text, warning=True))

    def _owner(self, pod: Document) -> str:
        """Kind of the owner that creates the pod again with its scheduler; "" if none does."""
        labels = labels_of(pod)
        namespace = self._cache.get(NAMESPACES, str(pod["metadata"].get("namespace")))
        around = labels_of(namespace) if namespace is not None else {}
        if IGNORE in (labels.get(OPT_OUT), around.get(OPT_OUT)):
            return ""
        owners = pod["metadata"].get("ownerReferences") or ()
        owner = next((one for one in owners if one.get("controller")), None)
        if owner is None or owner.get("kind") not in CREATED_AGAIN or GROUP_LABEL in labels:
            return ""
        deleted = self._deleted.get(str(owner["uid"]), 0)
        if deleted >= MOST_OF_OWNER:
            return ""
        self._deleted[str(owner["uid"])] = deleted + 1
        return str(owner["kind"])

    async def _delete(self, pod: Document) -> None:
        head = pod["metadata"]
        if not self._may_write():
            return
        try:
            await self._client.delete(PODS, head["name"], head["namespace"], head["uid"])
        except (ApiAway, ApiRefused) as error:
            log.warning("pod %s/%s is not deleted: %s", head["namespace"], head["name"], error)
