"""Gangs of plain pods in the cluster: their groups' objects, the writes for their reservations, and
bindings that wait until the minimum of a group is being bound.

kube-scheduler has reserved its own resources for a pod when it requests the binding, so a group
whose bindings all wait here fits in whole, and is bound in whole. Nothing is stored except in the
pods: the nodes of a reservation are their `nominatedNodeName`, which also makes kube-scheduler try
these first, and the next leader reserves them again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.podplacement.eviction import Evictions
from queuecontroller.cluster.podplacement.requeueing import Requeueing
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.gpushares.extender import gangs
from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.gangs import Gangs
from queuecontroller.gpushares.extender.pod_groups import Group, GroupKey, read_group
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.reasons import GROUP_GIVEN_BACK
from sluicecommon.background import BackgroundTasks
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import Resource

WAITS_S: Final = 12.0
"""Seconds that a binding waits for the others. The scheduler waits 30 s for an answer, and a
replica that forwards its request 20 s."""
AT_ONCE: Final = 8
"""Concurrent writes."""
ATTEMPTS: Final = 5
AGAIN_S: Final = 1.0
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupSources:
    """Inputs of a leader besides the pods."""

    labels: Callable[[str], Mapping[str, str]] = lambda node: {}
    """Labels of a node."""
    is_followed: Callable[[Resource], bool] = lambda kind: False
    """True if all objects of a kind are in the cache."""
    record: Callable[[Document, KubernetesEvent], None] = lambda pod, event: None
    """Records an event of a pod."""


class PodGangs:
    def __init__(
        self,
        extender: Extender,
        defaults: Defaults,
        cache: ObjectCache,
        sources: GroupSources,
        is_stopped: Callable[[str], bool],
        refusals: Callable[[Document, Sequence[str]], Mapping[str, str]],
        again: Requeueing,
        nominations: Evictions,
        freed: Callable[[], None],
        now_ns: Callable[[], int],
    ) -> None:
        """`freed` is called after resources were given back."""
        self._cache = cache
        self._sources = sources
        self._again = again
        self._nominations = nominations
        self._freed = freed
        self._now_ns = now_ns
        self.gangs = Gangs(
            extender.stock,
            extender.ledger,
            defaults,
            extender.read,
            self._group,
            extender.is_ready,
            is_stopped,
            sources.labels,
            refusals,
            monotonic,
            self._happened,
        )
        self._groups: dict[tuple[Resource, str], Group] = {}
        """Groups as they were when their pods were last requeued."""
        self._complete: set[GroupKey] = set()
        """Complete groups whose pods were requeued for it."""
        self._asking = ""
        """UID of the pod that a request is about."""
        self._wakeups: dict[GroupKey, asyncio.Event] = {}
        """Events on which the bindings of a group wait; set when they have to check again."""
        self._storing: set[str] = set()
        """UIDs of pods whose nominated node is being written."""
        self._writing = asyncio.Semaphore(AT_ONCE)
        self._background = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._rests: dict[GroupKey, asyncio.TimerHandle] = {}
        self._ended = False

    def end(self) -> None:
        self._ended = True
        for timer in (self._timer, *self._rests.values()):
            if timer is not None:
                timer.cancel()
        for key in list(self._wakeups):
            self._wake(key)
        self._background.cancel()

    # -- groups -----------------------------------------------------------------------------------

    def _group(self, key: GroupKey) -> Group | str | None:
        name = f"{key.namespace}/{key.name}"
        for kind in key.kinds:
            document = self._cache.get(kind, name)
            if document is not None:
                return read_group(key, document)
        for kind in key.kinds:
            if self._sources.is_followed(kind):
                return f"the {kind.kind} {name} ({kind.group}) does not exist"
        return None

    def group_changed(self, kind: Resource, name: str, document: Document | None) -> None:
        """Requeue the pods of a group that was created, changed or deleted."""
        for key in self.gangs.groups_of(kind, name):
            group = self._group(key)
            if isinstance(group, Group) and self._groups.get((kind, name)) != group:
                self._groups[kind, name] = group
                for pod in self.gangs.waiting(key):  # Their reasons are out of date.
                    self._requeue(key, pod)
            self._wake(key)
        if document is None:
            self._groups.pop((kind, name), None)

    # -- requests ---------------------------------------------------------------------------------

    def place(self, pod: Document, names: Sequence[str] | None) -> PodPlace | str | None:
        """See `Gangs.place`."""
        self._asking = str(pod["metadata"].get("uid") or "")
        try:
            found = self.gangs.place(pod, names)
            key = self.gangs.group_key(self._asking)
            if isinstance(found, str) and key is not None and self.gangs.is_complete(key):
                self._refresh(key)
            return found
        finally:
            self._asking = ""

    def _refresh(self, key: GroupKey) -> None:
        """Requeue the other pods of a group that is complete since a moment: they were refused
        because some were missing, and there is another reason now."""
        if key in self._complete:
            return
        self._complete.add(key)
        for pod in self.gangs.waiting(key):
            if pod["metadata"]["uid"] != self._asking:
                self._requeue(key, pod)

    def pod_changed(self, uid: str, pod: Document | None) -> None:
        for key in self.gangs.changed(uid, pod):
            self._wake(key)
            if key in self._complete and not self.gangs.is_complete(key):
                self._complete.discard(key)
        node = self.gangs.reserved_node(uid)
        if pod is None or node is None or uid in self._storing or pod["spec"].get("nodeName"):
            return
        if (pod.get("status") or {}).get("nominatedNodeName") != node:
            # kube-scheduler removes it from a pod that it could not place.
            self._background.spawn(self._nominate(pod, node), "nomination of a node")

    async def why_not_bound(self, uid: str) -> str:
        """Wait until enough pods of the group are being bound; returns an error, "" if the pod may
        be bound."""
        key, until_s = self.gangs.group_key(uid), monotonic() + WAITS_S
        if key is None:
            return ""
        while why := self.gangs.why_not_bound(uid):
            if self._ended:
                return "this replica does not lead any more: try again"
            if self.gangs.is_given_back(uid):
                return f"{key.label}: its places were given back: try again"
            wakeup = self._wakeups.setdefault(key, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_s - monotonic()):
                    await wakeup.wait()
            if monotonic() >= until_s:
                return f"{self.gangs.why_not_bound(uid) or why}: try again"
        self._wake(key)
        return ""

    def _wake(self, key: GroupKey) -> None:
        if (wakeup := self._wakeups.pop(key, None)) is not None:
            wakeup.set()

    # -- reservations -----------------------------------------------------------------------------

    def _happened(self, event: gangs.Event) -> None:
        loop = asyncio.get_running_loop()
        if event.nodes:
            for pod, node in zip(event.pods, event.nodes, strict=True):
                self._background.spawn(self._nominate(pod, node), "nomination of a node")
                if pod["metadata"]["uid"] != self._asking:
                    self._requeue(event.key, pod)
        else:
            for pod in event.pods:
                self._background.spawn(self._nominate(pod, None), "nomination of a node")
                text = f"{event.key.label}: {event.why}"
                self._sources.record(pod, KubernetesEvent(GROUP_GIVEN_BACK, text, warning=True))
            self._wake(event.key)
            loop.call_soon(self._freed)
            if event.rest_s:
                self._rests[event.key] = loop.call_later(event.rest_s, self._try, event.key)
        loop.call_soon(self._tick)

    def _tick(self) -> None:
        """Give back what is reserved beyond its deadline, and come back at the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = None if self._ended else self.gangs.tick()
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, next_s - monotonic()), self._tick)

    def _try(self, key: GroupKey) -> None:
        """Requeue a pod of the group; if there is room for all, the others follow."""
        self._rests.pop(key, None)
        for pod in self.gangs.waiting(key)[:1]:
            self._requeue(key, pod)

    def _requeue(self, key: GroupKey, pod: Document) -> None:
        self._again.try_now(pod, f"{key.label}, {self._now_ns()}")

    async def _nominate(self, pod: Document, node: str | None) -> None:
        """Store the node of a reservation, or None, unless it is another by now."""
        uid = str(pod["metadata"]["uid"])
        self._storing.add(uid)
        try:
            for _ in range(ATTEMPTS):
                if self.gangs.reserved_node(uid) != node:
                    return
                try:
                    async with self._writing:
                        await self._nominations.name(pod, node)
                    return
                except ApiAway:
                    await asyncio.sleep(AGAIN_S)
        except ApiRefused:  # The pod is gone.
            pass
        finally:
            self._storing.discard(uid)
