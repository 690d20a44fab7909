"""Holders of a cluster's GPUs: bound pods from the API server, pods being bound, running containers
as reported by nodes, workloads of the queue, whose pods take the workload's places and hold nothing
themselves, and reservations of preemptors.

A pod deleted by force may keep running after the API server has removed it: it keeps its GPUs until
its node reports that it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from queuecontroller.gpushares.extender.pods import (
    PodPlace,
    is_over,
    place_of,
    refusal_of,
)
from queuecontroller.gpushares.extender.reservations import NONE, Places, Reservations, Reserved
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.capacity import Checkpoint, CheckpointState
from queuecontroller.scheduler.placement.stock import Share, Stock, Undo
from sluicecommon.pod_annotations import CHECKPOINT

GRACE_S: Final = 30
"""Seconds; Kubernetes' default."""


class PlainPod(NamedTuple):
    """Key of a pod's holding in the stock; equal to no key of the queue."""

    pod: str
    """UID."""


@dataclass(frozen=True, slots=True)
class KeptFor:
    """Key of a preemptor's reservation in the stock; equal to no other key."""

    pod: str
    """UID."""


class Kept(NamedTuple):
    """Reservation of a preemptor; usable once its victims have terminated."""

    place: PodPlace
    priority: int
    """Priority of the preemptor."""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod that holds GPUs, with the fields that choosing victims needs."""

    uid: str
    namespace: str
    name: str
    node: str
    priority: int = 0
    labels: Mapping[str, str] | None = None
    started: str = ""
    """RFC 3339; the newest are preempted first."""
    leaving: bool = False
    """True while the pod is being deleted; it need not be preempted."""
    leaves: str = ""
    """End of the pod's grace period, RFC 3339."""
    grace_s: int = GRACE_S
    """Grace period in seconds."""
    told: str = ""
    """Its annotation CHECKPOINT."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Running:
    """A pod's shares in all of its containers, as its node reports them from the kubelet."""

    uid: str
    namespace: str
    name: str
    shares: tuple[Share, ...]
    checkpoint: Checkpoint | None = None


class PendingPod(NamedTuple):
    """A pod that requests GPUs and for which kube-scheduler found no node."""

    namespace: str
    name: str
    created: str
    """RFC 3339."""
    reason: str
    """kube-scheduler's."""


class PodHolder(NamedTuple):
    """Shares on one node that a pod holds, or that are reserved for one."""

    key: str
    """The pod's UID; for a reserved place without a pod, its workload and number."""
    namespace: str
    pod: str
    """Name; empty while the place is only reserved."""
    workload: str
    """Workload of the queue that the place belongs to; empty for a plain pod."""
    shares: tuple[Share, ...]
    state: str
    """reserved, starting, running or terminating."""
    started: str = ""
    """Start of the pod, or its creation; RFC 3339. Empty if unknown."""


def _nothing() -> None:
    """Undo of nothing."""


class PodLedger:
    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._assumed: dict[str, PodPlace] = {}
        self._bound: dict[str, PodPlace] = {}
        """Places of bound pods, from the API server."""
        self._running: dict[str, dict[str, Running]] = {}
        """Running pods by node and UID."""
        self._node_of: dict[str, str] = {}
        """Node by UID, as nodes report it."""
        self._held: dict[str, tuple[str, tuple[Share, ...]]] = {}
        self.pods: dict[str, HeldPod] = {}
        """Pods of the API server that hold GPUs here, by UID."""
        self.pending: dict[str, PendingPod] = {}
        """Pods that fit on no node, by UID."""
        self.pending_changes = 0
        """Number of changes of `pending`."""
        self._priorities: Counter[int] = Counter()
        """Number of `pods` by priority."""
        self._on_node: dict[str, dict[str, None]] = {}
        self._of_workload: dict[str, dict[str, None]] = {}
        """Bound pods by the workload whose place they name."""
        self.reserved = Reservations(stock, self._settle)
        self.kept: dict[str, Kept] = {}
        """Reservations by the preemptor's UID."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def freed(self) -> int:
        """A counter that grows when a pod that did not fit may fit now."""
        return self._stock.freed

    def place(self, uid: str) -> PodPlace | None:
        """The pod's place, bound or assumed."""
        return self._bound.get(uid) or self._assumed.get(uid)

    @property
    def least_priority(self) -> int | None:
        """Lowest priority of the pods that hold GPUs."""
        return min(self._priorities, default=None)

    def holding(self, uid: str) -> tuple[str, tuple[Share, ...]] | None:
        return self._held.get(uid)

    def of_workload(self, key: WorkloadKey) -> list[HeldPod]:
        """Bound pods in places of a workload, whether it holds these or not."""
        return [self.pods[uid] for uid in self._of_workload.get(key, ())]

    def reported(self, uid: str) -> bool:
        """True if its node reports GPU shares of the pod: its containers were started."""
        return uid in self._node_of

    def on_node(self, node: str) -> list[tuple[str, HeldPod]]:
        """Pods of the API server that hold GPUs on a node, with their UIDs."""
        return [(uid, self.pods[uid]) for uid in self._on_node.get(node, ())]

    def holders(self, node: str) -> list[PodHolder]:
        """Everything on a node that pods hold or that is reserved for them."""
        found = []
        for key, held in self._stock.held_at(node):
            if isinstance(key, PlainPod):
                place = self.place(key.pod)
                workload = place.workload if place is not None else ""
                found.append(self._holder(key.pod, workload, held.shares))
            elif isinstance(key, Reserved):
                slot = self.reserved.slots(key.workload)[key.number]
                if slot.pod and slot.firm:
                    found.append(self._holder(slot.pod, key.workload, held.shares))
                else:
                    namespace, _, name = key.workload.partition("/")
                    number = f"{name}/{key.number}"
                    found.append(
                        PodHolder(number, namespace, "", key.workload, held.shares, "reserved")
                    )
            elif isinstance(key, KeptFor):
                found.append(PodHolder(key.pod, "", "", "", held.shares, "reserved"))
        return found

    def _holder(self, uid: str, workload: str, shares: tuple[Share, ...]) -> PodHolder:
        """A pod that is bound, being bound, or reported by its node."""
        node = self._node_of.get(uid)
        running = self._running[node].get(uid) if node is not None else None
        known = self.pods.get(uid)
        if known is not None and known.leaving:
            state = "terminating"
        else:
            state = "starting" if running is None else "running"
        named = known or running
        namespace, name = (named.namespace, named.name) if named is not None else ("", uid)
        started = known.started if known is not None else ""
        return PodHolder(uid, namespace, name, workload, shares, state, started)

    def assumed_place(self, uid: str) -> PodPlace | None:
        """Place where the pod is being bound, or may have been bound."""
        return self._assumed.get(uid)

    # -- pods being bound -------------------------------------------------------------------------

    def assume(self, uid: str, place: PodPlace) -> None:
        """Record a pod's place before it is bound. Raises ValueError if it has a place already."""
        if self.place(uid) is not None:
            raise ValueError(f"pod {uid} has a place already")
        self._turn_over(uid)
        self._assumed[uid] = place
        if place.workload:
            self.reserved.claim(WorkloadKey(place.workload), place, uid)
        self._settle(uid)

    def forget(self, uid: str) -> None:
        """Drop an assumed place: the binding failed, or the API server has the pod by now."""
        if self._assumed.pop(uid, None) is not None:
            self.reserved.loosen(uid)
            self._settle(uid)

    # -- reservations of preemptors ---------------------------------------------------------------

    def keep(self, uid: str, place: PodPlace, priority: int) -> None:
        """Reserve a place for a preemptor until it is placed; its GPUs may not be free yet."""
        self._turn_over(uid)
        self.kept[uid] = Kept(place, priority)
        self._stock.hold(KeptFor(uid), place.node, place.held)

    def unkeep(self, uid: str) -> None:
        if self.kept.pop(uid, None) is not None:
            self._stock.release(KeptFor(uid))

    def _turn_over(self, uid: str) -> None:
        """Drop a pod's reservation in favour of the pod itself: nothing becomes free for others."""
        freed = self._stock.freed
        self.unkeep(uid)
        self._stock.freed = freed

    def without_kept(self, uid: str, below: int | None = None) -> Undo:
        """Lift the reservation of this pod and of those with a priority below `below`, until the
        undo is called. Nothing else may change meanwhile."""
        keys = [
            KeptFor(one)
            for one, kept in self.kept.items()
            if one == uid or (below is not None and kept.priority < below)
        ]
        return self._stock.without(keys) if keys else _nothing

    def without_all_kept(self) -> Undo:
        """Lift all reservations until the undo is called."""
        return self._stock.without([KeptFor(one) for one in self.kept])

    # -- workloads of the queue -------------------------------------------------------------------

    def reserve(self, key: WorkloadKey, places: Places, done: Mapping[str, int] = NONE) -> None:
        """Replace the reservation of a workload's pods; bound pods keep their places in it. See
        `Reservations.hold` for `done`."""
        if self.reserved.hold(key, places, done):
            for uid in self._of_workload.get(key, {}):
                self.reserved.claim(key, self._bound[uid], uid)
            for uid, place in self._assumed.items():
                if place.workload == key:
                    self.reserved.claim(key, place, uid)

    # -- pods of the API server -------------------------------------------------------------------

    def take(self, document: Mapping[str, Any]) -> None:
        """Record a pod's current document from the API server."""
        head = document["metadata"]
        uid = str(head.get("uid") or "")
        node = str((document.get("spec") or {}).get("nodeName") or "")
        place = place_of(document) if node else None
        self._note_pending(uid, None if node else document)
        if place is None or place.node != node or is_over(document):
            self._drop(uid)
            return
        self._assumed.pop(uid, None)
        self._turn_over(uid)
        self._unbind(uid)
        self._bound[uid] = place
        if place.workload:
            self._of_workload.setdefault(place.workload, {})[uid] = None
            self.reserved.claim(WorkloadKey(place.workload), place, uid)
        else:
            self.reserved.leave(uid)
        self._note_gone(uid)
        self.pods[uid] = HeldPod(
            uid,
            str(head.get("namespace") or "default"),
            str(head.get("name") or ""),
            node,
            int(document["spec"].get("priority") or 0),
            head.get("labels") or {},
            str((document.get("status") or {}).get("startTime") or head.get("creationTimestamp")),
            bool(head.get("deletionTimestamp")),
            str(head.get("deletionTimestamp") or ""),
            int(document["spec"].get("terminationGracePeriodSeconds") or GRACE_S),
            str((head.get("annotations") or {}).get(CHECKPOINT) or ""),
        )
        self._priorities[self.pods[uid].priority] += 1
        self._on_node.setdefault(node, {})[uid] = None
        self._settle(uid)

    def drop(self, uid: str) -> None:
        """Remove a pod that was deleted from the API server."""
        self._assumed.pop(uid, None)
        self.unkeep(uid)
        self._note_pending(uid, None)
        self._drop(uid)

    def _note_pending(self, uid: str, document: Mapping[str, Any] | None) -> None:
        """Record that a pod waits for a node, if it does. `document` is None for a pod that is
        bound or deleted."""
        found = None
        reason = refusal_of(document) if document is not None else ""
        if document is not None and reason and not is_over(document):
            head = document["metadata"]
            found = PendingPod(
                str(head.get("namespace") or "default"),
                str(head.get("name") or ""),
                str(head.get("creationTimestamp") or ""),
                reason,
            )
        if found == self.pending.get(uid):
            return
        self.pending_changes += 1
        if found is None:
            del self.pending[uid]
        else:
            self.pending[uid] = found

    def _drop(self, uid: str) -> None:
        self._unbind(uid)
        if uid not in self._node_of:  # While it runs, the next pod has to wait for its end.
            self.reserved.leave(uid)
        self._note_gone(uid)
        self._settle(uid)

    def _note_gone(self, uid: str) -> None:
        known = self.pods.pop(uid, None)
        if known is None:
            return
        self._on_node[known.node].pop(uid, None)
        self._priorities[known.priority] -= 1
        if not self._priorities[known.priority]:
            del self._priorities[known.priority]

    def _unbind(self, uid: str) -> None:
        place = self._bound.pop(uid, None)
        if place is not None and place.workload:
            mine = self._of_workload[place.workload]
            del mine[uid]
            if not mine:
                del self._of_workload[place.workload]

    def checkpoint(self, uid: str) -> Checkpoint | None:
        """The node's answer to what a pod's annotation tells it now; None: there is none yet."""
        node, pod = self._node_of.get(uid), self.pods.get(uid)
        if node is None or pod is None:
            return None
        found = self._running[node][uid].checkpoint
        return found if found is not None and found.told == pod.told else None

    def is_saved(self, uid: str) -> bool:
        """True if a pod's GPU memory is on the host, and stays there until the leader tells it to
        restore it: it has nothing but its slots, whose devices the kubelet keeps for it."""
        found = self.checkpoint(uid)
        return found is not None and found.state is CheckpointState.SAVED

    # -- reports of nodes -------------------------------------------------------------------------

    def report(self, node: str, running: Mapping[str, Running]) -> None:
        """Record all pods with GPUs on a node; pods missing from the report have ended there."""
        before = self._running.get(node, {})
        if before == running:
            return
        self._running[node] = dict(running)
        for uid in before.keys() - running.keys():
            self._node_of.pop(uid, None)
            if self.place(uid) is None:
                self.reserved.leave(uid)
            self._settle(uid)
        for uid, one in running.items():
            if before.get(uid) != one:
                self._node_of[uid] = node
                self._settle(uid)

    def forget_node(self, node: str) -> None:
        """Drop the reports of a node that was removed."""
        self.report(node, {})
        self._running.pop(node, None)

    # -- the stock --------------------------------------------------------------------------------

    def _settle(self, uid: str) -> None:
        wanted = self._wanted(uid)
        before = self._held.get(uid)
        if wanted == before:
            return
        key: Hashable = PlainPod(uid)
        if before is not None:
            self._stock.release(key)
            del self._held[uid]
        if wanted is not None:
            self._stock.hold(key, *wanted)
            self._held[uid] = wanted

    def _wanted(self, uid: str) -> tuple[str, tuple[Share, ...]] | None:
        """The pod's holding: its place, else the shares that its node reports; None if it holds
        nothing itself."""
        if self.reserved.covers(uid):
            return None
        place = self._bound.get(uid) or self._assumed.get(uid)
        if place is not None and place.workload and self.is_saved(uid):
            return place.node, tuple(Share(one.uuid, 0, 0) for one in place.held)
        if place is not None:
            return place.node, place.held
        node = self._node_of.get(uid)
        if node is None:
            return None
        return node, self._running[node][uid].shares
