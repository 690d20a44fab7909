"""Everything that a pending workload lacks, and every change that would be enough to start it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuecontroller.scheduler.explain import wording
from queuecontroller.scheduler.explain.fair_sharing import Turn, turn_of
from queuecontroller.scheduler.explain.limits import LimitKind
from queuecontroller.scheduler.explain.scratch import Scratch
from queuecontroller.scheduler.explain.shortages import Candidate, Needs, Shortage, needs
from queuecontroller.scheduler.lifecycle import SECOND_NS, execution_ends_ns
from queuecontroller.scheduler.model.assignment import HOPELESS, NO_ROOM, Mode
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import Workload
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.preemption.room import RoomMove
from queuecontroller.scheduler.scheduler import Scheduler

_QUOTA: Final = frozenset({*HOPELESS, PendingReason.WAITING_FOR_QUOTA})


@dataclass(frozen=True, slots=True)
class Explanation:
    ways: tuple[str, ...]
    """Changes, each of which is enough and completes "it would start if …"; the likeliest first."""
    waiting_helps: bool
    """False if nothing happens until the workload, a queue or a node is changed."""
    shortages: tuple[Shortage, ...] = ()
    """Shortages; the workload starts once all of them are resolved."""
    flavors: tuple[Candidate, ...] = ()
    """Each flavor and what it lacks, for the pod sets that do not fit."""
    turn: Turn | None = None
    """Position by usage, where admission fair sharing orders the LocalQueues."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "ways": list(self.ways),
            "waitingHelps": self.waiting_helps,
            "shortages": [wording.shortage_as_dict(one) for one in self.shortages],
            "flavors": [
                {"podSet": one.pod_set, "flavor": one.flavor, "text": wording.candidate(one)}
                for one in self.flavors
            ],
            **({"turn": self.turn.as_dict()} if self.turn is not None else {}),
        }


def explain(
    scheduler: Scheduler,
    workload: Workload,
    cluster_queue: str,
    reason: str,
    message: str,
    now_ns: int,
    ahead: int = 0,
    new_nodes: str = "",
) -> Explanation:
    """Explain a pending workload. `cluster_queue` is where it is queued, empty for none; `reason`
    and `message` are those of its last evaluation; `ahead` is the number of workloads before it.
    `new_nodes`: those that were requested for it, in words."""
    turn = turn_of(scheduler.pending.get(cluster_queue), workload.local_queue)
    found = _explain(scheduler, workload, cluster_queue, reason, message, now_ns, ahead, turn)
    if new_nodes and reason in NO_ROOM:
        found = replace(found, ways=(wording.requested(new_nodes), *found.ways))
    return replace(found, turn=turn)


def _explain(
    scheduler: Scheduler,
    workload: Workload,
    cluster_queue: str,
    reason: str,
    message: str,
    now_ns: int,
    ahead: int,
    turn: Turn | None,
) -> Explanation:
    unqueued = scheduler.why_unqueued(workload.key)
    if unqueued is not None:
        local = scheduler.local_queue(f"{workload.namespace}/{workload.queue_name}")
        return _stuck(wording.unqueued(workload, local))
    state = scheduler.cache.queues.get(cluster_queue)
    line = scheduler.pending.get(cluster_queue)
    info = line.get(workload.key) if line is not None else None
    if state is None or info is None:
        return Explanation((), waiting_helps=True)
    inactive = scheduler.cache.why_inactive(cluster_queue)
    if inactive is not None:
        return _stuck(wording.inactive(state, inactive))
    if not scheduler.validation.namespace_matches(state, info):
        labels = scheduler.validation.namespace_labels(workload.namespace)
        return _stuck(wording.namespace_mismatch(workload.namespace, state.spec, labels))
    inadmissible = scheduler.validation.why_inadmissible(info)
    if inadmissible is not None:
        return _stuck(f"this were corrected: {inadmissible[1]}")
    found = needs(state, info, scheduler.settings)
    if found.uncovered:
        return _stuck(wording.uncovered(cluster_queue, found.uncovered))
    if found.refused:
        refused = [one for one in found.candidates if one.pod_set == found.refused]
        return _stuck(wording.refused(cluster_queue, found.refused, refused), found)
    if found.shortages:
        return _short(scheduler, info, found, now_ns)
    back_ns = workload.requeue_state.requeue_at_ns or 0
    if back_ns > now_ns:
        way = wording.backing_off((back_ns - now_ns) / SECOND_NS, workload.requeue_state.count)
    elif reason in NO_ROOM:
        way = wording.no_room(message)
        moves = planned_moves(scheduler, info, found.counts)
        if moves:
            return Explanation((wording.moved(moves), way), waiting_helps=True)
    elif ahead:
        way = wording.its_turn(ahead, cluster_queue, turn)
    elif reason in _QUOTA and state.spec.cohort is not None:
        way = wording.kept(state.spec.cohort)
    else:
        return Explanation((), waiting_helps=True)
    return Explanation((way,), waiting_helps=True)


def planned_moves(
    scheduler: Scheduler, info: WorkloadInfo, counts: Sequence[int] | None = None
) -> tuple[RoomMove, ...]:
    """Moves of running workloads that would make room for a workload that there is quota for."""
    if scheduler.room is None:
        return ()
    scratch = Scratch(scheduler.cache.queues[info.cluster_queue], scheduler.settings)
    assignment = scratch.assign(info, counts)
    return scheduler.room.moves(info, assignment) if assignment.mode is Mode.FIT else ()


def _stuck(way: str, found: Needs | None = None) -> Explanation:
    flavors = tuple(found.candidates) if found is not None else ()
    return Explanation((way,), waiting_helps=False, flavors=flavors)


def _short(scheduler: Scheduler, info: WorkloadInfo, found: Needs, now_ns: int) -> Explanation:
    state = scheduler.cache.queues[info.cluster_queue]
    hopeless = any(one.hopeless for one in found.shortages)
    ways = []
    if not hopeless:
        held = {one.fr: _holders(scheduler, info, one.fr) for one in found.shortages}
        ways.append(wording.free(found, {fr: who for fr, who in held.items() if who}))
        end_ns, ends = _all_ended(scheduler, info, found)
        if end_ns is not None:
            ways.append(wording.maximum_time(max(0, end_ns - now_ns) / SECOND_NS, ends))
    if all(limit.kind is LimitKind.BORROWING for one in found.shortages for limit in one.limits):
        ways.append(wording.borrow_more(found))
    ways.append(wording.raise_nominal(state.name, found, state.node.nominal))
    less = wording.ask_less(info, found)
    if less is not None:
        ways.append(less)
    return Explanation(tuple(ways), not hopeless, tuple(found.shortages), tuple(found.candidates))


def _holders(scheduler: Scheduler, info: WorkloadInfo, fr: Fr) -> list[tuple[str, int]]:
    """The largest users of the quota in the cohort tree, own queue first."""
    cache = scheduler.cache
    mine = cache.queues[info.cluster_queue]

    def of(infos: Iterable[WorkloadInfo]) -> list[tuple[str, int]]:
        having = [(str(one.key), one.usage[fr]) for one in infos if one.usage.get(fr)]
        return sorted(having, key=lambda pair: (-pair[1], pair[0]))

    names = [node.name for node in mine.node.root.cluster_queues() if node.name != mine.name]
    others = (one for name in names for one in cache.queues[name].workloads.values())
    return [*of(mine.workloads.values()), *of(others)]


def _all_ended(
    scheduler: Scheduler, info: WorkloadInfo, found: Needs
) -> tuple[int | None, list[str]]:
    """Time at which enough workloads of its ClusterQueue have reached their
    maximumExecutionTimeSeconds for it to fit, and their names; None if that is never enough."""
    state = scheduler.cache.queues[info.cluster_queue]
    scratch = Scratch(state, scheduler.settings)
    holding = state.workloads.values()
    timed = [(end, one) for one in holding if (end := execution_ends_ns(one.workload)) is not None]
    gone: list[str] = []
    for end_ns, one in sorted(timed, key=lambda pair: (pair[0], pair[1].key)):
        scratch.release(one.usage)
        gone.append(str(one.key))
        if scratch.assign(info, found.counts).mode is Mode.FIT:
            return end_ns, gone
    return None, gone
