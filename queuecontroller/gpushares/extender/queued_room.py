"""GPU shares for workloads of the queue, from the stock that plain pods are placed from: the number
of pods per node, their places, and the reservation for them once they hold quota.

A workload's pod is evaluated per container exactly as the extender evaluates it once it exists
(`verdicts`), so the pod gets what was reserved for it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import Final

from queuecontroller.gpushares.extender import ranking
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import ContainerAsk, PodAsk, PodPlace, read_place
from queuecontroller.gpushares.extender.verdicts import FITS, Verdicts, move, place_on, scratch
from queuecontroller.scheduler.model.checkpointed import kept_for
from queuecontroller.scheduler.model.objects import (
    PlacedPods,
    PodSet,
    PodSetAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock, parts_on
from queuecontroller.scheduler.placement.topology.devices import (
    SHARES,
    Picks,
    Places,
    Short,
    WithPlaces,
    each_of,
)
from queuecontroller.scheduler.placement.topology.ground import Amounts
from sluicecommon.hami.names import PRIORITY

Asks = Mapping[str, PodAsk]
"""GPU-share requests per pod set, for pods placed through the extender."""
MAX_PODS: Final = 4096
"""Pods per pod set; more would block the scheduling loop for over a second."""
MAX_NOTED: Final = 512 << 10
"""Characters of a Workload's places; etcd takes 1.5 MiB per object, which includes the templates of
the pods."""
MAX_COUNTS: Final = 100_000
NO_NODES: Final = "no node has reported its GPUs yet"
NOT_REPORTED: Final = "that node does not report"
NOT_RECEIVED: Final = "which pods hold GPUs already"


class SharesOfQueued(WithPlaces):
    """Implementation of the port `placement.topology.devices.Devices`."""

    def __init__(
        self,
        stock: Stock,
        ledger: PodLedger,
        defaults: Defaults,
        asks: Callable[[WorkloadKey], Asks],
        reclaims: bool = True,
    ) -> None:
        """`asks` returns the requests of a workload's pods as they will be created. If `reclaims`,
        finished pods return their share of the reservation before the others finish."""
        self._reclaims = reclaims
        self._stock = stock
        self._ledger = ledger
        self._defaults = defaults
        self._asks = asks
        names = defaults.names
        self._hidden = {names.count, *names.parts, PRIORITY}
        self._verdicts = Verdicts()
        self._counts: OrderedDict[Hashable, int] = OrderedDict()
        self.missing_input = NOT_RECEIVED
        self.wrong: dict[WorkloadKey, str] = {}
        """Errors in the places of admissions, by workload. Nothing is reserved for such a workload.
        """

    @property
    def changes(self) -> int:
        return self._stock.changes

    @property
    def freed(self) -> int:
        return self._stock.freed

    def inputs_received(self) -> None:
        """Note that all pods that hold GPUs are known by now."""
        if self.missing_input:
            self.missing_input = ""
            self._stock.note_freed()

    def each(self, workload: Workload, pod_set: PodSet) -> Amounts:
        found = each_of(pod_set)
        if pod_set.name not in self._asks(workload.key):
            return found
        return {name: amount for name, amount in found.items() if name not in self._hidden}

    def apart(self, workload: Workload, pod_set: PodSet) -> Amounts:
        return self.each(workload, pod_set)

    def trial(self, workload: Workload, gone: Collection[WorkloadKey]) -> SharesTrial:
        return SharesTrial(self, self._asks(workload.key), gone, _returns_to(workload))

    # -- reservations -----------------------------------------------------------------------------

    def hold(self, key: WorkloadKey, places: Places, picks: Picks = None) -> None:
        read = {name: _read(key, each) for name, each in places.items()}
        self._ledger.reserve(key, read)

    def release(self, key: WorkloadKey) -> None:
        self.wrong.pop(key, None)
        self._ledger.reserved.release(key)

    def restored(self, workload: Workload) -> None:
        key = workload.key
        self.wrong.pop(key, None)
        if kept_for(key) is not None:
            return  # It has no GPUs, and is to return to these.
        asks = self._asks(key)
        kept: dict[str, list[PodPlace]] = {}
        done: dict[str, int] = {}
        for one in workload.admission.pod_sets if workload.admission is not None else ():
            why = _why_not_its_own(one.places, one.count, asks.get(one.name))
            if why:
                self.wrong[key] = f"pod set {one.name}: {why}"
            else:
                kept[one.name] = _read(key, one.places)
                if one.topology is None:  # Finished pods are not known per topology domain.
                    done[one.name] = self._done(workload, one)
        self._ledger.reserve(key, kept, {name: count for name, count in done.items() if count})

    def _done(self, workload: Workload, given: PodSetAssignment) -> int:
        """Number of finished pods of a pod set, as for quota."""
        gone = workload.reclaimable_pods.get(given.name, 0) if self._reclaims else 0
        wanted = next((one.count for one in workload.pod_sets if one.name == given.name), 0)
        return max(0, given.count - max(0, wanted - gone)) if gone else 0

    def nodes_of(self, places: Collection[PlacedPods]) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for one in places:
            place = read_place(one.place)
            if place is not None:
                found[place.node] += one.count
        return found


class SharesTrial:
    def __init__(
        self,
        room: SharesOfQueued,
        asks: Asks,
        gone: Collection[Hashable],
        returns_to: Mapping[str, PodPlace] | None = None,
    ) -> None:
        """`returns_to`: the only places for a pod of these pod sets, which are checkpointed
        there."""
        self._room = room
        self._returns_to = returns_to or {}
        self._asks = asks
        self._stock = room._stock
        self._placed: dict[str, list[PodPlace]] = {}
        if asks:
            self._bring_back = self._stock.without(gone)
            self._holds = self._stock.trial()

    def undo(self) -> None:
        if self._asks:
            self._holds.undo()
            self._bring_back()

    def wants(self, pod_set: str) -> bool:
        return pod_set in self._asks

    def named(self, pod_set: str) -> str:
        return SHARES

    def count(self, pod_set: str, node: str, most: int, after: str = "") -> int:
        room = self._stock.nodes.get(node)
        if room is None or self._asks[pod_set].wrong:
            return 0
        if (own := self._returns_to.get(pod_set)) is not None:
            return min(most, int(node == own.node and not _why_no_return(room, own)))
        ask, first = self._asks[pod_set], self._asks[after].containers if after else ()
        key = (ask.containers, first, room.version, most)
        counts = self._room._counts
        if key not in counts:
            counts[key] = _count(room, ask.containers, first, most)
            while len(counts) > MAX_COUNTS:
                counts.popitem(last=False)
        return counts[key]

    def shut(self, node: str, place: PodPlace) -> None:
        """Place nothing more on the GPUs of this place."""
        uuids = {share.uuid for share in place.held}
        self._holds.hold(node, [Share(uuid, 0, 0, alone=True) for uuid in sorted(uuids)])

    def place(
        self, pod_set: str, limits: Mapping[str, int], count: int, separate: bool = False
    ) -> Mapping[str, int] | Short:
        """See `Trial`. If `separate`, no GPU is used twice."""
        ask = self._asks[pod_set]
        nodes = self._stock.nodes
        if ask.wrong:
            return Short(f"pod set {pod_set}: {ask.wrong}", for_ever=True)
        if count > MAX_PODS:
            text = f"{count} pods request GPUs, at most {MAX_PODS} can be placed: split the job"
            return Short(f"pod set {pod_set}: {text}", for_ever=True)
        if not nodes:
            return Short(NO_NODES)
        if (own := self._returns_to.get(pod_set)) is not None:
            return self._return(pod_set, own, limits, count)
        judge = self._room._verdicts.of_shape(ask)
        left = {name: limit for name, limit in limits.items() if limit > 0 and name in nodes}
        line = [
            (self._worth(nodes[name], ask), name)
            for name in left
            if judge.look(nodes[name])[0] == FITS
        ]
        heapq.heapify(line)
        found: Counter[str] = Counter()
        made: list[PodPlace] = []
        while line and len(made) < count:
            _, name = heapq.heappop(line)
            place = place_on(nodes[name], ask.containers)
            if isinstance(place, str):
                continue
            self._holds.hold(name, place.held)
            if separate:
                self.shut(name, place)
            made.append(place)
            found[name] += 1
            if found[name] < left[name] and judge.look(nodes[name])[0] == FITS:
                heapq.heappush(line, (self._worth(nodes[name], ask), name))
        if len(made) < count:
            return self._short(pod_set, limits, len(made), count)
        self._placed.setdefault(pod_set, []).extend(made)
        if sum(len(one.place) for each in self.places().values() for one in each) > MAX_NOTED:
            text = f"its reservation takes more than {MAX_NOTED >> 10} KiB to record"
            return Short(f"pod set {pod_set}: {text}: split the job", for_ever=True)
        return found

    def _return(
        self, pod_set: str, own: PodPlace, limits: Mapping[str, int], count: int
    ) -> Mapping[str, int] | Short:
        """Place the only pod of a pod set where its checkpoint is."""
        room = self._stock.nodes.get(own.node)
        if room is None or not limits.get(own.node) or count != 1:
            why = "that node takes no pods at present" if room is not None else NOT_REPORTED
        else:
            why = _why_no_return(room, own)
        if why:
            return Short(f"pod set {pod_set}: it is checkpointed on node {own.node}: {why}")
        self._holds.hold(own.node, own.held)
        self._placed.setdefault(pod_set, []).append(own)
        return {own.node: 1}

    def why_not(self, pod_set: str, nodes: Collection[str]) -> str:
        judge = self._room._verdicts.of_shape(self._asks[pod_set])
        for name in nodes:
            room = self._stock.nodes.get(name)
            why = judge.look(room)[0] if room is not None else "has reported no GPUs"
            if why != FITS:
                return f"node {name} {why}"
        return ""

    def placed(self, pod_set: str) -> list[PodPlace]:
        return list(self._placed.get(pod_set, ()))

    def places(self) -> Places:
        made = {}
        for name, each in self._placed.items():
            counts = Counter(one.text() for one in each)
            made[name] = tuple(PlacedPods(text, count) for text, count in counts.items())
        return made

    def picks(self) -> Picks:
        return None

    def _worth(self, room: NodeRoom, ask: PodAsk) -> int:
        """Sort key of a node; less is better."""
        policy = ask.node_policy or self._room._defaults.node_policy
        return -ranking.value(room, ask, policy)

    def _short(self, pod_set: str, limits: Mapping[str, int], made: int, count: int) -> Short:
        judge = self._room._verdicts.of_shape(self._asks[pod_set])
        there = [self._stock.nodes[name] for name in limits if name in self._stock.nodes]
        verdicts = [judge.look(room) for room in there]
        lack = [(room.name, why) for room, (why, _) in zip(there, verdicts, strict=True) if why]
        text = f"pod set {pod_set}: GPU shares for {made} of {count} pods"
        if lack:
            name, why = max(lack, key=lambda one: (self._stock.nodes[one[0]].free_bytes, one[0]))
            text += f"; {len(lack)} of {len(limits)} nodes have none: {name} {why}"
        elif not there:
            text += f"; of {len(limits)} nodes that it may go to none reports GPUs"
        never = bool(there) and not made and all(for_ever for _, for_ever in verdicts)
        return Short(text, never)


def _returns_to(workload: Workload) -> dict[str, PodPlace]:
    """The places of pods that are checkpointed."""
    if workload.checkpointed is None:
        return {}
    read = {one.name: _read(workload.key, one.places) for one in workload.checkpointed.pod_sets}
    return {name: replace(each[0], workload="") for name, each in read.items() if each}


def _why_no_return(room: NodeRoom, own: PodPlace) -> str:
    """Shortage of a checkpointed pod on its GPUs; empty if it has room there. Its slots are its own
    already."""
    for share in own.held:
        gpu = room.gpus.get(share.uuid)
        if gpu is None or not gpu.gives_shares:
            return f"its GPU {share.uuid} is not healthy, or is gone"
        if gpu.alone or (share.alone and gpu.holders > 0):
            return f"others use its GPU {share.uuid}"
        if gpu.memory_bytes < share.memory_bytes:
            need, free = share.memory_bytes >> 20, max(0, gpu.memory_bytes) >> 20
            return f"it needs {need} MiB of its GPU {share.uuid}, {free} MiB are free"
        if gpu.share_ppm < share.share_ppm:
            need, free = share.share_ppm // 10_000, max(0, gpu.share_ppm) // 10_000
            return f"it needs {need} % of the time of its GPU {share.uuid}, {free} % are free"
    return ""


def _count(
    room: NodeRoom,
    containers: tuple[ContainerAsk, ...],
    first: tuple[ContainerAsk, ...],
    most: int,
) -> int:
    trial = scratch(room)
    if first:
        place = place_on(trial, first)
        if isinstance(place, str):
            return 0
        move(trial, place.held, 1)
    if len(containers) == 1 and containers[0].request.count == 1:
        return min(most, _of_one(trial, containers[0]))
    for number in range(most):
        place = place_on(trial, containers)
        if isinstance(place, str):
            return number
        move(trial, place.held, 1)
    return most


def _of_one(room: NodeRoom, one: ContainerAsk) -> int:
    """Number of pods that fit on a node, for pods that request part of a single GPU."""
    ask, found = one.request, 0
    for gpu in room.gpus.values():
        if not gpu.gives_shares or ask.wants(gpu.gpu) is not None:
            continue
        if ask.idle_only and gpu.holders:
            continue
        parts = parts_on(
            gpu, ask.memory_on(gpu.gpu), ask.share_ppm if ask.hard else 0, ask.exclusive
        )
        found += min(parts, 1) if ask.idle_only else parts
    return found


def _read(key: WorkloadKey, places: Collection[PlacedPods]) -> list[PodPlace]:
    made: list[PodPlace] = []
    for one in places:
        place = read_place(one.place)
        if place is not None:
            made += [replace(place, workload=key)] * one.count
    return made


def _why_not_its_own(places: Collection[PlacedPods], count: int, ask: PodAsk | None) -> str:
    """Reason why a pod set cannot have these places; empty if it can."""
    if not places:
        return ""
    if ask is None:
        return "requests no GPU shares, but has reserved places"
    if sum(one.count for one in places) > min(count, MAX_PODS):
        return f"has {count} pods, but more reserved places"
    if sum(len(one.place) for one in places) > MAX_NOTED:
        return f"has places of more than {MAX_NOTED >> 10} KiB"
    for one in places:
        place = read_place(one.place)
        if place is None:
            return "has a place that cannot be read"
        if why := mismatch(place, ask):
            return why
    return ""


def mismatch(place: PodPlace, ask: PodAsk) -> str:
    """Reason why a place does not match a pod's request; empty if it does."""
    if ask.wrong:
        return ask.wrong
    wanted = {one.name: one for one in ask.containers}
    if place.containers.keys() != wanted.keys():
        given = ", ".join(place.containers) or "none"
        return f"GPUs are reserved for the containers {given}, not {', '.join(wanted) or 'none'}"
    for name, shares in place.containers.items():
        request = wanted[name].request
        if len(shares) != request.count or len({one.uuid for one in shares}) != len(shares):
            return f"container {name} requests {request.count} GPUs, {len(shares)} are reserved"
        for one in shares:
            memory = request.memory_bytes
            if memory is not None and one.memory_bytes != memory:
                reserved_mib, wanted_mib = one.memory_bytes >> 20, memory >> 20
                return (
                    f"container {name} requests {wanted_mib} MiB, {reserved_mib} MiB are reserved"
                )
            if one.share_ppm != (request.share_ppm if request.hard else 0):
                return f"container {name} requests another share of the time than is reserved"
            if one.alone != request.exclusive or one.mig:
                return f"container {name} and its reservation differ in exclusive use"
    if place.beyond and not place.before:
        return "more is reserved than its containers request"
    if set(place.before) != {one.name for one in ask.containers if one.before}:
        return "the reservation is for other init containers"
    return ""
