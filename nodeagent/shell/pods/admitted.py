"""Keeps queued pods from starting until their Workload is admitted, where Kueue's objects are the
queue: a pod that was created while no webhook answered has no gate, and nothing counts it."""

from __future__ import annotations

from nodeagent.core.kubelet.admitted import QUEUE_LABEL, WORKLOAD
from nodeagent.ports.kubelet import (
    Admissions,
    ContainerLimits,
    ContainerRequests,
    NoPodSource,
    Owner,
    PodIdentity,
    PodSource,
    RequestsUnknown,
    RetryLater,
)


class AdmittedPods:
    """Implements LimitsSource, and decides nothing itself: a pod that may start is for the next
    source.

    An owner that the API server forbids to read is of no kind that is queued: the chart permits all
    of these.
    """

    def __init__(self, pods: PodSource, admissions: Admissions | None) -> None:
        """`admissions` None: there is no access to the API server."""
        self._pods = pods
        self._admissions = admissions

    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        if isinstance(requests, RequestsUnknown):
            raise RetryLater(f"whether {pod} belongs to a queue is unknown: {requests.why}")
        owners: tuple[Owner, ...] = ()
        all_known = True
        try:
            owners = await self._pods.owners(pod.namespace, requests.owner)
        except NoPodSource:
            all_known = False
        every = [requests.labels, *(one.labels for one in owners)]
        queue = next((found for one in every if (found := dict(one).get(QUEUE_LABEL))), "")
        if not queue:
            return None
        if self._admissions is None:
            raise RetryLater(f"{pod} waits in queue {queue}: there is no access to the API server")
        first = (requests.owner,) if requests.owner is not None else ()
        uids = {str(pod.uid), *(one.uid for one in first), *(one.ref.uid for one in owners)}
        name = dict(requests.annotations).get(WORKLOAD, "")
        uids.discard("")
        why = await self._admissions.why_not(pod.namespace, name, uids, all_known)
        if why:
            raise RetryLater(f"{pod} waits in queue {queue}: {why}")
        return None
