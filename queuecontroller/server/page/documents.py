"""Documents of the page: each object is one flat document with short values. Values that change
often are separate fields, so that an update is a few bytes.

Memory is bytes rounded to MiB, ratios have three digits, times are Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.objects import seconds_of
from queuecontroller.gpushares.extender.ledger import PendingPod, PodHolder
from queuecontroller.scheduler.model.checkpointed import kept_for
from queuecontroller.scheduler.model.objects import ResourceQuota, Workload
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.stock import Share
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.nodes_room import without_pods
from queuecontroller.state.nodes.sessions import SECOND_NS, Detection, Node
from queuecontroller.state.objects.asks import describe
from queuecontroller.state.records import Assignment, Event, GpuShare, SharePolicy, WorkloadRecord
from queuecontroller.state.status import Status
from sluicecommon.page.board import Key

MIB: Final = 1 << 20
LONGEST_TEXT: Final = 600
MAX_LABELS: Final = 64
MAX_FLAVORS: Final = 256
"""Rows of flavors and resources of one ClusterQueue."""


def workload_document(record: WorkloadRecord, status: Status) -> dict[str, Any]:
    workload = record.workload
    return {
        "phase": status.phase,
        "queue": workload.queue_name,
        "cq": status.cluster_queue or None,
        "priority": workload.priority or None,
        "class": workload.priority_class or None,
        "created": workload.created_ns // SECOND_NS or None,
        "reason": status.reason or None,
        "message": status.message[:LONGEST_TEXT] or None,
        "position": status.position or None,
        "waiting": status.waiting or None,
        "estimate": coarse(status.estimate_s),
        "node": status.node or None,
        "attempt": status.attempt or None,
        "user": record.user or None,
        "kind": record.kind if record.kind != "Workload" else None,
        "asks": "; ".join(describe(one) for one in record.asks.values())[:LONGEST_TEXT] or None,
        "requests": requests_of(workload) or None,
        "pods": sum(one.count for one in workload.pod_sets),
        "evictions": workload.requeue_state.count or None,
        "held": None if workload.active else True,
    }


def requests_of(workload: Workload) -> dict[str, int]:
    """Total requests of all its pods, in the units of quota."""
    total: dict[str, int] = {}
    for one in workload.pod_sets:
        for name, amount in one.requests.items():
            total[name] = total.get(name, 0) + amount * one.count
    return total


def coarse(seconds: float | None) -> int | None:
    """An estimate rounded to its accuracy, so that it does not change every second."""
    if seconds is None:
        return None
    step = 5 if seconds < 120 else 60 if seconds < 7200 else 600
    return max(step, round(seconds / step) * step)


def cluster_queue_document(book: Book, name: str) -> dict[str, Any]:
    engine = book.engine
    state, pending = engine.cache.queues.get(name), engine.pending.get(name)
    spec = book.catalogue.cluster_queue(name)
    why = engine.cache.why_inactive(name)
    flavors: list[list[Any]] = []
    holding = 0
    if state is not None:
        holding = sum(kept_for(key) is None for key in state.workloads)
        for group in state.spec.resource_groups:
            for one in group.flavors:
                flavors += [_quota_row(book, state.node, one.flavor, q) for q in one.resources]
    return {
        "cohort": (spec.cohort if spec is not None else None) or None,
        "strategy": str(spec.queueing_strategy) if spec is not None else None,
        "stop": str(spec.stop_policy) if spec is not None and spec.stop_policy != "None" else None,
        "why": why,
        "pending": len(pending) if pending is not None else 0,
        "holding": holding,
        "quota": flavors[:MAX_FLAVORS],
        "checks": [one.name for one in spec.admission_checks] if spec is not None else None,
    }


def _quota_row(book: Book, node: QuotaNode, flavor: str, quota: ResourceQuota) -> list[Any]:
    """Flavor, resource, nominal, used, borrowed, lent, borrowing limit and lending limit (None: no
    limit). Lent is its own unused quota that others use, so that it would have to be reclaimed."""
    fr = book.engine.cache.numbers.number(flavor, quota.resource)
    nominal, used = node.nominal.get(fr, quota.nominal), node.used(fr)
    unused = max(0, nominal - used)
    lent = max(0, unused - max(0, node.available(fr))) if node.parent is not None else 0
    return [
        flavor,
        quota.resource,
        nominal,
        used,
        max(0, used - nominal),
        lent,
        quota.borrowing_limit,
        quota.lending_limit,
    ]


def cohort_document(book: Book, name: str, node: QuotaNode | None) -> dict[str, Any]:
    """`node` is None while the cohort has no members."""
    spec = book.catalogue.cohort(name)
    rows: list[list[Any]] = []
    if node is not None:
        numbers = book.engine.cache.numbers
        for fr, whole in sorted(node.subtree_quota.items()):
            flavor, resource = numbers.pair(fr)
            used = _used_below(node, fr)
            rows.append([flavor, resource, whole, used, node.nominal.get(fr, 0)])
    return {
        "parent": (node.parent.name if node is not None and node.parent is not None else None)
        or (spec.parent if spec is not None else None),
        "quota": rows[:MAX_FLAVORS],
        "implicit": True if spec is None else None,
    }


def _used_below(node: QuotaNode, fr: Any) -> int:
    return sum(one.used(fr) for one in node.cluster_queues())


def flavor_document(body: Mapping[str, Any]) -> dict[str, Any]:
    spec = body.get("spec") or {}
    taints = [
        f"{one.get('key')}={one.get('value') or ''}:{one.get('effect')}"
        for one in (spec.get("nodeTaints") or ())[:MAX_LABELS]
        if isinstance(one, Mapping)
    ]
    return {
        "labels": _labels(spec.get("nodeLabels") or {}),
        "taints": taints or None,
        "topology": spec.get("topologyName") or None,
    }


def topology_document(body: Mapping[str, Any]) -> dict[str, Any]:
    levels = (body.get("spec") or {}).get("levels") or ()
    return {"levels": [str(one.get("nodeLabel")) for one in levels if isinstance(one, Mapping)]}


def _labels(found: Mapping[str, Any]) -> dict[str, str] | None:
    return {str(k): str(v) for k, v in list(found.items())[:MAX_LABELS]} or None


def node_document(node: Node, capacity: NodeCapacity, is_ready: bool) -> dict[str, Any]:
    """`capacity` is the node's report with its cordons."""
    state = "Ready" if is_ready else "Lost" if node.record.lost else "Away"
    return {
        "state": state,
        "version": node.version or None,
        "labels": _labels(capacity.labels),
        "gpus": len(capacity.gpus),
        "cordoned": True if capacity.unschedulable else None,
        "seen": node.record.seen_ns // SECOND_NS or None,
    }


def gpu_documents(
    node: str, capacity: NodeCapacity, held: Iterable[Iterable[GpuShare | Share]]
) -> Iterable[tuple[Key, dict[str, Any]]]:
    """`held` are the shares of each holder on the node. Pods that the node reports are among them
    and do not count as use outside the queue."""
    given: dict[str, list[int]] = {}
    for shares in held:
        for share in shares:
            sums = given.setdefault(share.uuid, [0, 0, 0])
            sums[0] += share.memory_bytes
            sums[1] += share.share_ppm
            sums[2] += 1
    for gpu in without_pods(capacity).gpus:
        yield ("Gpu", "", gpu.uuid), gpu_document(node, gpu, given.get(gpu.uuid, [0, 0, 0]))


def gpu_document(node: str, gpu: GpuCapacity, given: list[int]) -> dict[str, Any]:
    """`given` are memory bytes, share ppm and number of the shares given of the GPU."""
    return {
        "node": node,
        "index": gpu.index,
        "type": gpu.type,
        "health": gpu.health,
        "why": gpu.health_reason or None,
        "memory": gpu.memory_bytes,
        "slots": gpu.slots,
        "given": given[0],
        "share": ratio(given[1] / 1e6),
        "grants": given[2],
        "outside": gpu.outside_memory_bytes or None,
        "outsideShare": ratio(gpu.outside_share_ppm / 1e6) or None,
        "used": to_mib(gpu.used_memory_bytes),
        "utilization": ratio(gpu.utilization_ratio),
        "mig": True if gpu.mig_enabled else None,
        "profile": gpu.mig_profile or None,
        "parent": gpu.parent_uuid or None,
        "numa": gpu.numa_node,
        "bus": gpu.pci_bus_id,
    }


def work_document(one: Assignment, usage: tuple[int, float | None] | None) -> dict[str, Any]:
    used, achieved = usage if usage is not None else (None, None)
    return {
        "workload": one.workload,
        "pod": one.pod or None,
        "node": one.node,
        "state": str(one.state),
        "desired": str(one.desired) if str(one.desired) != "run" else None,
        "reason": one.reason[:LONGEST_TEXT] or None,
        "policy": str(one.ask.policy),
        "cq": one.cluster_queue or None,
        "gpus": [[s.uuid, s.memory_bytes, ratio(s.share_ppm / 1e6), s.mig] for s in one.gpus],
        "used": to_mib(used),
        "achieved": ratio(achieved),
        "since": one.changed_ns // SECOND_NS or None,
    }


def pod_document(
    node: str, one: PodHolder, queue: str, usage: tuple[int, float | None] | None
) -> dict[str, Any]:
    """Document of a pod that Kubernetes runs, or of a place reserved for one; `queue` is the
    ClusterQueue whose quota it uses, empty for a plain pod."""
    used, achieved = usage if usage is not None else (None, None)
    if any(share.alone for share in one.shares):
        policy = SharePolicy.EXCLUSIVE
    else:
        hard = any(share.share_ppm for share in one.shares)
        policy = SharePolicy.HARD if hard else SharePolicy.ELASTIC
    return {
        "workload": one.workload or None,
        "pod": one.pod or None,
        "node": node,
        "state": one.state,
        "policy": str(policy),
        "cq": queue or None,
        "gpus": [[s.uuid, s.memory_bytes, ratio(s.share_ppm / 1e6), s.mig] for s in one.shares],
        "used": to_mib(used),
        "achieved": ratio(achieved),
        "since": int(started_s) if (started_s := seconds_of(one.started)) else None,
    }


def pending_pod_document(one: PendingPod) -> dict[str, Any]:
    cut = len(one.reason) > LONGEST_TEXT
    return {
        "created": int(created_s) if (created_s := seconds_of(one.created)) else None,
        "message": one.reason[: LONGEST_TEXT - 1] + "…" if cut else one.reason,
    }


def work_key(one: Assignment) -> Key:
    namespace, _, name = one.workload.partition("/")
    return ("Work", namespace, f"{name}/{one.pod}" if one.pod else name)


def event_document(number: int, event: Event) -> tuple[Key, dict[str, Any]]:
    kind, _, rest = event.subject.partition("/")
    namespace = rest.partition("/")[0] if kind in ("Workload", "LocalQueue") else ""
    return ("Event", namespace, f"{number:012d}"), {
        "at": event.at_ns // SECOND_NS,
        "kind": event.kind,
        "subject": event.subject[:LONGEST_TEXT],
        "text": event.text[:LONGEST_TEXT],
    }


def detection_document(node: str, one: Detection) -> tuple[Key, dict[str, Any]]:
    try:
        found = json.loads(one.evidence)
    except (ValueError, RecursionError):
        found = None
    evidence = (
        {str(k)[:64]: str(v)[:200] for k, v in found.items()} if isinstance(found, dict) else {}
    )
    return ("Detection", "", f"{node}/{one.number:012d}"), {
        "at": one.at_s,
        "node": node,
        "kind": one.kind,
        "level": one.level,
        "text": one.text[:LONGEST_TEXT],
        "workload": one.workload,
        "evidence": dict(list(evidence.items())[:MAX_LABELS]) or None,
    }


def ratio(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def to_mib(value: int | None) -> int | None:
    """Bytes rounded down to MiB."""
    return None if value is None else value // MIB * MIB


def object_body(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
