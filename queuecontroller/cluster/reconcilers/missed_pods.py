"""Ends pods that name a queue and were created without the gate, because no replica answered the
webhook: no Workload counts them, and a gate cannot be added to a pod that exists.

Their controller creates them again, and the webhook gates the new ones. Pods older than the webhook
are left alone: they were created before the queue was installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import FRAMEWORKS, setting
from queuecontroller.cluster.cache.kinds import MANAGED, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    is_leaving,
    labels_of,
    seconds_of,
    split_key,
)
from queuecontroller.cluster.reconcilers.units import Unit, missed_unit
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.setup.job_webhooks import CONFIGURATION, POD_WEBHOOK
from queuecontroller.cluster.setup.registration import MUTATING
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.frameworks import finished, on_create
from queuecontroller.frameworks.names import QUEUE_NAME, WORKLOAD
from queuecontroller.frameworks.pods import POD
from queuecontroller.scheduler.model.reasons import NOT_ADMITTED, STOPPED, TERMINATION_TARGET
from sluicecommon.kubernetes.resources import PODS
from sluicecommon.reader import ManifestError

ENDED: Final = (
    "it names queue {}, and was created without its scheduling gate because no replica of the queue"
    " answered the webhook: it is not counted"
)


def may_be_missed(pod: Document) -> bool:
    """Return True for a pod that names a queue and has no sign of the webhook nor of a Workload."""
    labels = labels_of(pod)
    return (
        bool(labels.get(QUEUE_NAME))
        and labels.get(MANAGED) != "true"
        and not finished(POD, pod)
        and not is_leaving(pod)
    )


def is_missed(cache: ObjectCache, pod: Document) -> bool:
    """Return True if the webhook would have gated the pod."""
    head = pod["metadata"]
    namespace = str(head.get("namespace") or "")
    admitted = annotations_of(pod).get(WORKLOAD)
    if admitted and cache.get(WORKLOADS, f"{namespace}/{admitted}") is not None:
        return False  # Its job was started for that Workload.
    if not may_be_missed(pod) or not cache.policy.wants(FRAMEWORKS[PODS]):
        return False
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    try:
        patch = on_create(POD, {**pod, "spec": spec}, setting(cache, pod, namespace))
    except (ManifestError, RecursionError):
        return False
    return "schedulingGates" in patch.get("spec", {})


def is_covered(configuration: Document, pod: Document) -> bool:
    """Return True if the pod is younger than the webhook's registration, in a namespace whose pods
    are sent to it."""
    made_s, since_s = (
        seconds_of(one["metadata"].get("creationTimestamp")) for one in (pod, configuration)
    )
    if made_s is None or since_s is None or made_s <= since_s:
        return False
    namespace = pod["metadata"].get("namespace")
    return any(
        one.get("name") == POD_WEBHOOK and namespace not in _left_out(one)
        for one in configuration.get("webhooks") or ()
    )


def _left_out(webhook: Document) -> set[Any]:
    rules = (webhook.get("namespaceSelector") or {}).get("matchExpressions") or ()
    return {value for one in rules for value in one.get("values") or ()}


class MissedPods:
    def __init__(self, workload_actions: WorkloadActions) -> None:
        self._actions = workload_actions
        self._cache = workload_actions.cache
        self.ended_total = 0

    def changed(self, key: str, pod: Document | None) -> Iterator[Unit]:
        """Yield the unit of a pod that may have missed the webhook."""
        if pod is not None and may_be_missed(pod):
            yield missed_unit(key)

    async def reconcile(self, unit: Unit) -> bool:
        """End a pod that is not counted; returns False: its next change queues it again. Raises
        ApiAway, ApiRefused."""
        pod = self._cache.get(PODS, unit.key)
        if pod is None or not is_missed(self._cache, pod):
            return False
        configuration = await self._actions.look(MUTATING, CONFIGURATION)
        if configuration is None or not is_covered(configuration, pod):
            return False
        namespace, _ = split_key(unit.key)
        if (name := annotations_of(pod).get(WORKLOAD)) and await self._actions.find(
            namespace, name
        ):
            return True  # Only the watch of Workloads is behind.
        why = ENDED.format(labels_of(pod)[QUEUE_NAME])
        await self._actions.mark(pod, TERMINATION_TARGET, NOT_ADMITTED, why)
        await self._actions.remove(PODS, pod)
        self._actions.record(pod, PODS, KubernetesEvent(STOPPED, why, warning=True))
        self.ended_total += 1
        return False
