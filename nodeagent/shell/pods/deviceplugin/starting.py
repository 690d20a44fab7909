"""A container that starts: its pod, from the kubelet's records, and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeagent.core.kubelet.identity import Holder, identify
from nodeagent.core.kubelet.pod_limits import DefaultLimits, default_limits, merge
from nodeagent.ports.clock import Clock
from nodeagent.ports.kubelet import (
    Checkpoint,
    ContainerLimits,
    ContainerRequests,
    KubeletAway,
    KubeletRecords,
    LimitsSource,
    Listing,
    NoPodSource,
    PodIdentity,
    PodSource,
    RequestsUnknown,
    RetryLater,
    parse_slot,
)
from nodeagent.shell.pods.admitted import AdmittedPods
from nodeagent.shell.pods.limits import PodLimits, QueueLimits
from nodeagent.units import NS_PER_S, PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import CHOOSING, HAMI_CORE, NUMA_BIND, VGPU_MODE
from sluicecommon.newest import Seen

log = logging.getLogger(__name__)

RECORDS_DEADLINE_S: Final = 5.0
NAME_DEADLINE_S: Final = 1.0
"""Longest time in which a pod's name and its devices by that name are looked up."""
LOG_UNREAD_NS: Final = 60 * NS_PER_S
MAX_UNPLACED: Final = 4096
PLACED_BESIDE: Final = "sluice.dev/placed-for"
"""Label of pods for which the queue controller has reserved GPUs beside a Kueue."""
_BY_DEFAULT: Final = frozenset({(VGPU_MODE, HAMI_CORE), (NUMA_BIND, "false")})
QUEUES: Final = (QueueLimits, AdmittedPods)
"""Sources that decide about whole instances, too."""


@dataclass(slots=True)
class KubeletFigures:
    """Counters for the metrics, since the daemon started."""

    allocations: int = 0
    starts: int = 0
    starts_refused: int = 0
    releases: int = 0
    hint_mismatches: int = 0
    """Grants on another GPU than the kubelet counts them on."""
    unread: int = 0
    """Containers admitted with the node's defaults because their requests could not be read."""
    unread_last: str = ""
    """The last of them with the reason; empty if there was none."""
    away: str = ""
    """Error of the last reading of the kubelet's records; empty if it succeeded."""
    start_seconds: list[float] = field(default_factory=list)


class Starting:
    """Identifies starting containers. `sources` are tried in this order, and may be replaced while
    the daemon runs; tasks of `background` end with the manager that owns it."""

    def __init__(
        self,
        records: KubeletRecords,
        pods: PodSource,
        sources: Sequence[LimitsSource],
        figures: KubeletFigures,
        clock: Clock,
        background: BackgroundTasks,
    ) -> None:
        self.sources = sources
        self.on_unread: list[Callable[[PodIdentity, str], Coroutine[Any, Any, None]]] = []
        """Called with a pod that starts with default limits, and why."""
        self.on_unplaced: list[Callable[[PodIdentity, str], Coroutine[Any, Any, None]]] = []
        """Called with a pod that starts on GPUs which no scheduler of ours has chosen, and its
        annotations that have no effect therefore."""
        self._unplaced = Seen[PodUid](MAX_UNPLACED)
        """Pods for which that was called."""
        self.figures = figures
        self._records = records
        self._pods = pods
        self._clock = clock
        self._background = background
        self._unread_logged_ns = -LOG_UNREAD_NS

    async def holders(self, device_ids: frozenset[str]) -> list[Holder]:
        """Pods that may start with these devices: one, but for an error of the kubelet."""
        try:
            async with asyncio.timeout(RECORDS_DEADLINE_S):
                checkpoint, listings = await self._records_of(device_ids)
        except (KubeletAway, TimeoutError) as error:
            why = str(error) or f"no answer within {RECORDS_DEADLINE_S:g} s"
            raise RetryLater(f"the kubelet's records cannot be read: {why}") from error
        found = identify(device_ids, checkpoint, listings)
        return [await self._named(one) if one.beside else one for one in found]

    async def _records_of(self, device_ids: frozenset[str]) -> tuple[Checkpoint, list[Listing]]:
        """The checkpoint and what PodResources has of these devices: by the name of the one pod
        that the checkpoint has for them, if PodResources agrees, and from the whole list if not."""
        checkpoint = await asyncio.to_thread(self._records.checkpoint)
        entries = [one for one in checkpoint.entries if one.device_ids & device_ids]
        if len({one.pod_uid for one in entries}) == 1:
            with contextlib.suppress(KubeletAway, NoPodSource, TimeoutError):
                async with asyncio.timeout(NAME_DEADLINE_S):
                    asked = PodIdentity(entries[0].pod_uid)
                    pod = (await self._pods.requests(asked, entries[0].container)).pod
                    if pod.name:
                        found = await self._records.listings_of(pod.namespace, pod.name)
                        if any(one.device_ids >= device_ids for one in found):
                            return checkpoint, found
        listings = await self._records.listings()
        return await asyncio.to_thread(self._records.checkpoint), listings

    async def _named(self, holder: Holder) -> Holder:
        """PodResources has no UIDs, so of several pods the names are not known from it."""
        try:
            requests = await self._pods.requests(holder.pod, holder.containers[0].container)
        except (KubeletAway, NoPodSource):
            return holder
        return replace(holder, pod=requests.pod) if requests.pod.name else holder

    async def limits(self, holder: Holder, device_ids: frozenset[str]) -> ContainerLimits:
        """The larger of what the containers with these devices ask for; a MIG instance is given
        whole, but to a pod of the queue only when and where the queue says."""
        gpus = len(device_ids)
        slots = [parse_slot(one) for one in device_ids]
        whole = any(one.is_place or one.gpu.startswith("MIG-") for one in slots)
        sources = [one for one in self.sources if not whole or isinstance(one, QUEUES)]
        parts = []
        for container in [one.container for one in holder.containers if sources]:
            requests: ContainerRequests | RequestsUnknown
            pod = holder.pod
            try:
                requests = await self._pods.requests(holder.pod, container)
                pod = requests.pod if requests.pod.name else holder.pod
            except NoPodSource as error:
                requests = RequestsUnknown(str(error))
            except KubeletAway as error:
                raise RetryLater(f"the pod's requests cannot be read now: {error}") from error
            for source in sources:
                try:
                    found = await source.limits(pod, container, requests, gpus)
                except KubeletAway as error:
                    raise RetryLater(f"the pod's owners cannot be read now: {error}") from error
                if found is not None:
                    parts.append(found)
                    self._tell_unplaced(pod, requests, found)
                    break
            own = any(isinstance(one, PodLimits) for one in sources)
            if (
                isinstance(requests, RequestsUnknown)
                and own
                and parts
                and parts[-1].source == "defaults"
            ):
                self._let_in_unread(pod, container, requests.why)
        if whole:
            return _whole(gpus, parts)
        if not parts:
            raise RetryLater(f"no source in kubelet.limits has GPU limits for {holder.pod}")
        return merge(parts)

    def _tell_unplaced(
        self,
        pod: PodIdentity,
        requests: ContainerRequests | RequestsUnknown,
        found: ContainerLimits,
    ) -> None:
        """Once for each pod: the kubelet tries a start again and again."""
        ignored = () if found.ask.gpu_uuids else unheeded(requests)
        if not ignored or not self._unplaced.is_first(pod.uid):
            return
        for call in self.on_unplaced:
            self._background.spawn(call(pod, ", ".join(ignored)), "event of a pod")

    def _let_in_unread(self, pod: PodIdentity, container: str, why: str) -> None:
        """Count and log it, so that a user who requested 8 GiB and has a whole GPU can find out."""
        self.figures.unread += 1
        self.figures.unread_last = f"{pod}, container {container}: {why}"
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._unread_logged_ns >= LOG_UNREAD_NS:
            self._unread_logged_ns = now_ns
            log.warning(
                "kubelet: %s, container %s, has the node's defaults instead of its requests: %s",
                pod,
                container,
                why,
            )
        for call in self.on_unread:
            self._background.spawn(call(pod, why), "event of a pod")


def unheeded(requests: ContainerRequests | RequestsUnknown) -> tuple[str, ...]:
    """Annotations by which a scheduler chooses GPUs, as far as the pod has some. A mode that the
    node provides anyway is none."""
    if isinstance(requests, RequestsUnknown):
        return ()
    given = dict(requests.annotations)
    if PLACED_BESIDE in dict(requests.labels):
        return ()  # A placement check of mode beside has honoured them.
    return tuple(
        name
        for name in CHOOSING
        if given.get(name, "").strip() and (name, given[name].strip()) not in _BY_DEFAULT
    )


def _whole(gpus: int, decided: Sequence[ContainerLimits]) -> ContainerLimits:
    """MIG instances, for one container each: those that the queue decided, if it did."""
    limits = default_limits(gpus, DefaultLimits(alone=True))
    for one in decided:
        ask = replace(limits.ask, gpu_uuids=one.ask.gpu_uuids, priority=one.ask.priority)
        limits = replace(limits, ask=ask, source=one.source, workload=one.workload)
    return limits
