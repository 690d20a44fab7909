"""Who holds what of the nodes' GPUs in a cluster: pods that the API server has with a placement,
pods whose binding is under way, what nodes say that runs there, workloads of the queue, whose
places their pods take without holding anything themselves, and pods that others make way for.

What the API server forgets may run on for a while, where a pod was deleted by force: its GPUs are
its own until its node says, too, that it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from queuecontroller.gpushares.extender.pods import PodPlace, is_over, place_of
from queuecontroller.gpushares.extender.reservations import NONE, Places, Reservations
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.stock import Share, Stock, Undo

GRACE_S: Final = 30
"""Kubernetes' own default."""


class PlainPod(NamedTuple):
    """Key of its holding in the stock, equal to no key of the queue's."""

    pod: str
    """UID."""


@dataclass(frozen=True, slots=True)
class KeptFor:
    """Key of room in the stock that others leave for a pod; equal to no other key."""

    pod: str
    """UID."""


class Kept(NamedTuple):
    """Room for a pod that waits: free once those have left who make way for it."""

    place: PodPlace
    priority: int
    """The pod's."""


@dataclass(frozen=True, slots=True)
class HeldPod:
    """As much of a pod that holds GPUs as choosing whom to displace takes."""

    uid: str
    namespace: str
    name: str
    node: str
    priority: int = 0
    labels: Mapping[str, str] | None = None
    started: str = ""
    """RFC 3339; the newest go first."""
    leaving: bool = False
    """It is being deleted: nobody has to displace it."""
    leaves: str = ""
    """RFC 3339: when its time to do so is over."""
    grace_s: int = GRACE_S
    """How long it may take to leave."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Running:
    """What a node says that a container has, by the kubelet's word; all containers of a pod."""

    uid: str
    namespace: str
    name: str
    shares: tuple[Share, ...]


def _nothing() -> None:
    """Nothing was lifted."""


class PodLedger:
    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._assumed: dict[str, PodPlace] = {}
        self._bound: dict[str, PodPlace] = {}
        """By the API server's word."""
        self._running: dict[str, dict[str, Running]] = {}
        """By node and UID."""
        self._node_of: dict[str, str] = {}
        """Where a pod runs, by its node's word."""
        self._held: dict[str, tuple[str, tuple[Share, ...]]] = {}
        self.pods: dict[str, HeldPod] = {}
        """Those of the API server's that hold something here."""
        self._priorities: Counter[int] = Counter()
        """Theirs."""
        self._on_node: dict[str, dict[str, None]] = {}
        self._of_workload: dict[str, dict[str, None]] = {}
        """Bound pods that say they have a place of a workload's, by it."""
        self.reserved = Reservations(stock, self._settle)
        self.kept: dict[str, Kept] = {}
        """By UID."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def freed(self) -> int:
        """Grows when something may fit that did not."""
        return self._stock.freed

    def place(self, uid: str) -> PodPlace | None:
        """Where it is, or is about to be."""
        return self._bound.get(uid) or self._assumed.get(uid)

    @property
    def least_priority(self) -> int | None:
        """Of the pods that hold something."""
        return min(self._priorities, default=None)

    def holding(self, uid: str) -> tuple[str, tuple[Share, ...]] | None:
        return self._held.get(uid)

    def on_node(self, node: str) -> list[tuple[str, HeldPod]]:
        """Pods of the API server's that hold something there, by UID."""
        return [(uid, self.pods[uid]) for uid in self._on_node.get(node, ())]

    def assumed_place(self, uid: str) -> PodPlace | None:
        """Where it is about to be bound, or may have been."""
        return self._assumed.get(uid)

    # -- what we are about to write ---------------------------------------------------------------

    def assume(self, uid: str, place: PodPlace) -> None:
        """Raises ValueError where it has a place already."""
        if self.place(uid) is not None:
            raise ValueError(f"pod {uid} has a place already")
        self._turn_over(uid)
        self._assumed[uid] = place
        if place.workload:
            self.reserved.claim(WorkloadKey(place.workload), place, uid)
        self._settle(uid)

    def forget(self, uid: str) -> None:
        """It was not written, or the API server says so itself by now."""
        if self._assumed.pop(uid, None) is not None:
            self.reserved.loosen(uid)
            self._settle(uid)

    # -- those whom others make way for ----------------------------------------------------------

    def keep(self, uid: str, place: PodPlace, priority: int) -> None:
        """For this pod, until it is placed: also what is not free yet."""
        self._turn_over(uid)
        self.kept[uid] = Kept(place, priority)
        self._stock.hold(KeptFor(uid), place.node, place.held)

    def unkeep(self, uid: str) -> None:
        if self.kept.pop(uid, None) is not None:
            self._stock.release(KeptFor(uid))

    def _turn_over(self, uid: str) -> None:
        """To the pod itself: nothing is free for others by it."""
        freed = self._stock.freed
        self.unkeep(uid)
        self._stock.freed = freed

    def without_kept(self, uid: str, below: int | None = None) -> Undo:
        """As if nothing were kept for this pod, nor for those of a priority `below` that; until the
        undo, and nothing may change meanwhile."""
        keys = [
            KeptFor(one)
            for one, kept in self.kept.items()
            if one == uid or (below is not None and kept.priority < below)
        ]
        return self._stock.without(keys) if keys else _nothing

    def without_all_kept(self) -> Undo:
        """The same for everybody."""
        return self._stock.without([KeptFor(one) for one in self.kept])

    # -- workloads of the queue -------------------------------------------------------------------

    def reserve(self, key: WorkloadKey, places: Places, done: Mapping[str, int] = NONE) -> None:
        """What is kept for a workload's pods from now on, in place of what was before; those who
        are bound there already have it. `done`: see `Reservations.hold`."""
        if self.reserved.hold(key, places, done):
            for uid in self._of_workload.get(key, {}):
                self.reserved.claim(key, self._bound[uid], uid)
            for uid, place in self._assumed.items():
                if place.workload == key:
                    self.reserved.claim(key, place, uid)

    # -- what the API server says -----------------------------------------------------------------

    def take(self, document: Mapping[str, Any]) -> None:
        """A pod as it is now."""
        head = document["metadata"]
        uid = str(head.get("uid") or "")
        node = str((document.get("spec") or {}).get("nodeName") or "")
        place = place_of(document) if node else None
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
        )
        self._priorities[self.pods[uid].priority] += 1
        self._on_node.setdefault(node, {})[uid] = None
        self._settle(uid)

    def drop(self, uid: str) -> None:
        """The API server has it no more."""
        self._assumed.pop(uid, None)
        self.unkeep(uid)
        self._drop(uid)

    def _drop(self, uid: str) -> None:
        self._unbind(uid)
        if uid not in self._node_of:  # else the next pod has to wait for its end
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

    # -- what nodes say ---------------------------------------------------------------------------

    def report(self, node: str, running: Mapping[str, Running]) -> None:
        """All pods that have GPUs on the node; what it does not name is over there."""
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
        """It is given up."""
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
        """What it is to hold: what it was given, else what its node says it has."""
        if self.reserved.covers(uid):
            return None
        place = self._bound.get(uid) or self._assumed.get(uid)
        if place is not None:
            return place.node, place.held
        node = self._node_of.get(uid)
        if node is None:
            return None
        return node, self._running[node][uid].shares
