"""Sources of a container's GPU limits: the queue's decision, the pod's own requests, the node's
defaults. They are consulted in the configured order; the first that knows decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nodeagent.core.kubelet.placed import placed_gpus
from nodeagent.core.kubelet.pod_limits import DefaultLimits, default_limits, limits_from_requests
from nodeagent.core.kubelet.resizing import guaranteed
from nodeagent.core.kubelet.without_windows.gang import is_gang
from nodeagent.core.kubelet.without_windows.groups import refuse_group, trusted_group
from nodeagent.core.queue import pod_work
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.kubelet import (
    ContainerLimits,
    ContainerRequests,
    NoPodSource,
    OwnerRef,
    PermanentError,
    PodIdentity,
    PodSource,
    RequestsUnknown,
    RetryLater,
)
from nodeagent.ports.queue import Desired, Work, WorkState
from nodeagent.shell.queue.manager import QueueManager
from nodeagent.units import GpuUuid
from sluicecommon.hami.names import ResourceNames
from sluicecommon.pod_annotations import CHECKPOINT, PLACEMENT, SAVE

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"


class QueueLimits:
    """The decision of the queue controller for the pod.

    A pod belongs to a queue by a label on it, or on one of the controllers above it. A pod for
    which that is unknown does not start, since it might bypass its quota.
    """

    def __init__(self, manager: QueueManager, pods: PodSource) -> None:
        self._manager = manager
        self._pods = pods

    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        if isinstance(requests, RequestsUnknown):
            work = self._manager.work_of_pod(pod, ()) if pod.name else None
            if work is None:
                raise RetryLater(f"whether {pod} belongs to a queue is unknown: {requests.why}")
            return self._of(work, pod, gpus, work.decision.nodes > 1)
        owners, labels, unknown = await self._whose(pod, requests)
        work = self._manager.work_of_pod(pod, owners)
        if work is not None:
            refuse_group(requests)
            return self._of(work, pod, gpus, is_gang(requests, work.decision.nodes))
        queues = [found for one in labels if (found := one.get(QUEUE_LABEL))]
        made_by = f", made by {owners[-1].kind} {owners[-1].name}" if owners else ""
        if queues:
            raise RetryLater(
                f"{pod}{made_by} waits in queue {queues[0]}: {self._none_free(pod, owners)}"
            )
        if unknown:
            raise RetryLater(f"whether {pod}{made_by} belongs to a queue is unknown: {unknown}")
        return None

    async def _whose(
        self, pod: PodIdentity, requests: ContainerRequests
    ) -> tuple[tuple[OwnerRef, ...], list[dict[str, str]], str]:
        """Owners from the pod's own upwards, the labels of the pod and theirs, and why there may
        be more. Raises KubeletAway."""
        try:
            found = await self._pods.owners(pod.namespace, requests.owner)
        except NoPodSource as error:
            named = pod_work.owners_by_name(requests.owner, requests.labels)
            return named, [dict(requests.labels)], str(error)
        labels = [dict(requests.labels), *(dict(one.labels) for one in found)]
        return tuple(one.ref for one in found), labels, ""

    def _none_free(self, pod: PodIdentity, owners: tuple[OwnerRef, ...]) -> str:
        taken = len(self._manager.works_of_owners(pod, owners))
        if not taken:
            return "no decision for this node yet"
        return f"the {taken} decided for it on this node have their pods"

    def _of(self, work: Work, pod: PodIdentity, gpus: int, gang: bool) -> ContainerLimits:
        decision = work.decision
        if work.state is not WorkState.OFFERED or decision.desired is not Desired.RUN:
            if work.state is WorkState.RUNNING:
                raise PermanentError(
                    f"{pod} has a container in a grant already; the queue decides for a pod as a"
                    " whole: request GPUs in one container only"
                )
            raise RetryLater(f"the queue has {decision.workload} as {work.state.value} here")
        if not self._manager.may_start():
            raise RetryLater(f"the queue does not answer: {self._manager.trouble or 'lease over'}")
        if len(decision.gpus) != gpus:
            raise PermanentError(
                f"the queue decided {len(decision.gpus)} GPUs for {pod}, the kubelet counts {gpus}"
            )
        return ContainerLimits(
            GrantAsk(
                gpus=gpus,
                memory=MemoryAsk(amount_bytes=decision.gpus[0].memory_bytes),
                share_ppm=decision.gpus[0].share_ppm,
                policy=decision.policy,
                gpu_uuids=tuple(one.gpu for one in decision.gpus),
                priority=decision.priority,
                gang=gang,
            ),
            source="queue",
            workload=decision.workload,
            replica=decision.pod,
        )


class PlacedLimits:
    """Limits from the pod's requests, on the GPUs on which the cluster has placed it."""

    def __init__(self, names: ResourceNames, defaults: DefaultLimits) -> None:
        self._own = PodLimits(names, defaults)

    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        if isinstance(requests, RequestsUnknown):
            raise RetryLater(f"where {pod} was placed is unknown: {requests.why}")
        annotations = dict(requests.annotations)
        if annotations.get(CHECKPOINT, "").startswith(SAVE):
            raise RetryLater(f"{pod} is checkpointed, and starts no container until it is restored")
        text = annotations.get(PLACEMENT)
        own = await self._own.limits(pod, container, requests, gpus) if text else None
        if text is None or own is None:
            return None
        refuse_group(requests)
        try:
            placed = placed_gpus(text, container)
        except ValueError as error:
            raise PermanentError(
                f"annotation {PLACEMENT} of {pod} {error}: it was not written by Sluice"
            ) from error
        if not placed:
            return None
        if len(placed) != gpus:
            raise PermanentError(
                f"{pod} was placed on {len(placed)} GPUs, the kubelet counts {gpus}: do resource"
                " names here and in the queue's settings differ?"
            )
        ask = replace(own.ask, gpu_uuids=tuple(GpuUuid(one) for one in placed))
        return replace(own, ask=ask, source="placement")


class PodLimits:
    """Limits from the pod's requests, where the kubelet reports them."""

    def __init__(self, names: ResourceNames, defaults: DefaultLimits) -> None:
        self._names = names
        self._defaults = defaults

    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        if isinstance(requests, RequestsUnknown):
            return None
        annotations = dict(requests.annotations)
        found = limits_from_requests(
            dict(requests.resources), gpus, self._names, self._defaults, annotations
        )
        request = guaranteed(annotations, container, self._names)
        group = trusted_group(requests, found.ask.policy, self._defaults)
        return replace(
            found,
            ask=replace(found.ask, request=request, gang=is_gang(requests), trusted_group=group),
        )


class NodeDefaults:
    """Default limits, alike for every container."""

    def __init__(self, defaults: DefaultLimits) -> None:
        self._defaults = defaults

    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        return default_limits(gpus, self._defaults)
