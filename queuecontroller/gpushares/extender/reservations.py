"""Reservations of GPUs for the pods of workloads that hold quota: a place for each pod, in the
stock that plain pods are placed from.

A place belongs to the workload until it is released, whichever of its pods uses it. A pod is
offered a place and keeps it; from its binding on, the place is firm, and another pod of the
workload gets it only once the API server and the node both report the first as gone. When some pods
have finished, an equal number of unused places is returned to the stock. The returned places stay
known, because a new leader receives pods one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.stock import Stock

NONE: Final[Mapping[str, int]] = MappingProxyType({})
Places = Mapping[str, Sequence[PodPlace]]
"""Places by pod set."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Key of a place in the stock; a class of its own, so equal to no other key."""

    workload: WorkloadKey
    number: int


@dataclass(slots=True, eq=False)
class Slot:
    pod_set: str
    place: PodPlace
    pod: str = ""
    """UID of the pod that was offered the place; empty if none."""
    firm: bool = False
    """True if the pod is bound there or being bound."""
    held: bool = True
    """True while the place is in the stock, False once it was returned."""


class Reservations:
    def __init__(self, stock: Stock, changed: Callable[[str], None] = lambda uid: None) -> None:
        """`changed` is called with the UID of a pod whose place became firm or ceased to be."""
        self._stock = stock
        self.changed = changed
        self._slots: dict[WorkloadKey, list[Slot]] = {}
        self._of_pod: dict[str, tuple[WorkloadKey, Slot]] = {}
        self._done: dict[WorkloadKey, Mapping[str, int]] = {}
        """Number of finished pods by pod set, per workload."""
        self._partly: set[WorkloadKey] = set()
        """Workloads that returned some of their places."""

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def has(self, key: WorkloadKey) -> bool:
        return key in self._slots

    def slots(self, key: WorkloadKey) -> Sequence[Slot]:
        return self._slots.get(key, ())

    def on(self, node: str) -> list[WorkloadKey]:
        """Workloads with places on a node."""
        return [key for key, each in self._slots.items() if any(s.place.node == node for s in each)]

    # -- workloads --------------------------------------------------------------------------------

    def hold(self, key: WorkloadKey, places: Places, done: Mapping[str, int] = NONE) -> bool:
        """Replace a workload's reservation; False if it is unchanged. `done` is the number of
        finished pods by pod set, which need no place any more."""
        made = [Slot(name, one) for name, each in places.items() for one in each]
        before = self._slots.get(key, [])
        if _are_alike(before, made):
            if made:
                self._done[key] = done
                self._balance(key)
            return False
        freed = self._stock.freed
        self.release(key)
        if not before:
            self._stock.freed = freed
        if made:
            self._slots[key] = made
            for number, slot in enumerate(made):
                self._take(key, number, slot)
            self._done[key] = done
            self._balance(key)
        return True

    def _take(self, key: WorkloadKey, number: int, slot: Slot) -> None:
        slot.held = True
        self._stock.hold(Reserved(key, number), slot.place.node, slot.place.held, key)

    def _give_back(self, key: WorkloadKey, number: int, slot: Slot) -> None:
        slot.held = False
        self._stock.release(Reserved(key, number))

    def _balance(self, key: WorkloadKey) -> None:
        """Return as many unused places as there are finished pods."""
        left = dict(self._done.get(key, NONE))
        if not left and key not in self._partly:
            return
        every = list(enumerate(self._slots.get(key, ())))
        for number, slot in every:
            if slot.pod and not slot.held:
                self._take(key, number, slot)
        for number, slot in sorted(every, key=lambda one: one[1].held):
            # Returned places stay returned.
            if slot.pod:
                continue
            spare = left.get(slot.pod_set, 0) > 0
            left[slot.pod_set] = left.get(slot.pod_set, 0) - 1
            if spare and slot.held:
                self._give_back(key, number, slot)
            elif not spare and not slot.held:
                self._take(key, number, slot)
        if all(slot.held for _, slot in every):
            self._partly.discard(key)
        else:
            self._partly.add(key)

    def offered(self, uid: str) -> PodPlace | None:
        """The place offered to a pod, firm or not."""
        found = self._of_pod.get(uid)
        return found[1].place if found is not None else None

    def move(self, uid: str, place: PodPlace) -> None:
        """Replace the place of a pod that is not bound yet."""
        key, slot = self._of_pod[uid]
        number = self._slots[key].index(slot)
        self._give_back(key, number, slot)
        slot.place = place
        self._take(key, number, slot)

    def release(self, key: WorkloadKey) -> None:
        slots = self._slots.pop(key, [])
        self._done.pop(key, None)
        self._partly.discard(key)
        for number, slot in enumerate(slots):
            if slot.held:
                self._give_back(key, number, slot)
        for slot in slots:
            if slot.pod:
                del self._of_pod[slot.pod]
                if slot.firm:
                    self.changed(slot.pod)

    # -- pods -------------------------------------------------------------------------------------

    def covers(self, uid: str) -> bool:
        """True if the pod's GPUs are held by its workload's reservation."""
        found = self._of_pod.get(uid)
        return found is not None and found[1].firm

    def offer(
        self,
        key: WorkloadKey,
        pod_set: str,
        uid: str,
        nodes: Collection[str] | None,
        is_there: Callable[[str], bool],
    ) -> PodPlace | None:
        """A place for the pod: the one that it was offered before if that is on one of `nodes`
        (None: any), else an unused one, else one offered to a pod that no longer exists. None if
        all are taken."""
        known = self._of_pod.get(uid)
        if known is not None and known[0] == key:
            slot = known[1]
            if slot.firm or (
                slot.pod_set == pod_set and (nodes is None or slot.place.node in nodes)
            ):
                return slot.place
        mine = [one for one in self._slots.get(key, ()) if one.pod_set == pod_set]
        free = [one for one in mine if not one.pod and one.held]
        suits = [one for one in free if nodes is None or one.place.node in nodes]
        if not suits and known is not None and known[0] == key:
            return known[1].place
        if not free:
            free = [one for one in mine if one.pod and not one.firm and not is_there(one.pod)]
            suits = [one for one in free if nodes is None or one.place.node in nodes]
        chosen = next(iter(suits or free), None)
        if chosen is None:
            return None
        self._give(key, chosen, uid, firm=False)
        return chosen.place

    def claim(self, key: WorkloadKey, place: PodPlace, uid: str) -> bool:
        """Make a place firm for a pod that is bound or being bound there; False if the workload has
        no such place for it."""
        known = self._of_pod.get(uid)
        if known is not None and known[0] == key and known[1].place == place:
            chosen: Slot | None = known[1]
        else:
            like = [one for one in self._slots.get(key, ()) if one.place == place and not one.firm]
            chosen = min(like, key=lambda one: (bool(one.pod), not one.held), default=None)
        if chosen is None:
            self.leave(uid)
            return False
        self._give(key, chosen, uid, firm=True)
        return True

    def loosen(self, uid: str) -> None:
        """Revoke a firm place whose binding failed; the pod is still the first to be offered it."""
        found = self._of_pod.get(uid)
        if found is not None and found[1].firm:
            found[1].firm = False
            self.changed(uid)

    def leave(self, uid: str) -> None:
        """Free the place of a pod that is gone."""
        found = self._of_pod.pop(uid, None)
        if found is not None:
            key, slot = found
            firm, slot.pod, slot.firm = slot.firm, "", False
            if firm:
                self.changed(uid)
            self._balance(key)

    def _give(self, key: WorkloadKey, slot: Slot, uid: str, *, firm: bool) -> None:
        before = self._of_pod.get(uid)
        if before is not None and before[1] is not slot:
            before[1].pod, before[1].firm = "", False
        if slot.pod and slot.pod != uid:
            self._of_pod.pop(slot.pod, None)
        slot.pod, slot.firm = uid, firm
        self._of_pod[uid] = (key, slot)
        self._balance(key)
        if before is not None and before[0] != key:
            self._balance(before[0])
        if firm:
            self.changed(uid)


def _are_alike(some: Sequence[Slot], others: Sequence[Slot]) -> bool:
    """True if both have the same places, in any order."""
    if len(some) != len(others):
        return False
    if all(
        (one.pod_set, one.place) == (other.pod_set, other.place)
        for one, other in zip(some, others, strict=True)
    ):
        return True
    return sorted(map(_words, some)) == sorted(map(_words, others))


def _words(slot: Slot) -> tuple[str, str]:
    return slot.pod_set, slot.place.text()
