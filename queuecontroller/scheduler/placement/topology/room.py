"""The scheduler's port for room, over nodes, their topologies, and parts of their devices
(`scheduler/preemption/room.py`).

A workload without a topology and without parts of devices always has room: quota alone decides
about it. What a workload holds counts as free for itself.

The file is long because it implements one port: what is held, asked and reserved has to agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    TopologyAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.settings import TopologySettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.topology.choose import (
    Ask,
    Given,
    Layer,
    Unfit,
    choose,
    pods_in,
)
from queuecontroller.scheduler.placement.topology.devices import (
    Devices,
    NoDevices,
    Picks,
    Places,
    Short,
    Trial,
)
from queuecontroller.scheduler.placement.topology.ground import (
    HOSTNAME,
    Ground,
    Part,
    Values,
    place_of,
)
from queuecontroller.scheduler.placement.topology.leaves import Leaves, leaves_of
from queuecontroller.scheduler.placement.topology.moves import Moving, Used, moves_for
from queuecontroller.scheduler.placement.topology.spread import Services, assignments, leave_out
from queuecontroller.scheduler.placement.topology.wishes import (
    GivenPods,
    Placing,
    assignment_of,
    placings,
    topology_flavor,
    whole_values,
)
from queuecontroller.scheduler.preemption.candidates import Candidates, Turn
from queuecontroller.scheduler.preemption.room import (
    FillBack,
    Opening,
    RoomMove,
    SearchBudget,
    Verdict,
)

_NO_TOPOLOGY = (HOSTNAME,)
"""Levels of a pod set that is bound to nodes only by its devices."""
_LOOK_STEPS = 200
"""Steps of a search's budget for one evaluation of all nodes."""


@dataclass(frozen=True, slots=True)
class Found:
    """Domains and devices found for the pods of a workload."""

    parts: tuple[Part, ...] = ()
    topology: Mapping[str, TopologyAssignment] | None = None
    """Topology assignments by pod set."""
    places: Places = field(default_factory=dict)
    picks: Picks = None


class TopologyRoom:
    def __init__(
        self,
        ground: Ground,
        flavors: Callable[[], Mapping[str, ResourceFlavor]],
        topologies: Callable[[], Mapping[str, tuple[str, ...]]],
        settings: TopologySettings | None = None,
        devices: Devices | None = None,
        labels_of: Callable[[WorkloadKey], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`topologies`: the levels of each, the widest first. `labels_of`: labels of a workload,
        by which it is spread with others."""
        self.ground = ground
        self.devices: Devices = devices if devices is not None else NoDevices()
        self._flavors = flavors
        self._topologies = topologies
        self._services = Services(labels_of)
        self._settings = settings if settings is not None else TopologySettings()
        self.moving: Moving | None = None
        """Running pods that may be moved to other GPUs; None: none may be."""

    @property
    def generation(self) -> int:
        return self.ground.changes + self.devices.changes

    @property
    def freed(self) -> int:
        return self.ground.freed + self.devices.freed

    def shape(self, workload: Workload) -> Hashable:
        return tuple(
            (workload.namespace, one.spreading, self._services.selector(workload, one.spreading))
            for one in workload.pod_sets
            if one.spreading is not None
        ), tuple(
            (
                tuple(sorted(one.pod_requests.items())),
                one.slice_topology,
                one.slice_size,
                one.slice_layers,
                tuple(tuple(sorted(each.items())) for each in one.containers),
                tuple(sorted(one.annotations.items())),
                one.device_requests,
            )
            for one in workload.pod_sets
        )

    # -- port: called by the scheduler ------------------------------------------------------------

    def look(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        found = self._find(info.workload, _given(assignment), gone)
        if isinstance(found, Unfit):
            return _refused(found)
        places = {part.place for part in found.parts}
        holders = {key for place in places for key in self.ground.holders(place)}
        more = self.devices.in_the_way(found.picks, gone)
        return Verdict(in_the_way=frozenset(holders.intersection(gone) | more))

    def keep(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        found = self._find(info.workload, _given(assignment), gone)
        if isinstance(found, Unfit):
            return _refused(found)
        self.ground.hold(info.key, found.parts)
        self.devices.hold(info.key, found.places, found.picks)
        self._services.hold(info.workload, found.topology or {})
        if any(one.spreading is not None for one in info.workload.pod_sets):
            self.ground.freed += 1  # the shares of all other domains are smaller now
        return Verdict(topology=found.topology or {}, places=found.places)

    def release(self, key: WorkloadKey) -> None:
        self.ground.release(key)
        self.devices.release(key)
        self._services.release(key)

    def moved(self, key: WorkloadKey) -> None:
        """Ignored: `keep`, `restored` and `release` report what a workload holds."""

    def restored(self, workload: Workload) -> None:
        if workload.admission is not None:
            self.ground.hold(workload.key, self.parts_of(workload, workload.admission))
            self.devices.restored(workload)
            self._services.hold(workload, assignments(workload.admission))

    def moves(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        may_move: Callable[[WorkloadKey], bool] | None = None,
    ) -> tuple[RoomMove, ...]:
        if self.moving is None:
            return ()
        workload, given = info.workload, _given(assignment)
        nodes = self._nodes_for(workload, given)
        return moves_for(
            self.moving, self.devices, self._places_in, workload, given, nodes, may_move
        )

    def _places_in(
        self,
        trial: Trial,
        workload: Workload,
        given: list[GivenPods],
        without: Collection[WorkloadKey],
        used: Used,
    ) -> Places | None:
        found = self._find_in(trial, workload, given, without, used)
        return found.places if isinstance(found, Found) else None

    def _nodes_for(self, workload: Workload, given: list[GivenPods]) -> set[str]:
        """Nodes that fit a pod with parts of devices, without their devices and other workloads."""
        trial = self.devices.trial(workload, ())
        try:
            found: set[str] = set()
            for placing in self._placings(workload, given, trial.wants):
                name = placing.flavor.topology_name or ""
                levels = self._topologies().get(name) if name else _NO_TOPOLOGY
                if levels and any(trial.wants(one.name) for one in placing.pod_sets):
                    leaves = leaves_of(self.ground, name, levels, placing, (), {})
                    for nodes in leaves.nodes.values():
                        found.update(node for node, pods in nodes.items() if pods)
            return found
        finally:
            trial.undo()

    def openings(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        candidates: Candidates,
        budget: SearchBudget,
    ) -> Iterator[Opening]:
        """The only opening: the shortest beginning of the order of preemption that makes room."""
        order = self._in_order(candidates)
        given = _given(assignment)

        def fits(number: int) -> bool:
            budget.take(_LOOK_STEPS)
            gone = {*candidates.gone, *(one.key for _, one in order[:number])}
            return not isinstance(self._find(info.workload, given, gone), Unfit)

        budget.pause()
        if not order or not fits(len(order)):
            return
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle + 1
        yield Opening(order[high - 1][0], tuple(order[:high]))

    def _in_order(self, candidates: Candidates) -> list[tuple[Turn, WorkloadInfo]]:
        """Preemption candidates that hold something here, with their turns."""
        found: list[tuple[Turn, WorkloadInfo]] = []
        for key in {*self.ground.everybody(), *self.devices.holders()}:
            ranked = candidates.ranked_of(key)
            turn = candidates.turn(ranked) if ranked is not None else None
            if ranked is not None and turn is not None:
                found.append((turn, ranked[1]))
        found.sort(key=itemgetter(0))
        if found:
            candidates.look_until(
                found[-1][0], lambda key: bool(self.ground.held(key)) or self.devices.holds(key)
            )
        return [(turn, one) for turn, one in found if candidates.still_goes(one, turn)]

    def fill_back(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        gone: Collection[WorkloadKey],
        who: Collection[WorkloadKey],
    ) -> FillBack:
        return _Trial(self, info.workload, _given(assignment), set(gone), set(who))

    # -- one workload -----------------------------------------------------------------------------

    def _find(
        self, workload: Workload, given: list[GivenPods], gone: Collection[WorkloadKey]
    ) -> Found | Unfit:
        without = {workload.key, *gone}
        trial = self.devices.trial(workload, without)
        try:
            return self._find_in(trial, workload, given, without)
        finally:
            trial.undo()

    def _find_in(
        self,
        trial: Trial,
        workload: Workload,
        given: list[GivenPods],
        without: Collection[WorkloadKey],
        used: Used | None = None,
    ) -> Found | Unfit:
        """`used`: what was placed before it takes; its own usage is added."""
        mine: Used = Counter() if used is None else used
        parts: list[Part] = []
        made: dict[str, TopologyAssignment] = {}
        for placing in self._placings(workload, given, trial.wants):
            if missing := self.ground.missing_input or self._missing_input(trial, placing):
                return Unfit(f"not received yet: {missing}")
            name = placing.flavor.topology_name or ""
            levels = self._topologies().get(name) if name else _NO_TOPOLOGY
            if not levels:
                return Unfit(f'topology "{name}" does not exist', misconfigured=True)
            leaves = leaves_of(
                self.ground, name, levels, placing, without, mine, self._settings.each_node
            )
            if name:
                found = self._spread(name, levels, placing, leaves, trial, workload, without)
            else:
                found = self._by_devices(placing, leaves, trial)
            if isinstance(found, Unfit):
                return found
            for part in _parts(name, levels, placing, found):
                if not part.each:
                    continue
                parts.append(part)
                for resource, amount in part.each.items():
                    mine[part.place, resource] += amount * part.count
            if leaves.limits:
                leaves.use(placing, found, mine)
            if name:
                made[placing.ask.name] = assignment_of(levels, found.workers)
            if found.leader is not None:
                made[placing.ask.leader_name] = assignment_of(levels, [(found.leader, 1)])
        return Found(tuple(parts), made, trial.places(), trial.picks())

    def _placings(
        self,
        workload: Workload,
        given: list[GivenPods],
        wants: Callable[[str], bool] = lambda _: False,
    ) -> Iterator[Placing]:
        def each(pod_set: PodSet) -> Mapping[str, int]:
            return self.devices.each(workload, pod_set)

        def apart(pod_set: PodSet) -> Mapping[str, int]:
            return self.devices.apart(workload, pod_set)

        return placings(workload, given, self._flavors(), self._settings, each, apart, wants)

    def _missing_input(self, trial: Trial, placing: Placing) -> str:
        asks = any(trial.wants(one.name) for one in placing.pod_sets)
        return self.devices.missing_input if asks else ""

    def _spread(
        self,
        name: str,
        levels: tuple[str, ...],
        placing: Placing,
        leaves: Leaves,
        trial: Trial,
        workload: Workload,
        without: Collection[WorkloadKey],
    ) -> Given | Unfit:
        """Place a pod set by its topology, in the domains that its spreading rules prefer."""
        (pod_set, *_) = placing.pod_sets
        rules = pod_set.spreading if self._settings.spreading else None
        if rules is None:
            return self._by_topology(name, levels, placing, leaves, trial)
        counts, total = self._services.counts(workload, pod_set, levels, without, self.ground.hosts)
        found: Given | Unfit = Given(())
        for some in leave_out(leaves, rules, levels, counts, total):
            found = self._by_topology(name, levels, placing, some, trial)
            if isinstance(found, Given) or not found.by_topology:
                break
        return found

    def _by_topology(
        self,
        name: str,
        levels: tuple[str, ...],
        placing: Placing,
        leaves: Leaves,
        trial: Trial,
    ) -> Given | Unfit:
        ask = self._counted(placing.ask, leaves, trial)
        found = choose(name, levels, leaves.free, ask, leaves.limits)
        if isinstance(found, Unfit):
            return self._explained(found, leaves, ask, trial)
        wanted = [(ask.leader_name, found.leader, 1)] if found.leader is not None else []
        wanted += [(ask.name, values, count) for values, count in found.workers]
        for pod_set, values, count in wanted:
            if trial.wants(pod_set):
                short = trial.place(pod_set, leaves.nodes[values], count)
                if isinstance(short, Short):
                    return Unfit(short.reason, short.for_ever, by_topology=False)
        return found

    def _counted(self, ask: Ask, leaves: Leaves, trial: Trial) -> Ask:
        """The request with devices as a further sum: the number of pods with devices in each
        domain."""
        workers, leads = (
            trial.wants(ask.name),
            ask.leader is not None and trial.wants(ask.leader_name),
        )
        devices = trial.named(ask.name)
        leader = f"{trial.named(ask.leader_name)} of the leader" if leads else ""
        beside = 0
        for values, free in leaves.free.items():
            nodes = leaves.nodes[values]
            if workers:
                counts = {one: trial.count(ask.name, one, ask.count) for one in nodes}
                free[devices] = sum(min(counts[one], nodes[one]) for one in nodes)
            if leads:
                able = [one for one in nodes if trial.count(ask.leader_name, one, 1)]
                free[leader] = len(able)
                if able and workers and not beside:
                    after = trial.count(ask.name, able[0], ask.count, ask.leader_name)
                    beside = counts[able[0]] - after
        if workers:
            ask = replace(ask, each={**ask.each, devices: 1})
        if leads and ask.leader is not None:
            ask = replace(ask, leader={**ask.leader, leader: 1, devices: beside})
        return ask

    def _by_devices(self, placing: Placing, leaves: Leaves, trial: Trial) -> Given | Unfit:
        """Place a pod set without a topology, on the nodes that have its devices."""
        limits: dict[str, int] = {}
        values_of: dict[str, Values] = {}
        for values, nodes in leaves.nodes.items():
            room = pods_in(leaves.free[values], placing.ask.each)
            for node, limit in nodes.items():
                limits[node], values_of[node] = min(limit, room), values
        found = trial.place(placing.ask.name, limits, placing.ask.count)
        if not isinstance(found, Short):
            counts: Counter[Values] = Counter()
            for node, count in found.items():
                counts[values_of[node]] += count
            return Given(tuple(sorted(counts.items())))
        left_out = leaves.left_out(placing.ask.each)
        total = len(self.ground.nodes)
        reason = (
            f"{found.reason}; of {total} nodes: {', '.join(left_out)}" if left_out else found.reason
        )
        return Unfit(reason, found.for_ever and not left_out, by_topology=False)

    def _explained(self, unfit: Unfit, leaves: Leaves, ask: Ask, trial: Trial) -> Unfit:
        """The refusal, with what the nodes lack."""
        if unfit.misconfigured:
            return unfit
        left_out = leaves.left_out(ask.each)
        if not left_out:
            return unfit
        text = f"{unfit.reason}; of {len(self.ground.nodes)} nodes: {', '.join(left_out)}"
        devices = trial.named(ask.name)
        short = [
            node
            for values, free in leaves.free.items()
            for node in leaves.nodes[values]
            if devices in ask.each and not free.get(devices)
        ]
        why = trial.why_not(ask.name, short) if short else ""
        return Unfit(f"{text}; {why}" if why else text)

    # -- what was given ---------------------------------------------------------------------------

    def parts_of(self, workload: Workload, admission: Admission) -> Iterator[Part]:
        """Parts that an admission holds."""
        sets = {one.name: one for one in workload.pod_sets}
        for one in admission.pod_sets:
            flavor = topology_flavor(one.flavors, self._flavors())
            pod_set = sets.get(one.name)
            if pod_set is None:
                continue
            each = self.devices.each(workload, pod_set)
            if one.topology is None or (flavor is None and one.topology.levels[-1] != HOSTNAME):
                for node, count in self.devices.nodes_of(one.places).items():
                    yield Part(self._host(node), count, each)
                continue
            # A flavor that is gone may be made again while the pods run on: their nodes are known.
            name = flavor.topology_name or "" if flavor is not None else ""
            levels = self._topologies().get(name) or one.topology.levels
            for values, count in whole_values(one.topology, levels, self.ground.hosts):
                yield Part(place_of(name, levels, values), count, each)

    # -- nodes that failed ------------------------------------------------------------------------

    def replaced(self, workload: Workload, node: str) -> Admission | None:
        """The admission with the pods of a failed node elsewhere, and all others unchanged; None if
        there is no room for them. Changes nothing."""
        admission = workload.admission
        assert admission is not None
        kept: list[PodSetAssignment] = []
        mine: Counter[tuple[Hashable, str]] = Counter()
        for part in self.parts_of(workload, admission):
            if part.place != node:
                for resource, amount in part.each.items():
                    mine[part.place, resource] += amount * part.count
        for one in admission.pod_sets:
            if any(self._host(name) == node for name in self.devices.nodes_of(one.places)):
                return None  # what was kept for its pods is gone with the node
            after = self._without(workload, one, node, mine)
            if after is None:
                return None
            kept.append(after)
        return Admission(admission.cluster_queue, tuple(kept))

    def _host(self, name: str) -> str:
        known = self.ground.nodes.get(name)
        return known.host if known is not None else name

    def _without(
        self,
        workload: Workload,
        one: PodSetAssignment,
        node: str,
        mine: Counter[tuple[Hashable, str]],
    ) -> PodSetAssignment | None:
        topology = one.topology
        lost = (
            sum(count for values, count in topology.domains if values[-1] == node)
            if topology
            else 0
        )
        if topology is None or not lost or topology.levels[-1] != HOSTNAME:
            return one
        alone = [GivenPods(one.name, lost, one.flavors)]
        placing = next(self._placings(workload, alone), None)
        levels = self._topologies().get((placing.flavor.topology_name if placing else "") or "")
        if placing is None or not levels:
            return None
        before = whole_values(topology, levels, self.ground.hosts)
        rest = [(v, n) for v, n in before if v[-1] != node]
        leaves = leaves_of(
            self.ground, placing.flavor.topology_name or "", levels, placing, {workload.key}, mine
        ).free
        depth = _must_share(levels, placing)
        ask = _loose(levels, placing)
        if depth and (within := self._within(levels[:depth], node, rest)) is not None:
            leaves = {values: free for values, free in leaves.items() if values[:depth] == within}
        elif depth and rest:
            return None  # its former domain is unknown
        else:
            ask = placing.ask
        for values in [one for one in leaves if one[-1] == node]:
            del leaves[values]
        found = choose(placing.flavor.topology_name or "", levels, leaves, ask)
        if isinstance(found, Unfit):
            return None
        for values, count in found.workers:
            for resource, amount in placing.ask.each.items():
                mine[values[-1], resource] += amount * count
        counts = _in_place_of(node, before, found)
        if len(placing.ask.layers) == 1:
            counts = _smaller_last(levels, placing.ask.layers[0], counts)
        return replace(one, topology=assignment_of(levels, counts))

    def _within(
        self, levels: tuple[str, ...], node: str, rest: list[tuple[Values, int]]
    ) -> Values | None:
        """The domain of these levels that contains, or contained, a node."""
        there = self.ground.hosts.get(node)
        if there is not None:
            return tuple(there.labels.get(level, "") for level in levels)
        known = {values[: len(levels)] for values, _ in rest}
        return known.pop() if len(known) == 1 else None


def _must_share(levels: tuple[str, ...], placing: Placing) -> int:
    """Number of levels that replaced pods must share with the others: a slice's, and those of the
    required level."""
    asked = [placing.ask.required, *(layer.level for layer in placing.ask.layers)]
    depths = [levels.index(one) + 1 for one in asked if one in levels]
    return max((one for one in depths if one < len(levels)), default=0)


def _loose(levels: tuple[str, ...], placing: Placing) -> Ask:
    """Request for the pods of one node anywhere in the evaluated domains; slices of the lowest
    level stay whole."""
    ask = placing.ask
    layers = tuple(one for one in ask.layers if one.level == levels[-1])
    return Ask(ask.name, ask.count, ask.each, layers=layers)


def _in_place_of(
    node: str, before: list[tuple[Values, int]], found: Given
) -> list[tuple[Values, int]]:
    """The domains with those of the replaced pods where the failed node was: pods with numbers are
    assigned in this order, so that the others keep theirs."""
    more = dict(found.workers)
    counts: list[tuple[Values, int]] = []
    for values, count in before:
        if values[-1] != node:
            counts.append((values, count + more.pop(values, 0)))
        else:
            kept = {other for other, _ in before}
            counts += [(new, more.pop(new)) for new in list(more) if new not in kept]
    return counts


def _smaller_last(
    levels: tuple[str, ...], layer: Layer, counts: list[tuple[Values, int]]
) -> list[tuple[Values, int]]:
    """The domains in their order, but for that of a smaller slice, which is the last one."""
    depth = levels.index(layer.level) + 1
    sums: Counter[Values] = Counter()
    for values, count in counts:
        sums[values[:depth]] += count
    return sorted(counts, key=lambda one: sums[one[0][:depth]] % layer.size != 0)


class _Trial:
    def __init__(
        self,
        room: TopologyRoom,
        workload: Workload,
        given: list[GivenPods],
        gone: set[WorkloadKey],
        who: set[WorkloadKey],
    ) -> None:
        self._room, self._workload, self._given = room, workload, given
        self._gone, self._who = gone, who

    def may_stay(self, key: WorkloadKey) -> bool:
        without = self._who - {key}
        found = self._room._find(self._workload, self._given, self._gone | without)
        if isinstance(found, Unfit):
            return False
        self._who = without
        return True


def _refused(unfit: Unfit) -> Verdict:
    reason = PendingReason.WAITING_FOR_PLACEMENT
    if unfit.by_topology:
        reason = PendingReason.TOPOLOGY_PLACEMENT_FAILED
    return Verdict(unfit.reason, preempting_helps=not unfit.misconfigured, reason=reason)


def _given(assignment: Assignment) -> list[GivenPods]:
    return [
        GivenPods(one.name, one.count, {name: got.flavor for name, got in one.flavors.items()})
        for one in assignment.pod_sets
    ]


def _parts(name: str, levels: tuple[str, ...], placing: Placing, found: Given) -> Iterable[Part]:
    for values, count in found.workers:
        yield Part(place_of(name, levels, values), count, placing.ask.each)
    if found.leader is not None and placing.ask.leader is not None:
        yield Part(place_of(name, levels, found.leader), 1, placing.ask.leader)
