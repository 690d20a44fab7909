"""Status of ClusterQueues, LocalQueues and Cohorts, from the book.

Pending workloads and those with quota are counted by LocalQueue as they change, so that the status
of one queue does not take a pass over all workloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import CHECKS, CLUSTER_QUEUES
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    has_condition,
    is_leaving,
    key_of,
    split_key,
)
from queuecontroller.cluster.status.workload_status import LONGEST, stamp
from queuecontroller.scheduler.model.checkpointed import keeper_of, kept_for
from queuecontroller.scheduler.model.flavor_resources import Fr, Usage
from queuecontroller.scheduler.model.objects import StopPolicy, Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    ACTIVE,
    ADMITTED,
    CHECK_INACTIVE,
    CHECK_NOT_FOUND,
    CLUSTER_QUEUE_INACTIVE,
    CLUSTER_QUEUE_MISSING,
    COHORT_CYCLE,
    FINISHED,
    FLAVOR_NOT_FOUND,
    MISCONFIGURED,
    STOPPED,
    TERMINATING,
    TOPOLOGY_NOT_FOUND,
)
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.shares import dominant_share
from queuecontroller.state.book import Book
from queuecontroller.state.records import ObjectId
from queuecontroller.state.status import consumed_of
from sluicecommon.kubernetes.quantity import format_amount

_NOT_IN: Final = "Can't admit new workloads"


class QueueStatus:
    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._book: Book = mirror.book
        self._local_of: dict[WorkloadKey, str] = {}
        self._in_local: dict[str, dict[WorkloadKey, None]] = {}
        self._cluster_of: dict[WorkloadKey, str] = {}
        """LocalQueue of each workload with quota, which may be deleted before the workload."""

    def touched(self, key: WorkloadKey) -> Iterable[ObjectId]:
        """Return the queues whose status may change with a workload."""
        record = self._book.workloads.records.get(key)
        before = self._local_of.pop(key, "")
        if before:
            self._in_local[before].pop(key, None)
            if not self._in_local[before]:
                del self._in_local[before]
        queues = {before}
        of_cluster = {self._cluster_of.pop(key, "")}
        if record is not None and _counts(record.workload):
            now = record.workload.local_queue
            queues.add(now)
            self._local_of[key] = now
            self._in_local.setdefault(now, {})[key] = None
        for one in queues - {""}:
            namespace, name = split_key(one)
            yield "LocalQueue", namespace, name
            local = self._book.catalogue.local_queue(namespace, name)
            if local is not None:
                of_cluster.add(local.cluster_queue)
        if record is not None and record.workload.admission is not None:
            holder = self._cluster_of[key] = record.workload.admission.cluster_queue
            of_cluster.add(holder)
        for one in of_cluster - {""}:
            yield "ClusterQueue", "", one

    def status(self, document: Document, now_ns: int) -> dict[str, Any]:
        kind, key = str(document.get("kind")), key_of(document)
        if kind == "ClusterQueue":
            return self._cluster_queue(document, key, now_ns)
        if kind == "LocalQueue":
            return self._local_queue(document, key, now_ns)
        return self._cohort(key)

    # -- ClusterQueue -----------------------------------------------------------------------------

    def _cluster_queue(self, document: Document, name: str, now_ns: int) -> dict[str, Any]:
        engine = self._book.engine
        state, line = engine.cache.queues.get(name), engine.pending.get(name)
        found: dict[str, Any] = {
            "conditions": active(document, *self._why_closed(document, name), now_ns),
            "pendingWorkloads": len(line) if line is not None else 0,
            "reservingWorkloads": 0,
            "admittedWorkloads": 0,
        }
        if state is None:
            return found
        admitted = [one for one in state.workloads.values() if one.workload.is_true(ADMITTED)]
        unqueued = self._waiting_outside(name)
        found["pendingWorkloads"] += unqueued
        found["reservingWorkloads"] = _number(state.workloads.values())
        found["admittedWorkloads"] = _number(admitted)
        frs = list(state.node.nominal)
        nominal = dict(state.node.nominal)
        held = self._sum(state.workloads.values())
        found["flavorsReservation"] = self._usage(frs, held, nominal)
        found["flavorsUsage"] = self._usage(frs, self._sum(admitted), nominal)
        if self._book.settings.engine.fair_sharing:
            share = dominant_share(state.node, engine.cache.numbers).per_mille()
            found["fairSharing"] = {"weightedShare": share}
        return found

    def _waiting_outside(self, name: str) -> int:
        """Count workloads pending for the ClusterQueue whose LocalQueue is stopped."""
        count = 0
        for local, keys in self._in_local.items():
            namespace, queue = split_key(local)
            known = self._book.catalogue.local_queue(namespace, queue)
            if known is not None and known.cluster_queue == name:
                count += sum(self._book.engine.why_unqueued(key) is not None for key in keys)
        return count

    def _sum(self, infos: Iterable[WorkloadInfo]) -> dict[Fr, int]:
        total: dict[Fr, int] = {}
        for info in infos:
            for fr, amount in info.usage.items():
                total[fr] = total.get(fr, 0) + amount
        return total

    def _usage(
        self, frs: Iterable[Fr], held: Usage, nominal: Mapping[Fr, int] | None
    ) -> list[dict[str, Any]]:
        """Return usage by flavor and resource; with `nominal`, the borrowed part as well."""
        numbers = self._book.engine.cache.numbers
        flavors: dict[str, list[dict[str, Any]]] = {}
        for fr in dict.fromkeys([*frs, *held]):
            flavor, resource = numbers.pair(fr)
            amount = held.get(fr, 0)
            one = {"name": resource, "total": format_amount(resource, amount)}
            if nominal is not None:
                over = max(0, amount - nominal.get(fr, 0))
                one["borrowed"] = format_amount(resource, over)
            flavors.setdefault(flavor, []).append(one)
        return [{"name": name, "resources": found} for name, found in flavors.items()]

    def _why_closed(self, document: Document, name: str) -> tuple[str, str]:
        """Return reason and message of Active=False; both "" if it is active."""
        refused = self._mirror.refused.get(("ClusterQueue", "", name))
        if refused is not None:
            return MISCONFIGURED, f"{_NOT_IN}: {refused}"
        if is_leaving(document):
            return TERMINATING, f"{_NOT_IN}; clusterQueue is terminating"
        cache = self._book.engine.cache
        state = cache.queues.get(name)
        if state is None:
            return MISCONFIGURED, f"{_NOT_IN}: not read yet"
        if state.spec.stop_policy is not StopPolicy.NONE:
            return STOPPED, f"{_NOT_IN}: is stopped."
        if missing := state.missing_flavors():
            text = f"{_NOT_IN}: references missing ResourceFlavor(s): {','.join(missing)}."
            return FLAVOR_NOT_FOUND, text
        if missing := state.missing_topologies():
            return TOPOLOGY_NOT_FOUND, f"{_NOT_IN}: there is no Topology {','.join(missing)}."
        known = {rule.name: self._check(rule.name) for rule in state.spec.admission_checks}
        if lost := sorted(one for one, found in known.items() if found is None):
            text = f"{_NOT_IN}: references missing AdmissionCheck(s): {','.join(lost)}."
            return CHECK_NOT_FOUND, text
        asleep = sorted(
            one for one, found in known.items() if found and not has_condition(found, ACTIVE)
        )
        if asleep:
            text = f"{_NOT_IN}: references inactive AdmissionCheck(s): {','.join(asleep)}."
            return CHECK_INACTIVE, text
        why = cache.why_inactive(name)
        return (COHORT_CYCLE, f"{_NOT_IN}: {why}") if why is not None else ("", "")

    def _check(self, name: str) -> Document | None:
        return self._mirror.cache.get(CHECKS, name)

    # -- LocalQueue and Cohort --------------------------------------------------------------------

    def _local_queue(self, document: Document, key: str, now_ns: int) -> dict[str, Any]:
        book = self._book
        mine = self._in_local.get(key, {})
        both = [each for one in mine for each in (one, keeper_of(one))]
        holding = [info for one in both if (info := book.engine.holding(one)) is not None]
        admitted = [info for info in holding if info.workload.is_true(ADMITTED)]
        queue = str((document.get("spec") or {}).get("clusterQueue") or "")
        state = book.engine.cache.queues.get(queue)
        frs = list(state.node.nominal) if state is not None else []
        return {
            **self._fair_sharing(key),
            "conditions": active(document, *self._why_shut(document, queue), now_ns),
            "pendingWorkloads": len(mine) - _number(holding),
            "reservingWorkloads": _number(holding),
            "admittedWorkloads": _number(admitted),
            "flavorsReservation": self._usage(frs, self._sum(holding), None),
            "flavorsUsage": self._usage(frs, self._sum(admitted), None),
        }

    def _fair_sharing(self, key: str) -> dict[str, Any]:
        """Return the recorded usage of a LocalQueue, as it was when the usage last changed: from it
        another leader goes on."""
        history = self._book.engine.history
        if history is None:
            return {}
        consumed, at_ns = history.consumed(key)
        if not consumed:
            return {}
        shown = {name: consumed_of(name, value) for name, value in consumed.items()}
        sharing = {"consumedResources": shown, "lastUpdate": stamp(at_ns)}
        return {"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": sharing}}

    def _why_shut(self, document: Document, queue: str) -> tuple[str, str]:
        namespace, name = split_key(key_of(document))
        refused = self._mirror.refused.get(("LocalQueue", namespace, name))
        if refused is not None:
            return MISCONFIGURED, refused
        local = self._book.catalogue.local_queue(namespace, name)
        if local is not None and local.stop_policy is not StopPolicy.NONE:
            return STOPPED, "LocalQueue is stopped"
        behind = self._mirror.cache.get(CLUSTER_QUEUES, queue)
        if behind is None:
            return CLUSTER_QUEUE_MISSING, "Can't submit new workloads to clusterQueue"
        if self._why_closed(behind, queue)[0]:
            return CLUSTER_QUEUE_INACTIVE, "Can't submit new workloads to clusterQueue"
        return "", ""

    def _cohort(self, name: str) -> dict[str, Any]:
        if not self._book.settings.engine.fair_sharing:
            return {}
        cache = self._book.engine.cache
        for state in cache.queues.values():
            for node in state.node.path[1:]:
                if node.name == name:
                    share = dominant_share(node, cache.numbers).per_mille()
                    return {"fairSharing": {"weightedShare": share}}
        return {"fairSharing": {"weightedShare": 0}}


def _number(infos: Iterable[WorkloadInfo]) -> int:
    """Number of workloads, without the keepers of checkpointed ones, which only hold quota."""
    return sum(kept_for(one.key) is None for one in infos)


def active(document: Document, reason: str, message: str, now_ns: int) -> list[dict[str, Any]]:
    """Return a queue's conditions with Active, which is True if `reason` is empty."""
    kind = document.get("kind")
    if not reason:
        submit = "Can submit new workloads to localQueue"
        message = "Can admit new workloads" if kind == "ClusterQueue" else submit
    made = {
        "type": ACTIVE,
        "status": "False" if reason else "True",
        "reason": reason or "Ready",
        "message": message[:LONGEST],
    }
    before = condition_of(document, ACTIVE)
    since = before.get("lastTransitionTime") if before.get("status") == made["status"] else None
    made["lastTransitionTime"] = since or stamp(now_ns)
    generation = document["metadata"].get("generation")
    if generation is not None:
        made["observedGeneration"] = generation
    known = (document.get("status") or {}).get("conditions") or ()
    return [*(dict(one) for one in known if one["type"] != ACTIVE), made]


def differing(document: Document, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a status that differ from the stored ones."""
    known = document.get("status") or {}
    return {name: value for name, value in wanted.items() if known.get(name) != value}


def _counts(workload: Workload) -> bool:
    """Return True if the workload is pending or holds quota."""
    waits = workload.active and not workload.is_on_hold and not workload.is_gated
    return not workload.is_true(FINISHED) and (waits or workload.admission is not None)
