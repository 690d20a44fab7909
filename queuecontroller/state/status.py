"""Objects as shown to users: Kubernetes-style JSON with a status, and a workload's position in the
queue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from queuecontroller.gpushares.extender.pods import nodes_of
from queuecontroller.scheduler.model.assignment import HOPELESS
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.pending.fair import FairPendingQueue
from queuecontroller.scheduler.pending.fifo import PendingQueue
from queuecontroller.scheduler.placement.capacity import GpuCapacity
from queuecontroller.scheduler.quota.decay import FRACTION_BITS
from queuecontroller.scheduler.quota.shares import dominant_share
from queuecontroller.scheduler.quota.usage_history import usage_of
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.nodes_room import without_pods
from queuecontroller.state.nodes.sessions import SECOND_NS, Node
from queuecontroller.state.objects.asks import describe
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import Assignment, GpuAsk, ObjectId, PodState, WorkloadRecord
from queuecontroller.state.workloads.conditions import phase
from sluicecommon.kubernetes.quantity import CPU, format_amount

API: Final = "kueue.x-k8s.io/v1beta1"
OURS: Final = "sluice.dev/v1"
POSITIONS_NS: Final = SECOND_NS
"""Maximum age of cached positions where LocalQueues' usage decides: all positions change with time
there, and 100,000 take 0.1 s."""


@dataclass(frozen=True, slots=True)
class Status:
    workload: WorkloadKey
    uid: str = ""
    phase: str = "Deleted"
    cluster_queue: str = ""
    position: int = 0
    """Position in its ClusterQueue, from 1; 0 if it is not pending."""
    waiting: int = 0
    reason: str = ""
    message: str = ""
    estimate_s: float | None = None
    """Seconds until admission; None if unknown, or if waiting alone does not help."""
    node: str = ""
    attempt: int = 0
    revision: int = 0

    @property
    def is_over(self) -> bool:
        return self.phase in ("Finished", "Deleted")


def _before(queue: str, position: int) -> str:
    """Message of a pending workload that the scheduler has not evaluated yet."""
    if position > 1:
        return f"number {position} of the pending workloads in ClusterQueue {queue}"
    return "not evaluated yet"


class Views:
    """Read-only views of a book."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._positions: dict[str, tuple[int, dict[WorkloadKey, int]]] = {}

    # -- a workload's way -------------------------------------------------------------------------

    def status(self, key: WorkloadKey, now_ns: int, fresh: bool = False) -> Status:
        book = self._book
        record = book.workloads.records.get(key)
        if record is None:
            return Status(key)
        workload = record.workload
        pods = book.nodes.of_workload(key)
        queue = self._queue_of(workload)
        paused = any(one.state is PodState.PAUSED for one in pods.values())
        shown_phase = "Deleting" if record.deleting else phase(workload, paused)
        waiting = book.workloads.why_not(key)
        position = waiting_there = 0
        estimate_s = None
        if workload.admission is None and shown_phase in ("Pending", "Paused"):
            position = self.place(key, queue, now_ns, fresh)
            waiting_there = len(book.engine.pending.get(queue, ()))
            unqueued = book.engine.why_unqueued(key) or book.engine.cache.why_inactive(queue)
            reason = waiting.reason if waiting else "Pending"
            if unqueued:
                reason = workload.unqueued_reason
            message = unqueued or (waiting.message if waiting else _before(queue, position))
            if unqueued is None and reason not in HOPELESS:
                estimate_s = self._estimate_s(workload, queue, position, now_ns)
        elif waiting is not None:
            reason, message = waiting.reason, waiting.message
        else:
            reason, message = self._telling(workload)
        nodes = {one.node for one in pods.values()}
        if not nodes and workload.admission is not None:
            nodes = nodes_of(workload.admission)
        return Status(
            workload=key,
            uid=workload.uid,
            phase=shown_phase,
            cluster_queue=queue,
            position=position,
            waiting=waiting_there,
            reason=reason,
            message=message,
            estimate_s=estimate_s,
            node=", ".join(sorted(nodes)) or record.node,
            attempt=record.attempt,
            revision=record.revision,
        )

    def _estimate_s(
        self, workload: Workload, queue: str, position: int, now_ns: int
    ) -> float | None:
        """Seconds until admission at the recent rate, and at least until its back-off ends."""
        found = self._book.workloads.figures.estimate_s(queue, position, now_ns)
        back_ns = workload.requeue_state.requeue_at_ns or 0
        return None if found is None else max(found, (back_ns - now_ns) / SECOND_NS)

    def _telling(self, workload: Workload) -> tuple[str, str]:
        """Reason and message of the most advanced true condition."""
        for kind in ("Finished", "Evicted", "PodsReady", "Admitted", "QuotaReserved"):
            found = workload.condition(kind)
            if found is not None and found.status:
                return found.reason, found.message
        return "", ""

    def _queue_of(self, workload: Workload) -> str:
        if workload.admission is not None:
            return workload.admission.cluster_queue
        local = self._book.catalogue.local_queue(workload.namespace, workload.queue_name)
        return local.cluster_queue if local is not None else ""

    def place(self, key: WorkloadKey, queue: str, now_ns: int, fresh: bool = False) -> int:
        """Position in its ClusterQueue, from 1; 0 if it is not pending there."""
        pending = self._book.engine.pending.get(queue)
        if pending is None:
            return 0
        if not isinstance(pending, FairPendingQueue):
            return pending.place(key)
        known = self._positions.get(queue)
        if known is None or fresh or not 0 <= now_ns - known[0] < POSITIONS_NS:
            order = {info.key: number for number, info in enumerate(pending.everyone(), 1)}
            known = self._positions[queue] = (now_ns, order)
        return known[1].get(key, 0)

    # -- objects ----------------------------------------------------------------------------------

    def identities(self, kind: str, namespace: str) -> Iterator[ObjectId]:
        """All objects of a kind, in order."""
        book = self._book
        if kind == "Workload":
            keys = [key.split("/", 1) for key in book.workloads.records]
            every = [(kind, where, name) for where, name in keys]
        elif kind == "Node":
            every = [(kind, "", name) for name in book.nodes.nodes]
        else:
            every = [found for found in book.catalogue.records if found[0] == kind]
        return iter(sorted(one for one in every if not namespace or one[1] in ("", namespace)))

    def render(self, identity: ObjectId, now_ns: int) -> tuple[int, dict[str, Any]]:
        """Revision and JSON of an object. Raises Refused if there is none."""
        kind, namespace, name = identity
        book = self._book
        if kind == "Workload":
            record = book.find(namespace, name)
            return record.revision, self._workload(record, now_ns)
        if kind == "Node":
            node = book.nodes.nodes.get(name)
            if node is None:
                raise Refused("not_found", f"no Node {name}")
            return book.journal.revision, self._node(node, now_ns)
        found = book.catalogue.records.get(identity)
        if found is None:
            raise Refused("not_found", f"no {'/'.join(part for part in identity if part)}")
        document: dict[str, Any] = json.loads(found.body)
        document.setdefault("metadata", {})["resourceVersion"] = str(found.revision)
        if kind == "ClusterQueue":
            document["status"] = self._cluster_queue(name)
        elif kind == "LocalQueue":
            document["status"] = self._local_queue(namespace, name)
        return found.revision, document

    def _workload(self, record: WorkloadRecord, now_ns: int) -> dict[str, Any]:
        workload = record.workload
        status = self.status(record.key, now_ns)
        admission = workload.admission
        pods = self._book.nodes.of_workload(record.key).values()
        shown: dict[str, Any] = _without_empty(
            {
                "apiVersion": API,
                "kind": "Workload",
                "metadata": {
                    "namespace": workload.namespace,
                    "name": workload.name,
                    "uid": workload.uid,
                    "creationTimestamp": stamp(workload.created_ns),
                    "resourceVersion": str(record.revision),
                },
                "spec": {
                    "queueName": workload.queue_name,
                    "priority": workload.priority,
                    "priorityClassName": workload.priority_class,
                    "active": workload.active,
                    "maximumExecutionTimeSeconds": workload.max_execution_s,
                    "podSets": [
                        {"name": one.name, "count": one.count, "requests": amounts(one.requests)}
                        for one in workload.pod_sets
                    ],
                },
                "sluice": {
                    "submittedAs": record.kind,
                    "user": record.user,
                    "node": record.node,
                    "command": record.command,
                    "asks": {name: _ask(ask) for name, ask in record.asks.items()},
                },
                "status": {
                    "phase": status.phase,
                    "reason": status.reason,
                    "message": status.message,
                    "clusterQueue": status.cluster_queue,
                    "position": status.position or None,
                    "waiting": status.waiting or None,
                    "estimateSeconds": status.estimate_s,
                    "attempt": record.attempt or None,
                    "conditions": [
                        {
                            "type": one.type,
                            "status": "True" if one.status else "False",
                            "reason": one.reason,
                            "message": one.message,
                            "lastTransitionTime": stamp(one.changed_ns),
                        }
                        for one in workload.conditions
                    ],
                    "admissionChecks": [
                        {"name": one.name, "state": str(one.state), "message": one.message}
                        for one in workload.admission_checks
                    ],
                    "admission": admission
                    and {
                        "clusterQueue": admission.cluster_queue,
                        "podSetAssignments": [
                            {
                                "name": one.name,
                                "count": one.count,
                                "flavors": dict(one.flavors),
                                "resourceUsage": amounts(one.usage),
                            }
                            for one in admission.pod_sets
                        ],
                    },
                    "placements": [_placement(one) for one in pods],
                },
            }
        )
        return shown

    def _cluster_queue(self, name: str) -> dict[str, Any]:
        book = self._book
        state = book.engine.cache.queues.get(name)
        pending = book.engine.pending.get(name)
        why = book.engine.cache.why_inactive(name)
        usage: dict[str, dict[str, str]] = {}
        if state is not None:
            for fr, amount in sorted(state.node.usage.items()):
                flavor, resource = book.engine.cache.numbers.pair(fr)
                usage.setdefault(flavor, {})[resource] = format_amount(resource, amount)
        admitted = [
            info
            for info in (state.workloads.values() if state else ())
            if info.workload.is_true("Admitted")
        ]
        share = dominant_share(state.node, book.engine.cache.numbers) if state else None
        return {
            "active": why is None,
            "message": why or "Can admit new workloads",
            "pendingWorkloads": len(pending) if pending is not None else 0,
            "reservingWorkloads": len(state.workloads) if state is not None else 0,
            "admittedWorkloads": len(admitted),
            "flavorsUsage": [
                {"name": flavor, "resources": [{"name": r, "total": t} for r, t in found.items()]}
                for flavor, found in usage.items()
            ],
            "weightedShare": share.per_mille() if share is not None else 0,
            **self._turns(pending),
        }

    def _turns(self, pending: PendingQueue | None) -> dict[str, Any]:
        """LocalQueues in the order in which they are served, if usage decides."""
        if not isinstance(pending, FairPendingQueue):
            return {}
        served = [{"name": n, "usage": shown_usage(f)} for n, f in pending.local_queues()]
        return {"localQueuesByUsage": served}

    def _local_queue(self, namespace: str, name: str) -> dict[str, Any]:
        history = self._book.engine.history
        sharing: dict[str, Any] = {}
        if history is not None:
            key = f"{namespace}/{name}"
            consumed, at_ns = history.consumed(key)
            shown = {name: consumed_of(name, value) for name, value in consumed.items()}
            status = {"consumedResources": shown, "lastUpdate": stamp(at_ns)}
            sharing = {
                "fairSharing": {
                    "admissionFairSharingStatus": status,
                    "usage": shown_usage(history.figure(key)),
                }
            }
        mine = [
            record.workload
            for record in self._book.workloads.records.values()
            if record.workload.namespace == namespace
            and record.workload.queue_name == name
            and not record.workload.is_true("Finished")
        ]
        return {
            "pendingWorkloads": sum(one.admission is None for one in mine),
            "reservingWorkloads": sum(one.admission is not None for one in mine),
            "admittedWorkloads": sum(one.is_true("Admitted") for one in mine),
            **sharing,
        }

    def _node(self, node: Node, now_ns: int) -> dict[str, Any]:
        book = self._book
        ready = book.nodes.ready(node, now_ns)
        state = "Ready" if ready else "Lost" if node.record.lost else "Away"
        gpus = []
        given = [share for each in book.nodes_room.given_on(node.name) for share in each]
        for gpu in without_pods(node.capacity).gpus:
            mine = [share for share in given if share.uuid == gpu.uuid]
            gpus.append(
                {
                    "uuid": gpu.uuid,
                    "index": gpu.index,
                    "type": gpu.type,
                    "health": gpu.health,
                    "memoryBytes": gpu.memory_bytes,
                    "givenMemoryBytes": sum(one.memory_bytes for one in mine),
                    "givenSharePpm": sum(one.share_ppm for one in mine),
                    "outsideMemoryBytes": gpu.outside_memory_bytes,
                    "outsideSharePpm": gpu.outside_share_ppm,
                    "utilizationRatio": gpu.utilization_ratio,
                    **_instance(gpu),
                }
            )
        return {
            "apiVersion": OURS,
            "kind": "Node",
            "metadata": {"name": node.name, "labels": dict(node.capacity.labels)},
            "status": {
                "state": state,
                "epoch": node.record.epoch,
                "bootId": node.record.boot_id,
                "version": node.version,
                "connectedAt": stamp(node.record.seen_ns),
                "leaseSeconds": round(max(0, node.lease_until_ns - now_ns) / SECOND_NS, 1),
                "gpus": gpus,
                "work": [_placement(one) for one in book.nodes.of_node(node.name)],
                "pods": [
                    {
                        "namespace": one.namespace,
                        "pod": one.pod,
                        "workload": one.workload,
                        "state": one.state,
                        "gpus": [
                            {"uuid": s.uuid, "memoryBytes": s.memory_bytes, "sharePpm": s.share_ppm}
                            for s in one.shares
                        ],
                    }
                    for one in book.nodes_room.pods.holders(node.name)
                ],
            },
        }


def _instance(gpu: GpuCapacity) -> dict[str, Any]:
    """Fields of a MIG instance; empty for other GPUs."""
    if not gpu.mig_profile:
        return {}
    place = {"migStart": gpu.mig_span.start, "migSize": gpu.mig_span.size} if gpu.mig_span else {}
    return {"parentUuid": gpu.parent_uuid, "migProfile": gpu.mig_profile, **place}


def stamp(at_ns: int) -> str | None:
    """RFC 3339 time in microseconds; None for 0."""
    if not at_ns:
        return None
    moment = datetime.fromtimestamp(at_ns // 1000 / 1e6, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def shown_usage(figure: int) -> float | str:
    """Usage in Kueue's notation, since JSON has no infinity."""
    usage = usage_of(figure)
    return "+Inf" if usage == float("inf") else round(usage, 6)


def consumed_of(resource: str, value: int) -> str:
    """Usage history as a quantity: in thousandths as in Kueue, in whole units from a million on."""
    milli = (value if resource == CPU else value * 1000) >> FRACTION_BITS
    if resource == CPU:
        return format_amount(CPU, milli)
    exact = milli % 1000 and milli < 10**9
    return f"{milli}m" if exact else format_amount(resource, milli // 1000)


def amounts(found: Mapping[str, int]) -> dict[str, str]:
    return {name: format_amount(name, amount) for name, amount in found.items()}


def _ask(ask: GpuAsk) -> dict[str, Any]:
    return {"text": describe(ask), "policy": str(ask.policy)}


def _placement(one: Assignment) -> dict[str, Any]:
    return {
        "workload": one.workload,
        "pod": one.pod,
        "node": one.node,
        "attempt": one.attempt,
        "revision": one.revision,
        "desired": str(one.desired),
        "state": str(one.state),
        "gpus": [
            {"uuid": s.uuid, "memoryBytes": s.memory_bytes, "sharePpm": s.share_ppm}
            for s in one.gpus
        ],
    }


def _without_empty(value: Any) -> Any:
    """The value without empty fields, as in Kubernetes."""
    if isinstance(value, Mapping):
        found = {name: _without_empty(item) for name, item in value.items()}
        return {name: item for name, item in found.items() if item not in (None, "", {}, [])}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value
