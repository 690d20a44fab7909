"""Completes Deployments, StatefulSets and LeaderWorkerSets that name a queue and were created while
no replica answered the webhook: their pod templates do not pass the queue on, so that nothing
queues their pods, and nodes hold them for ever.

The template gets what the webhook would have added, and nothing else, so that the next write of
any tool finds it as the webhook would leave it. The pods without it are then ended: they keep
places on nodes, and their controller waits for them to be ready before it makes others. Owners
older than the webhook are left alone, as their pods are (missed_pods.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import FRAMEWORKS, SETS, setting
from queuecontroller.cluster.cache.kinds import MANAGED
from queuecontroller.cluster.cache.objects import (
    Document,
    controller_of,
    has_condition,
    is_leaving,
    key_of,
    labels_of,
)
from queuecontroller.cluster.reconcilers.missed_pods import ENDED, is_covered
from queuecontroller.cluster.reconcilers.units import Unit, owner_unit
from queuecontroller.cluster.reconcilers.workload_actions import NEVER, WorkloadActions
from queuecontroller.cluster.setup.job_webhooks import CONFIGURATION
from queuecontroller.cluster.setup.registration import MUTATING
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.frameworks import is_managed, on_create
from queuecontroller.frameworks.names import QUEUE_NAME, SUSPENDING_PARENT
from queuecontroller.frameworks.patches import at
from queuecontroller.frameworks.serving import SET_NAME
from queuecontroller.scheduler.model.reasons import (
    NOT_ADMITTED,
    STOPPED,
    TEMPLATE_CHANGED,
    TEMPLATE_NOT_CHANGED,
    TERMINATION_TARGET,
)
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from sluicecommon.reader import ManifestError

OWNERS: Final = (DEPLOYMENTS, STATEFUL_SETS, SETS)
MOST_PATCHES: Final = 3
"""Times that one template is completed in one term of a leader. Another writer that takes the same
fields away again and again wins: an event says so."""
PAGE: Final = 500
"""Pods that are looked at in one call."""
CHANGED: Final = (
    "its pod template did not pass queue {} on to its pods, because no replica of the queue"
    " answered the webhook: it does now, and pods without it are ended"
)
CONTESTED: Final = (
    "its pod template does not pass queue {} on to its pods: another writer has taken that away {}"
    " times, so it is left alone, and the pods are not counted"
)
ENDED_OF: Final = "pods of it that were not counted in queue {} are ended: {}"


class MissedOwners:
    def __init__(self, workload_actions: WorkloadActions) -> None:
        self._actions = workload_actions
        self._cache = workload_actions.cache
        self._patches: dict[tuple[Resource, str], tuple[str, int]] = {}
        """Owners whose templates were completed in this term: their UIDs, and how often."""
        self._searched: dict[tuple[Resource, str], tuple[str, int]] = {}
        """Owners whose pods were looked at: their UIDs, and the generation at that time. So pods
        that a controller makes of an old template again are not ended again and again."""

    def changed(self, kind: Resource, key: str, owner: Document | None) -> Iterator[Unit]:
        """Yield the unit of an owner whose template or pods may lack their queue."""
        if owner is None:
            self._patches.pop((kind, key), None)
            self._searched.pop((kind, key), None)
            self._actions.forget(kind, key)
            return
        if is_leaving(owner) or not labels_of(owner).get(QUEUE_NAME):
            return
        if _lacks_queue(kind, owner) or self._is_to_search(kind, owner):
            yield owner_unit(kind, key)

    async def reconcile(self, unit: Unit) -> bool:
        """Complete a template, or end the pods of the former one; True: there are more of these.
        Raises ApiAway, ApiRefused."""
        kind, key = unit.reference
        owner = self._cache.get(kind, key)
        if owner is None or is_leaving(owner):
            return False
        patch = self._missing(kind, owner)
        if patch is None or not (patch or self._is_to_search(kind, owner)):
            return False
        configuration = await self._actions.look(MUTATING, CONFIGURATION)
        if configuration is None or not is_covered(configuration, owner):
            return False
        if patch:
            await self._complete(kind, owner, patch)
            return False
        return await self._end_pods(kind, owner)

    # -- its template -----------------------------------------------------------------------------

    def _missing(self, kind: Resource, owner: Document) -> dict[str, Any] | None:
        """Return what the webhook would add to the owner; empty if its template has its queue; None
        if the webhook leaves it alone, too."""
        framework = FRAMEWORKS[kind]
        around = setting(self._cache, owner, str(owner["metadata"].get("namespace") or ""))
        if not self._cache.policy.has(framework) or not is_managed(framework, owner, around):
            return None
        if not _lacks_queue(kind, owner):
            return {}
        try:
            return on_create(framework, owner, around, is_new=False) or None
        except ManifestError:
            return None

    async def _complete(self, kind: Resource, owner: Document, patch: dict[str, Any]) -> None:
        queue, times = labels_of(owner)[QUEUE_NAME], self._times(kind, owner)
        if times >= MOST_PATCHES:
            text = CONTESTED.format(queue, times)
            self._actions.refuse(kind, owner, text, TEMPLATE_NOT_CHANGED)
            return
        try:
            await self._actions.patch(kind, owner, patch)
        except ApiRefused as refused:
            if refused.not_found:
                return
            if refused.denied or refused.status in NEVER:
                text = f"the API server refuses its pod template with its queue: {refused.message}"
                self._actions.refuse(kind, owner, text, TEMPLATE_NOT_CHANGED)
                return
            raise
        self._patches[kind, key_of(owner)] = str(owner["metadata"].get("uid")), times + 1
        text = CHANGED.format(queue)
        self._actions.record(owner, kind, KubernetesEvent(TEMPLATE_CHANGED, text, warning=True))

    def _times(self, kind: Resource, owner: Document) -> int:
        uid, times = self._patches.get((kind, key_of(owner)), ("", 0))
        return times if uid == owner["metadata"].get("uid") else 0

    # -- pods of the former one -------------------------------------------------------------------

    def _is_to_search(self, kind: Resource, owner: Document) -> bool:
        """Return True if its controller knows its template, which has its queue, and has pods of a
        former one which were not looked at yet."""
        head, status = owner["metadata"], owner.get("status") or {}
        generation = _whole(head.get("generation"))
        return (
            not _lacks_queue(kind, owner)
            and self._searched.get((kind, key_of(owner))) != (head.get("uid"), generation)
            and _whole(status.get("observedGeneration", generation)) >= generation
            and _whole(status.get("replicas")) > _whole(status.get("updatedReplicas"))
            and (owner.get("spec") or {}).get("paused") is not True
        )

    async def _end_pods(self, kind: Resource, owner: Document) -> bool:
        """Delete the pods whose template did not name the queue. Ready pods are left to the rollout
        if this controller did not complete the template: a user put the owner into its queue."""
        head, queue = owner["metadata"], labels_of(owner)[QUEUE_NAME]
        namespace, every = str(head["namespace"]), self._times(kind, owner) > 0
        pods, more = await self._pods_of(kind, owner)
        why = ENDED.format(queue)
        missed = [one for one in pods if _is_missed(kind, one)]
        if kind == DEPLOYMENTS:
            ended = []
            for name in sorted({str(controller_of(one).get("name")) for one in missed}):
                of_set = [one for one in missed if controller_of(one).get("name") == name]
                if every or not any(has_condition(one, "Ready") for one in of_set):
                    ended += await self._end_replica_set(owner, f"{namespace}/{name}", of_set, why)
        else:
            ended = [one for one in missed if every or not has_condition(one, "Ready")]
            for one in ended:
                await self._actions.mark(one, TERMINATION_TARGET, NOT_ADMITTED, why)
                await self._actions.remove(PODS, one)
        for one in ended:
            self._actions.record(one, PODS, KubernetesEvent(STOPPED, why, warning=True))
        if ended:
            text = ENDED_OF.format(queue, len(ended))
            self._actions.record(owner, kind, KubernetesEvent(STOPPED, text, warning=True))
        if more and ended:
            return True
        searched = str(head.get("uid")), _whole(head.get("generation"))
        self._searched[kind, key_of(owner)] = searched
        return False

    async def _end_replica_set(
        self, owner: Document, key: str, pods: list[Document], why: str
    ) -> list[Document]:
        """Delete a former ReplicaSet of a Deployment with its pods, which it would make again;
        returns the pods. The Deployment's present one makes the others at once."""
        found = await self._actions.look(REPLICA_SETS, key)
        if (
            found is None
            or controller_of(found).get("uid") != owner["metadata"].get("uid")
            or not _lacks_queue(REPLICA_SETS, found)
        ):
            return []
        mine = [
            one for one in pods if controller_of(one).get("uid") == found["metadata"].get("uid")
        ]
        for one in mine:
            await self._actions.mark(one, TERMINATION_TARGET, NOT_ADMITTED, why)
        await self._actions.remove(REPLICA_SETS, found, "Background")
        return mine

    async def _pods_of(self, kind: Resource, owner: Document) -> tuple[list[Document], bool]:
        """Return pods that a former template of the owner may have made; True: there are more."""
        head = owner["metadata"]
        if kind == SETS:
            selector = f"{SET_NAME}={head['name']}"
        else:
            wanted = ((owner.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
            selector = ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))
        page = await self._actions.list_some(PODS, str(head["namespace"]), selector, PAGE)
        by = {DEPLOYMENTS: REPLICA_SETS, STATEFUL_SETS: STATEFUL_SETS, SETS: STATEFUL_SETS}[kind]
        found = []
        for pod in page.get("items") or ():
            maker = controller_of(pod)
            of_another = kind == STATEFUL_SETS and maker.get("uid") != head.get("uid")
            if maker.get("kind") == by.kind and not of_another:
                found.append(pod)
        return found, bool((page.get("metadata") or {}).get("continue"))


def _lacks_queue(kind: Resource, owner: Document) -> bool:
    """Return True if the pod template does not have what makes the webhook gate its pods: the queue
    for pods that are queued one by one, else the mark of the kind."""
    of_groups = ("leaderWorkerTemplate", "workerTemplate")
    path = ("spec", *(of_groups if kind == SETS else ("template",)), "metadata")
    return _is_unmarked(kind, {"metadata": at(owner, path)})


def _is_missed(kind: Resource, pod: Document) -> bool:
    """Return True for a pod that was made of a template without its queue, and is not gated."""
    return _is_unmarked(kind, pod) and labels_of(pod).get(MANAGED) != "true" and not is_leaving(pod)


def _is_unmarked(kind: Resource, pod: Document) -> bool:
    by_label = kind in (DEPLOYMENTS, REPLICA_SETS)
    parts = ("labels", QUEUE_NAME) if by_label else ("annotations", SUSPENDING_PARENT)
    return not isinstance(at(pod, ("metadata", *parts)), str)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
