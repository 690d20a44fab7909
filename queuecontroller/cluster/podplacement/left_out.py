"""Pods with GPU shares that kept a scheduler which does not know of shares: they were created
before a replica had registered the webhook, or while none answered it and its failurePolicy was
Ignore. No scheduler places them, and a pod cannot change its scheduler.

Such a pod of a ReplicaSet or StatefulSet is deleted, and its owner creates it again, which costs
nothing: it has never been on a node. That is done some seconds later, and each time later for one
owner: a leader starts before the API server can reach its webhook, and a new pod would miss it,
too. Other pods get an event that says what to do: a bare pod has no owner that creates it again,
and a Job counts a deleted pod as failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from queuecontroller.cluster.cache.objects import ObjectCache, labels_of
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.gpushares.extender.pods import asks_for_part, refusal_of
from queuecontroller.scheduler.model.reasons import NOT_PLACED_HERE
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import IGNORE, OPT_OUT, ResourceNames
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import KUBE_SYSTEM, NAMESPACES, PODS
from sluicecommon.newest import Newest

log = logging.getLogger(__name__)
CREATED_AGAIN: Final = frozenset({"ReplicaSet", "StatefulSet"})
"""Kinds of owners that create a deleted pod again and do not count it."""
GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
"""Label of a LeaderWorkerSet's pods, which may all be restarted if one is deleted."""
FIRST_S: Final = 10.0
"""Seconds until the first pods of an owner are deleted; twice as long each time."""
ROUNDS: Final = 6
"""Times for one owner, 10 minutes in all: it may create them such on purpose."""
OWNERS: Final = 1024
Document = Mapping[str, Any]


class _Round(NamedTuple):
    number: int
    ends_s: float
    """Time, by the loop's clock, at which the pods of this round are deleted."""


class LeftOutPods:
    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        names: ResourceNames,
        sharing: SharePods | None,
        record: Callable[[Document, KubernetesEvent], None],
        may_write: Callable[[], bool],
        namespace: str,
    ) -> None:
        """`cache` has the namespaces. `sharing` is None without webhooks for shares: no pod is left
        out then. Pods of kube-system and of the controller's own `namespace` are not sent to the
        webhook."""
        self._apart = frozenset({KUBE_SYSTEM, namespace})
        self._client = client
        self._cache = cache
        self._names = names
        self._sharing = sharing
        self._record = record
        self._may_write = may_write
        self._known: set[str] = set()
        """UIDs of pods that were dealt with."""
        self._rounds = Newest[str, _Round](OWNERS)
        """The last round of each owner, by UID."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Pods that will be deleted, by UID."""
        self._background = BackgroundTasks()

    def end(self) -> None:
        for uid in list(self._timers):
            self._keep(uid)
        self._background.cancel()

    def _keep(self, uid: str) -> None:
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()

    def pod_changed(self, uid: str, pod: Document | None) -> None:
        """Deal with a pod that is left out, once."""
        if pod is None or pod["spec"].get("nodeName"):
            self._known.discard(uid)
            self._keep(uid)
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
        owner = self._owner(pod)
        ends_s = self._round_ends_s(str(owner["uid"])) if owner is not None else None
        if owner is not None and ends_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[uid] = loop.call_at(ends_s, self._delete, uid, pod)
            text += f"It will be deleted soon, and its {owner['kind']} creates it again"
        else:
            text += f"Create it again, or with schedulerName: {rules.scheduler}"
        self._record(pod, KubernetesEvent(NOT_PLACED_HERE, text, warning=True))

    def _owner(self, pod: Document) -> Document | None:
        """The owner that creates the pod again with its scheduler; None if none does."""
        labels = labels_of(pod)
        namespace = self._cache.get(NAMESPACES, str(pod["metadata"].get("namespace")))
        around = labels_of(namespace) if namespace is not None else {}
        if IGNORE in (labels.get(OPT_OUT), around.get(OPT_OUT)) or GROUP_LABEL in labels:
            return None
        if pod["metadata"].get("namespace") in self._apart:
            return None
        owners = pod["metadata"].get("ownerReferences") or ()
        owner = next((one for one in owners if one.get("controller")), None)
        return owner if owner is not None and owner.get("kind") in CREATED_AGAIN else None

    def _round_ends_s(self, owner: str) -> float | None:
        """Time at which a pod of this owner is deleted, with others that it has left out until
        then; None after the last round."""
        now_s = asyncio.get_running_loop().time()
        last = self._rounds.get(owner)
        if last is None or now_s >= last.ends_s:
            number = last.number + 1 if last is not None else 0
            if number >= ROUNDS:
                return None
            last = self._rounds[owner] = _Round(number, now_s + FIRST_S * 2**number)
        return last.ends_s

    def _delete(self, uid: str, pod: Document) -> None:
        del self._timers[uid]
        if self._may_write():
            self._background.spawn(self._delete_now(pod), "deletion of a pod")

    async def _delete_now(self, pod: Document) -> None:
        head = pod["metadata"]
        try:
            await self._client.delete(PODS, head["name"], head["namespace"], head["uid"])
        except (ApiAway, ApiRefused) as error:
            log.warning("pod %s/%s is not deleted: %s", head["namespace"], head["name"], error)
