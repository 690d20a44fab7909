"""Free GPUs on the nodes: the placement model, kept up to date with reports and decisions, for the
scheduler and the rest of the service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from queuecontroller.gpushares.extender.ledger import PodLedger, Running
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import ADMITTED, FINISHED
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity, PodGpus
from queuecontroller.scheduler.placement.choose import Chosen
from queuecontroller.scheduler.placement.consolidation import Movable, cost_mib
from queuecontroller.scheduler.placement.fragmentation import Fragmentation, Gauge
from queuecontroller.scheduler.placement.mig import Span
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.scheduler.placement.stock import Share, Stock
from queuecontroller.scheduler.placement.stock_room import GivenPods, RoomRequest, StockRoom
from queuecontroller.state.nodes.moves import MoveLimits, owner_of
from queuecontroller.state.nodes.sessions import Node, Nodes, computes, is_away, rests
from queuecontroller.state.objects.asks import pod_of, topology_of
from queuecontroller.state.objects.catalogue import Catalogue
from queuecontroller.state.records import (
    Assignment,
    Consolidation,
    Desired,
    GpuShare,
    OnPreemption,
    PodKey,
    PodState,
    SharePolicy,
    WorkloadRecord,
)

NEVER_NS: Final = 1 << 62
AVOID_NS: Final = 30_000_000_000
"""Nanoseconds for which a node that refused a workload is avoided for it: longer than it takes a
report to show the reason."""


class LeavingWork(NamedTuple):
    """Key of work that a node still stops after its assignment was deleted; it equals no other."""

    node: str
    pod: PodKey
    uid: str


class NodesRoom(StockRoom):
    def __init__(
        self,
        catalogue: Catalogue,
        nodes: Nodes,
        find: Callable[[WorkloadKey], WorkloadRecord | None],
        move_cooldown_ns: int = 0,
    ) -> None:
        super().__init__(Stock(), self)
        self._catalogue = catalogue
        self._nodes = nodes
        self._find_record = find
        self._moves = MoveLimits(move_cooldown_ns)
        self._avoid: dict[WorkloadKey, dict[str, int]] = {}
        """Time until which a node is avoided for a workload, ns."""
        self._capacities: dict[str, NodeCapacity] = {}
        self._reporting: set[str] = set()
        """Nodes that have reported and were not lost since."""
        self._held: dict[PodKey, tuple[str, tuple[Share, ...]]] = {}
        self._leaving: dict[str, list[LeavingWork]] = {}
        """Keys under which the work that nodes still stop is held, by node."""
        self._resting: dict[WorkloadKey, int] = {}
        """Priorities of paused workloads that keep their GPU memory."""
        self.pods = PodLedger(self.stock)
        """Allocations of Kubernetes' pods, and reservations of the queue."""
        self._cordons: dict[str, Cordon] = {}
        self._stale: set[str] = set()
        """Nodes to process again although their report is unchanged."""
        self.now_ns = 0
        """Time of the last call of `follow`."""
        self._seen_version = -1
        """Version of the nodes' reports that were processed last."""
        self._expires_ns = 0
        """End of the earliest lease of a ready node, unless it reports before."""
        self._gauge = Gauge()
        self.listener: Callable[[], None] | None = None
        """Called whenever changes on the nodes have been applied; see `Book.listen_to_room`."""

    # -- following the nodes ----------------------------------------------------------------------

    def follow(self, now_ns: int) -> None:
        """Apply the nodes' changes since the last call."""
        self.forget_look()
        self.now_ns = now_ns
        if self._nodes.version != self._seen_version or now_ns >= self._expires_ns:
            self._seen_version = self._nodes.version
            self._follow_reports(now_ns)
        moved, self._nodes.moved = self._nodes.moved, {}
        for key in moved:
            self._follow_pod(key, self._nodes.assignments.get(key))
        for workload in dict.fromkeys(key.workload for key in moved):
            self._note_rest(workload)
        left, self._nodes.left = self._nodes.left, set()
        for name in left:
            self._follow_leaving(name)
        if self.listener is not None:
            self.listener()

    def _follow_reports(self, now_ns: int) -> None:
        ready = self._nodes.each_ready(now_ns)
        self._expires_ns = min((node.lease_until_ns for node in ready), default=NEVER_NS)
        reported = {node.name: node.capacity for node in ready}
        for name in self._capacities.keys() - reported.keys():
            self.stock.forget(name)
        for name, capacity in reported.items():
            if self._capacities.get(name) is not capacity or name in self._stale:
                self.pods.report(name, {one.uid: _running(one) for one in capacity.pods})
                offered = cordoned(without_pods(capacity), self.cordon_of(name))
                self.stock.report(name, offered)
        for name in self._reporting - reported.keys():
            node = self._nodes.nodes.get(name)
            if node is None or node.record.lost:  # A node that is away keeps its work.
                self.pods.forget_node(name)
                self._reporting.discard(name)
        self._stale.clear()
        self._reporting |= reported.keys()
        self._capacities = reported

    def cordon(self, name: str, cordon: Cordon) -> bool:
        """Set the parts of a node that get no new work, as the administrators mark them. True if
        changed."""
        if cordon == self.cordon_of(name):
            return False
        self._cordons[name] = cordon
        if cordon == NO_CORDON:
            del self._cordons[name]
        if name in self._capacities:
            self._stale.add(name)
            self._seen_version = -1
        return True

    def cordon_of(self, name: str) -> Cordon:
        return self._cordons.get(name, NO_CORDON)

    def offered(self, node: Node) -> NodeCapacity:
        """A node's report with its cordons applied: the capacity for new work."""
        return cordoned(node.capacity, self.cordon_of(node.name))

    def _follow_pod(self, key: PodKey, one: Assignment | None) -> None:
        there = one is not None and one.gpus and not is_away(one)
        now = (one.node, shares_of(one)) if one is not None and there else None
        before = self._held.get(key)
        if before == now:
            return
        if before is None and now is not None and self.take_over(*key, key, now):
            self._held[key] = now
            return
        freed = self.stock.freed
        was_kept = now is not None and self.kept(key.workload) is not None
        if was_kept:
            self.release(key.workload)
        if before is not None:
            self.stock.release(key)
            del self._held[key]
        if now is not None:
            self.stock.hold(key, *now, key.workload)
            self._held[key] = now
        if was_kept and before is None:
            self.stock.freed = freed  # It took over its own reservation: nothing became free.

    def _follow_leaving(self, name: str) -> None:
        """Hold the GPUs of work that a node still has to stop."""
        works = self._nodes.leaving.get(name, {})
        wanted = [LeavingWork(name, pod, uid) for pod, (uid, _) in works.items()]
        before = self._leaving.pop(name, [])
        for key in before:
            if key not in wanted:
                self.stock.release(key)
        for key in wanted:
            if key not in before:
                shares = [_plain_share(one) for one in works[key.pod][1]]
                self.stock.hold(key, name, shares)
        if wanted:
            self._leaving[name] = wanted
        else:
            self._nodes.leaving.pop(name, None)

    def _note_rest(self, key: WorkloadKey) -> None:
        pods = self._nodes.of_workload(key).values()
        if pods and all(one.state is PodState.PAUSED and not is_away(one) for one in pods):
            self._resting[key] = max(one.priority for one in pods)
        else:
            self._resting.pop(key, None)

    def avoid(self, key: WorkloadKey, node: str, now_ns: int) -> None:
        self._avoid.setdefault(key, {})[node] = now_ns + AVOID_NS

    def note_move(self, record: WorkloadRecord) -> None:
        """Record when a workload was last stopped so that another one fits, also when it is read
        from the database or the API server; 0: it never was."""
        if record.moved_ns:
            self._moves.note(record.key, owner_of(record), record.moved_ns)
        else:
            self._moves.forget(record.key)

    def _is_moving(self, key: WorkloadKey) -> bool:
        """True for a moved workload that has not got its quota back."""
        record = self._find_record(key)
        if record is None or record.workload.is_true(FINISHED):
            return False
        return record.workload.active and record.workload.is_moving

    def expire_avoidance(self, now_ns: int) -> bool:
        """End expired avoidance of nodes, and cool-downs of moves. True if any ended."""
        settled = self._moves.expire(now_ns, self._is_moving)
        over = [
            (key, node)
            for key, nodes in self._avoid.items()
            for node, until_ns in nodes.items()
            if until_ns <= now_ns
        ]
        for key, node in over:
            del self._avoid[key][node]
            if not self._avoid[key]:
                del self._avoid[key]
        if over or settled:
            self.stock.note_freed()
        return bool(over or settled)

    # -- the scheduler's port ----------------------------------------------------------------------

    def shape(self, workload: Workload) -> Hashable:
        record = self._find_record(workload.key)
        mine = workload.key if self._nodes.of_workload(workload.key) else None
        avoided = tuple(sorted(self._avoid.get(workload.key, ())))
        pods = tuple(
            (
                tuple(tuple(sorted(c.items())) for c in one.containers),
                *sorted(one.annotations.items()),
            )
            for one in workload.pod_sets
        )
        asks = tuple(sorted(record.asks.items())) if record is not None else ()
        return (pods, asks, record.node if record is not None else "", avoided, mine)

    def pauses(self, key: WorkloadKey) -> bool:
        record = self._find_record(key)
        if record is None:
            return False
        if record.on_preemption is not None:
            return record.on_preemption is OnPreemption.PAUSE
        admission = record.workload.admission
        queue = admission.cluster_queue if admission is not None else ""
        return self._catalogue.on_preemption(queue) is OnPreemption.PAUSE

    def yields(self, key: WorkloadKey, priority: int) -> bool:
        record = self._find_record(key)
        return record is not None and record.workload.priority < priority

    def movable(self, owner: Hashable) -> Movable | None:
        """A workload that runs with one pod; its GPU memory is what a move has to copy or lose."""
        if not isinstance(owner, str):
            return None
        key = WorkloadKey(owner)
        record = self._find_record(key)
        pods = self._nodes.of_workload(key)
        if record is None or record.workload.admission is None or len(pods) != 1:
            return None
        [assignment] = pods.values()
        given = record.workload.admission.pod_sets
        if assignment.state is not PodState.RUNNING or len(given) != 1 or assignment.ask.mig:
            return None
        flavors = [
            flavor
            for name in dict.fromkeys(given[0].flavors.values())
            if (flavor := self._catalogue.flavor(name)) is not None
        ]
        pod_set = next(one for one in record.workload.pod_sets if one.name == given[0].name)
        try:
            pod = pod_of(assignment.pod, assignment.ask, pod_set, flavors, record.node)
        except AskError:
            return None
        memory = sum(share.memory_bytes for share in assignment.gpus)
        admitted = record.workload.condition(ADMITTED)
        ran_ns = self.now_ns - admitted.changed_ns if admitted is not None else 0
        return Movable(owner, pod, cost_mib(memory, ran_ns), owner_of(record))

    def may_move(self, key: WorkloadKey) -> bool:
        """True if its owner, or else its ClusterQueue, permits to restart it elsewhere now. Work
        that is paused instead of stopped keeps its GPUs, and a process that waits on its node
        cannot leave."""
        record = self._find_record(key)
        if record is None or record.workload.admission is None or record.node or self.pauses(key):
            return False
        return self.permits_move(record, record.consolidation)

    def permits_move(self, record: WorkloadRecord, own: Consolidation | None) -> bool:
        """True if a workload with quota may be moved by its own permission, or else by that of its
        ClusterQueue, and rests from no earlier move."""
        if record.workload.admission is None:
            return False
        queue = record.workload.admission.cluster_queue
        permission = own or self._catalogue.consolidation(queue)
        return permission is Consolidation.RESTART and self._moves.permit(
            record.key, owner_of(record)
        )

    def resting(self, priority: int) -> Collection[WorkloadKey]:
        return [key for key, mine in self._resting.items() if mine < priority]

    def room_request(self, workload: Workload, given: Iterable[GivenPods]) -> RoomRequest:
        record = self._find_record(workload.key)
        if record is None or not record.asks:
            return RoomRequest()
        try:
            return self._request_of(record, list(given))
        except AskError as error:
            return RoomRequest(wrong=str(error))

    def _request_of(self, record: WorkloadRecord, given: list[GivenPods]) -> RoomRequest:
        before = self._nodes.of_workload(record.key)
        avoid = frozenset(self._avoid.get(record.key, ()))
        pod_sets = {one.name: one for one in record.workload.pod_sets}
        total = sum(one.count for one in given if one.name in record.asks)
        pods = []
        for one in given:
            ask = record.asks.get(one.name)
            if ask is None:
                continue
            names = dict.fromkeys(one.flavors.values())
            flavors = [f for f in map(self._catalogue.flavor, names) if f is not None]
            for index in range(one.count):
                name = "" if total == 1 else f"{one.name}-{index}"
                pod = pod_of(name, ask, pod_sets[one.name], flavors, record.node, avoid)
                if before:
                    held = before.get(name)
                    if held is None or held.desired is Desired.STOP:
                        return RoomRequest(wrong="its previous pods have not stopped yet")
                    pod = pod.where_it_was(held.node, shares_of(held, resting=False))
                pods.append(pod)
        return RoomRequest(tuple(pods), topology_of(pod_sets[one.name] for one in given))

    # -- for the rest of the service --------------------------------------------------------------

    def place(self, record: WorkloadRecord, now_ns: int) -> list[Chosen] | str:
        """Place the pods of a workload with quota; returns the places, or why the pods wait."""
        self.follow(now_ns)
        admission = record.workload.admission
        assert admission is not None
        kept = self.kept(record.key)
        if kept is not None and all(one.node in self.stock.nodes for one in kept):
            return kept
        given = [GivenPods(one.name, one.count, one.flavors) for one in admission.pod_sets]
        verdict = self.claim(record.workload, given)
        for key in sorted(verdict.frees):
            self.stop_paused(key, record.key, now_ns)
        return verdict.refusal or self.kept(record.key) or []

    def given_on(self, name: str) -> Iterator[Sequence[GpuShare | Share]]:
        """Shares on a node by holder: assignments of the queue, pods, and reserved places."""
        yield from (one.gpus for one in self._nodes.of_node(name))
        yield from (one.shares for one in self.pods.holders(name))

    def fragmentation(self) -> dict[str, Fragmentation]:
        """Fragmentation by size of request as of the last decision; see
        `placement.fragmentation`."""
        return self._gauge.measure(self.stock)

    def stop_paused(self, key: WorkloadKey, preemptor: WorkloadKey, now_ns: int) -> None:
        """Stop paused work whose GPU memory a workload of higher priority needs."""
        reason = f"its GPU memory is needed by {preemptor}, which has a higher priority"
        for one in list(self._nodes.of_workload(key).values()):
            if rests(one):
                self._nodes.tell(one, Desired.STOP, reason, now_ns)


class Cordon(NamedTuple):
    """The parts of a node that get no new work."""

    whole: bool = False
    """True if the whole node is cordoned."""
    gpus: frozenset[str] = frozenset()
    """UUIDs of cordoned GPUs."""


NO_CORDON: Final = Cordon()
CORDONED: Final = "cordoned"
"""Health of a cordoned GPU."""


def cordoned(capacity: NodeCapacity, cordon: Cordon) -> NodeCapacity:
    if cordon == NO_CORDON:
        return capacity
    out = cordon.gpus
    gpus = tuple(
        replace(one, health=CORDONED) if out & {one.uuid, one.parent_uuid} else one
        for one in capacity.gpus
    )
    return replace(capacity, gpus=gpus, unschedulable=capacity.unschedulable or cordon.whole)


def _running(pod: PodGpus) -> Running:
    shares = tuple(Share(s.uuid, s.memory_bytes, s.share_ppm, s.alone) for s in pod.shares)
    return Running(pod.uid, pod.namespace, pod.name, shares, pod.checkpoint)


def without_pods(capacity: NodeCapacity) -> NodeCapacity:
    """The capacity without its pods, whose shares the stock holds; they no longer count as outside
    use."""
    of: dict[str, list[int]] = {}
    for pod in capacity.pods:
        for share in pod.shares:
            totals = of.setdefault(share.uuid, [0, 0, 0])
            totals[0] += share.memory_bytes
            totals[1] += share.share_ppm
            totals[2] += 1
    if not of:
        return capacity

    def own(gpu: GpuCapacity) -> GpuCapacity:
        memory, time, slots = of.get(gpu.uuid, (0, 0, 0))
        return replace(
            gpu,
            outside_memory_bytes=max(0, gpu.outside_memory_bytes - memory),
            outside_share_ppm=max(0, gpu.outside_share_ppm - time),
            outside_slots=max(0, gpu.outside_slots - slots),
        )

    return replace(capacity, gpus=tuple(map(own, capacity.gpus)), pods=())


def shares_of(one: Assignment, resting: bool | None = None) -> tuple[Share, ...]:
    """Shares of an assignment. A paused pod keeps its memory and slot, but no time share and no
    exclusive use."""
    paused = not computes(one) if resting is None else resting
    promised = one.ask.policy is not SharePolicy.ELASTIC and not paused
    alone = one.ask.policy is SharePolicy.EXCLUSIVE and not paused
    return tuple(
        Share(
            share.uuid,
            share.memory_bytes,
            share.share_ppm if promised else 0,
            alone,
            share.mig,
            Span(share.mig_start, share.mig_size) if share.mig else None,
        )
        for share in one.gpus
    )


def _plain_share(one: GpuShare) -> Share:
    """The share of work whose request is not known any more."""
    span = Span(one.mig_start, one.mig_size) if one.mig else None
    return Share(one.uuid, one.memory_bytes, one.share_ppm, mig=one.mig, span=span)


def gpu_shares(one: Chosen, share_ppm: int) -> tuple[GpuShare, ...]:
    """Shares as sent to nodes, which include an elastic share's weight."""
    return tuple(
        GpuShare(
            share.uuid,
            share.memory_bytes,
            0 if share.mig else share_ppm,
            share.mig,
            *(share.span or (0, 0)),
        )
        for share in one.shares
    )
