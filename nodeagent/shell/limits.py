"""Who says how much of a GPU a container may have: the queue's decision, the pod's own requests,
the node's defaults; asked in the configured order, the first that knows decides."""

from __future__ import annotations

from typing import Final

from nodeagent.core.pod_limits import (
    DefaultLimits,
    ResourceNames,
    default_limits,
    limits_from_requests,
)
from nodeagent.kubelet_ports import (
    ContainerLimits,
    ContainerRequests,
    Never,
    NotYet,
    PodIdentity,
)
from nodeagent.ports import GrantAsk, MemoryAsk
from nodeagent.queue_ports import Desired, Work, WorkState
from nodeagent.shell.queue import QueueDesk

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"


class QueueLimits:
    """The decision of the queue controller for the pod."""

    def __init__(self, desk: QueueDesk) -> None:
        self._desk = desk

    async def limits(
        self, pod: PodIdentity, container: str, requests: ContainerRequests | None, gpus: int
    ) -> ContainerLimits | None:
        work = self._desk.work_of_pod(pod.namespace, pod.name) if pod.name else None
        if work is None:
            queue = dict(requests.labels).get(QUEUE_LABEL) if requests is not None else None
            if queue:
                raise NotYet(f"{pod} waits in queue {queue}: no decision for this node yet")
            return None
        return self._of(work, pod, gpus)

    def _of(self, work: Work, pod: PodIdentity, gpus: int) -> ContainerLimits:
        decision = work.decision
        if work.state is not WorkState.OFFERED or decision.desired is not Desired.RUN:
            if work.state is WorkState.RUNNING:
                raise Never(
                    f"{pod} has a container in a grant already; the queue decides for a pod as a"
                    " whole: let one container of it ask for GPUs"
                )
            raise NotYet(f"the queue has {decision.workload} as {work.state.value} here")
        if not self._desk.may_start():
            raise NotYet(f"the queue does not answer: {self._desk.trouble or 'lease over'}")
        if len(decision.gpus) != gpus:
            raise Never(
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
            ),
            source="queue",
            workload=decision.workload,
        )


class PodLimits:
    """What the pod asks for, where the kubelet tells."""

    def __init__(self, names: ResourceNames, defaults: DefaultLimits) -> None:
        self._names = names
        self._defaults = defaults

    async def limits(
        self, pod: PodIdentity, container: str, requests: ContainerRequests | None, gpus: int
    ) -> ContainerLimits | None:
        if requests is None:
            return None
        return limits_from_requests(dict(requests.resources), gpus, self._names, self._defaults)


class NodeDefaults:
    """The same for every container."""

    def __init__(self, defaults: DefaultLimits) -> None:
        self._defaults = defaults

    async def limits(
        self, pod: PodIdentity, container: str, requests: ContainerRequests | None, gpus: int
    ) -> ContainerLimits | None:
        return default_limits(gpus, self._defaults)
