"""Runs arrivals through the scheduler. Events are ordered by (time, order); a preempted workload
stops at once and is requeued."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from queuecontroller.cli.simulate.nodes import NodeNews, Timeline
from queuecontroller.cli.simulate.played_room import PlayedRoom
from queuecontroller.cli.simulate.trace import NS_PER_S, Arrival
from queuecontroller.kueueapi.manifests.documents import Documents
from queuecontroller.kueueapi.manifests.nodes import GPUS, MEMORY
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.placement.stock import Share
from queuecontroller.scheduler.placement.totals import followed
from queuecontroller.scheduler.scheduler import Scheduler
from sluicecommon.hami.names import GPU
from sluicecommon.kubernetes.quantity import format_amount

LONGEST_NS = 365 * 24 * 3600 * NS_PER_S
"""Limit of the virtual time: one year."""


@dataclass(slots=True)
class Player:
    """One run. The workloads of the manifests arrive at 0 and stay until the end."""

    documents: Documents
    arrivals: Sequence[Arrival] = ()
    strict_selectors: bool = False
    """True if a ClusterQueue without namespaceSelector admits no namespace, as in Kueue."""
    node_news: Sequence[NodeNews] = ()
    """Changes of nodes; those of the manifests exist from the start. Without any node with GPUs,
    quota alone decides."""
    cooldown_s: int | None = None
    """Seconds in which a workload that was restarted for another one is not restarted again; None:
    none is restarted."""
    scheduler: Scheduler = field(init=False)
    room: PlayedRoom | None = field(init=False, default=None)
    timeline: Timeline = field(default_factory=Timeline)
    now_ns: int = 0
    admitted: dict[WorkloadKey, str] = field(default_factory=dict)
    """Workloads that hold quota now, with their ClusterQueue."""
    reasons: dict[WorkloadKey, str] = field(default_factory=dict)
    waits_ns: dict[str, list[int]] = field(default_factory=dict)
    """Time to first admission by ClusterQueue."""
    preemptions: int = 0
    moves: int = 0
    """Number of restarts on other GPUs so that another workload fits."""
    moved_ns: int = 0
    """Run time that the moved workloads had spent, and spend again, ns."""
    finished: int = 0
    lost: int = 0
    """Number of times that a running workload lost its node or GPU."""
    cycles: int = 0
    _arrived_ns: dict[WorkloadKey, int] = field(default_factory=dict)
    _waited: set[WorkloadKey] = field(default_factory=set)
    _attempt: dict[WorkloadKey, int] = field(default_factory=dict)
    _started_ns: dict[WorkloadKey, int] = field(default_factory=dict)
    _runs_ns: dict[WorkloadKey, int] = field(default_factory=dict)
    _events: list[tuple[int, int, Callable[[int], None]]] = field(default_factory=list)
    _order: int = 0
    _gone: set[WorkloadKey] = field(default_factory=set)
    _area: dict[tuple[str, str], int] = field(default_factory=dict)
    """Use over time, by ClusterQueue and resource: amount times ns."""

    def __post_init__(self) -> None:
        found = self.documents
        nodes = {name: one for name, one in found.nodes.items() if one.gpus}
        if nodes or self.node_news:
            self.room = PlayedRoom({one.name: one for one in found.flavors}, self._cooldown_ns)
            for name, capacity in nodes.items():
                self.room.stock.report(name, capacity)
        made = self.scheduler = Scheduler(
            EngineSettings(
                missing_selector_admits_all=not self.strict_selectors,
                consolidation=self.cooldown_s is not None,
            ),
            self.room,
        )
        namespaces = {one.namespace for one in found.local_queues}
        namespaces |= {one.namespace for one in found.workloads}
        for name in sorted(namespaces | set(found.namespaces)):
            labels = {"kubernetes.io/metadata.name": name, **found.namespaces.get(name, {})}
            made.put_namespace(name, labels)
        for namespace, limits in found.limit_ranges.items():
            made.put_limit_ranges(namespace, limits)
        for flavor in found.flavors:
            made.cache.put_flavor(flavor)
        for cohort in found.cohorts:
            made.cache.put_cohort(cohort)
        for queue in found.cluster_queues:
            made.cache.put_cluster_queue(queue)
        for local in found.local_queues:
            made.put_local_queue(local)
        self._follow_quotas()
        made.share_admission(found.admission_fair_sharing, 0)
        made.settle()
        for news in self.node_news:
            self._at(news.at_ns, partial(self._apply_news, news))
        for workload in found.workloads:
            self._at(0, partial(self._arrive, workload))
        for one in self.arrivals:
            workload = Workload(
                one.namespace,
                one.name,
                (PodSet("main", one.count, one.requests, containers=(one.requests,)),),
                queue_name=one.queue,
                priority=one.priority,
                uid=f"trace/{one.namespace}/{one.name}",
                created_ns=one.at_ns,
            )
            self._runs_ns[workload.key] = one.runs_ns
            self._at(one.at_ns, partial(self._arrive, workload))

    @property
    def _cooldown_ns(self) -> int:
        return (self.cooldown_s or 0) * NS_PER_S

    def run(self) -> None:
        while self._events and self._events[0][0] <= LONGEST_NS:
            now_ns = self._events[0][0]
            self._advance_clock(now_ns)
            while self._events and self._events[0][0] == now_ns:
                heapq.heappop(self._events)[2](now_ns)
            self._decide(now_ns)
            if self.room is not None:
                running = len(self.admitted)
                self.timeline.look(self.room.stock, now_ns, running, self._waiting())
            wake_ns = self.scheduler.next_wake_ns()
            if wake_ns is not None and (not self._events or now_ns < wake_ns < self._events[0][0]):
                self._at(wake_ns, _wake_scheduler)

    def _at(self, time_ns: int, action: Callable[[int], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (time_ns, self._order, action))

    def _advance_clock(self, now_ns: int) -> None:
        passed = now_ns - self.now_ns
        self.timeline.pass_time(passed)
        for queue, amounts in self.used().items() if passed else ():
            for resource, amount in amounts.items():
                pair = queue, resource
                self._area[pair] = self._area.get(pair, 0) + amount * passed
        self.now_ns = now_ns

    def _waiting(self) -> int:
        return sum(key not in self.admitted and key not in self._gone for key in self._arrived_ns)

    def _apply_news(self, news: NodeNews, now_ns: int) -> None:
        """Apply a change of a node; workloads that lost a GPU are requeued."""
        assert self.room is not None
        stock = self.room.stock
        if news.capacity is None:
            stock.forget(news.name)
        else:
            stock.report(news.name, news.capacity)
        self._follow_quotas()
        self.scheduler.settle()
        for key in sorted(self.admitted):
            lost = [
                one.node
                for one in self.room.kept(key) or ()
                if one.node not in stock.nodes
                or any(share.uuid not in stock.nodes[one.node].gpus for share in one.shares)
            ]
            if lost:
                self._requeue(key, f"lost its GPUs on {', '.join(sorted(set(lost)))}", now_ns)
                self.lost += 1

    def _follow_quotas(self) -> None:
        """Set every `nominalQuota: auto` to the capacity of the present nodes."""
        if self.room is None:
            return
        nodes = [one.capacity for _, one in sorted(self.room.stock.nodes.items())]
        labels = {one.name: one.node_labels for one in self.documents.flavors}
        cache = self.scheduler.cache
        for queue in self.documents.cluster_queues:
            groups = tuple(followed(one, nodes, labels) for one in queue.resource_groups)
            cache.put_cluster_queue(replace(queue, resource_groups=groups))
        for cohort in self.documents.cohorts:
            groups = tuple(followed(one, nodes, labels) for one in cohort.resource_groups)
            cache.put_cohort(replace(cohort, resource_groups=groups))

    def _requeue(self, key: WorkloadKey, reason: str, now_ns: int) -> None:
        self._attempt[key] += 1
        self.admitted.pop(key, None)
        self._started_ns.pop(key, None)
        self.reasons[key] = reason
        held = self.scheduler.release(key, now_ns)
        assert held is not None
        self.scheduler.submit(held.workload, now_ns)

    def _arrive(self, workload: Workload, now_ns: int) -> None:
        self._arrived_ns[workload.key] = now_ns
        self.scheduler.submit(workload, now_ns)

    def _decide(self, now_ns: int) -> None:
        while True:
            if self.room is not None:
                self.room.follow(now_ns, self._started_ns)
            result = self.scheduler.cycle(now_ns)
            self.cycles += 1
            self._carry_out(result, now_ns)
            if not (result.reserved or result.preempted or result.more):
                return

    def _carry_out(self, result: CycleResult, now_ns: int) -> None:
        for pending in result.pending:
            self.reasons[pending.info.key] = pending.message
        for one in result.reserved:
            key, queue = one.info.key, one.info.cluster_queue
            self.admitted[key] = queue
            self.reasons.pop(key, None)
            if key not in self._waited:
                self._waited.add(key)
                self.waits_ns.setdefault(queue, []).append(now_ns - self._arrived_ns[key])
            self._started_ns[key] = now_ns
            attempt = self._attempt[key] = self._attempt.get(key, 0) + 1
            if key in self._runs_ns:
                self._at(now_ns + self._runs_ns[key], partial(self._end, key, attempt))
        for gone in result.preempted:
            if gone.reason is PreemptionReason.CONSOLIDATION:
                self._note_move(gone.target.key, now_ns)
            else:
                self.preemptions += 1
            self._requeue(gone.target.key, f"preempted by {gone.preemptor.key}", now_ns)

    def _note_move(self, key: WorkloadKey, now_ns: int) -> None:
        assert self.room is not None
        self.moves += 1
        self.moved_ns += now_ns - self._started_ns[key]
        self.room.note_move(key, now_ns)
        self._at(now_ns + self._cooldown_ns, _wake_scheduler)

    def _end(self, key: WorkloadKey, attempt: int, now_ns: int) -> None:
        if self._attempt[key] == attempt:
            self.admitted.pop(key, None)
            self._started_ns.pop(key, None)
            self.finished += 1
            self._gone.add(key)
            self.scheduler.delete(key, now_ns)

    # --- results ---

    def used(self) -> dict[str, dict[str, int]]:
        """Amounts in use now by ClusterQueue and resource, over all flavors, in the scheduler's
        integers."""
        cache = self.scheduler.cache
        found: dict[str, dict[str, int]] = {}
        for name, state in cache.queues.items():
            amounts = found.setdefault(name, {})
            for pair, amount in state.node.usage.items():
                _, resource = cache.numbers.pair(pair)
                if amount:
                    amounts[resource] = amounts.get(resource, 0) + amount
        return found

    def _pending_reason(self, key: WorkloadKey) -> str:
        found, queue = self.scheduler.why_unqueued(key), self.scheduler.queue_of(key)
        if found is None and queue:
            found = self.scheduler.cache.why_inactive(queue)
        return found or self.reasons.get(key, "not evaluated yet")

    def report(self) -> dict[str, Any]:
        nominal = {
            queue.name: _nominal(queue.resource_groups) for queue in self.documents.cluster_queues
        }
        waiting = {
            str(key): self._pending_reason(key)
            for key in sorted(self._arrived_ns)
            if key not in self.admitted and (key not in self._waited or key in self.reasons)
        }
        found = self._quota_report(nominal, waiting)
        if self.room is not None:
            found["lost"] = self.lost
            if self.cooldown_s is not None:
                found["moves"] = self.moves
                found["moved_s"] = self.moved_ns / NS_PER_S
            found["placed"] = {
                str(key): [
                    {"node": one.node, "gpus": [_share(share) for share in one.shares]}
                    for one in self.room.kept(key) or ()
                ]
                for key in sorted(self.admitted)
            }
            found["gpus"] = self.timeline.report(self.now_ns)
        return found

    def _quota_report(
        self, nominal: Mapping[str, Mapping[str, int]], waiting: Mapping[str, str]
    ) -> dict[str, Any]:
        return {
            "used": {
                queue: {name: _number(name, amount) for name, amount in sorted(amounts.items())}
                for queue, amounts in sorted(self.used().items())
            },
            "admitted": sorted(str(key) for key in self.admitted),
            "pending": waiting,
            "notes": self._notes(),
            "finished": self.finished,
            "preemptions": self.preemptions,
            "cycles": self.cycles,
            "ended_s": self.now_ns / NS_PER_S,
            "waits_s": {
                queue: {
                    "count": len(waits),
                    "p50": _rank(waits, 50) / NS_PER_S,
                    "p95": _rank(waits, 95) / NS_PER_S,
                }
                for queue, waits in sorted(self.waits_ns.items())
            },
            "utilization": {
                queue: {
                    name: round(self._area.get((queue, name), 0) / (limit * self.now_ns), 4)
                    for name, limit in sorted(limits.items())
                    if limit and self.now_ns
                }
                for queue, limits in sorted(nominal.items())
            },
        }

    def _notes(self) -> list[str]:
        """Differences between the simulation and a real cluster."""
        found = self.documents
        notes = [
            f"ClusterQueue {queue.name} has no namespaceSelector: here it matches every namespace,"
            " in Kueue none (--strict-selectors)"
            for queue in found.cluster_queues
            if queue.namespace_selector is None and not self.strict_selectors
        ]
        for queue in found.cluster_queues:
            names = list(dict.fromkeys(rule.name for rule in queue.admission_checks))
            if names:
                notes.append(
                    f"ClusterQueue {queue.name} requires admission checks ({', '.join(names)}):"
                    " assumed to pass at once"
                )
        notes += [
            f"Node {name} is not used for placement: the memory of its GPUs is not given (label"
            f" {MEMORY} or annotation {GPUS})"
            for name, one in sorted(found.nodes.items())
            if not one.gpus and one.other.get(GPU)
        ]
        notes += [
            f"{gone.label} of {gone.file}:{gone.first_line} is ignored: it is given again in"
            f" {by.file}:{by.first_line}"
            for gone, by in found.replaced
        ]
        return notes


def _share(share: Share) -> str:
    """The share as text: the GPU, and its memory and time or its MIG instance."""
    if share.span is not None:
        return f"{share.uuid}: {share.mig} at {share.span.start}"
    time = f"{share.share_ppm / 10_000:g} %" if share.share_ppm else "a weight"
    return f"{share.uuid}: {share.memory_bytes >> 20} MiB, {time}"


def _wake_scheduler(now_ns: int) -> None:
    """Do nothing: after each event the scheduler runs a cycle anyway."""


def _nominal(groups: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in groups:
        for flavor in group.flavors:
            for quota in flavor.resources:
                found[quota.resource] = found.get(quota.resource, 0) + quota.nominal
    return found


def _rank(values: Sequence[int], percent: int) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _number(resource: str, amount: int) -> int | str:
    """The amount as a whole number if it is one, else as a Kubernetes quantity."""
    text = format_amount(resource, amount)
    return int(text) if text.lstrip("-").isdigit() else text
