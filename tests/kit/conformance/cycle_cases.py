"""Runs one recorded scheduling cycle over all queues and compares everything it left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from queuecontroller.kueueapi.manifests import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_limit_range,
    read_local_queue,
    read_topology_levels,
    read_workload,
)
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import Admission, Condition, Workload
from queuecontroller.scheduler.model.reasons import ADMITTED, EVICTED, PREEMPTED, QUOTA_RESERVED
from queuecontroller.scheduler.scheduler import Scheduler
from sluicecommon.kubernetes.quantity import parse_amount
from tests.kit.conformance.case import Case, Comparison, Outcome, excluded
from tests.kit.conformance.flavor_cases import settings_of, values
from tests.kit.conformance.preemption_cases import NOW_NS

NAMESPACES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "eng-alpha": {"dep": "eng"},
    "eng-beta": {"dep": "eng"},
    "eng-gamma": {"dep": "eng"},
    "sales": {"dep": "sales"},
    "lend": {"dep": "lend"},
}
"""The namespaces all recorded cycles share, as the files' own note lists them."""

OUT_OF_SCOPE: Mapping[str, str] = {
    "ConcurrentAdmission": (
        "needs the ConcurrentAdmission gate (alpha, off by default): several variants of one "
        "workload queue at once and migrate between flavors; here a workload queues once"
    ),
}

_CONDITIONS = (QUOTA_RESERVED, ADMITTED, EVICTED, PREEMPTED)


def run_cycle_case(case: Case) -> Outcome:
    for gate, on in (case.get("featureGates") or {}).items():
        if on and gate in OUT_OF_SCOPE:
            return excluded(OUT_OF_SCOPE[gate])
    scheduler = Scheduler(settings_of(case))
    _put_objects(scheduler, case)
    workloads = [read_workload(manifest) for manifest in case.get("workloads") or ()]
    for workload in workloads:
        scheduler.submit(workload, NOW_NS)
    result = scheduler.cycle(NOW_NS)
    failed = case.get("admissionError") is not None
    if failed:
        _take_back(scheduler, result)

    compare = Comparison()
    expected = case["expected"]
    admissions = _admissions(workloads, result)
    compare.same("assignments", _recorded_admissions(expected), admissions)
    compare.same("events", _recorded_events(expected), _events(result))
    compare.same("left", _sorted(expected.get("left")), _queued(scheduler, inadmissible=False))
    compare.same(
        "inadmissible",
        _sorted(expected.get("inadmissibleLeft")),
        _queued(scheduler, inadmissible=True),
    )
    skipped = expected.get("skippedPreemptions") or {}
    ours = {name: result.skipped_preemptions.get(name, 0) for name in skipped}
    compare.same("skipped preemptions", skipped, ours)
    recorded = [read_workload(manifest) for manifest in expected.get("workloads") or ()]
    conditions = _conditions(workloads, result)
    for workload in recorded:
        compare.same(
            f"conditions of {workload.key}",
            _reasons(workload.conditions),
            _reasons(conditions[workload.key].values()),
        )
    return compare.outcome()


def _put_objects(scheduler: Scheduler, case: Case) -> None:
    for name, labels in NAMESPACES.items():
        scheduler.put_namespace(name, labels)
    cache = scheduler.cache
    for flavor in values(case.get("flavors")):
        cache.put_flavor(read_flavor(flavor))
    for topology in values(case.get("topologies")):
        cache.put_topology(*read_topology_levels(topology))
    for cohort in values(case.get("cohorts")):
        cache.put_cohort(read_cohort(cohort))
    for queue in values(case.get("clusterQueues")):
        cache.put_cluster_queue(read_cluster_queue(queue))
    for local in values(case.get("localQueues")):
        scheduler.put_local_queue(read_local_queue(local))
    for manifest in values(case.get("objects")):
        if isinstance(manifest, Mapping):
            _put_other(scheduler, manifest)
    scheduler.settle()


def _put_other(scheduler: Scheduler, manifest: Mapping[str, Any]) -> None:
    """Objects the recording had beside the usual ones; kinds that decide nothing here pass."""
    kind = str(manifest.get("kind", ""))
    spec = manifest.get("spec")
    metadata = manifest.get("metadata") or {}
    if kind == "Namespace" or (not kind and not spec and "namespace" not in metadata):
        scheduler.put_namespace(str(metadata.get("name")), metadata.get("labels") or {})
    elif kind == "LimitRange" or (isinstance(spec, Mapping) and "limits" in spec):
        namespace, limits = read_limit_range(manifest)
        scheduler.put_limit_ranges(namespace, (limits,))
    elif kind == "Topology":
        scheduler.cache.put_topology(*read_topology_levels(manifest))


def _take_back(scheduler: Scheduler, result: CycleResult) -> None:
    """Undo a cycle's admissions, as the shell does when an admission could not be stored."""
    for one in result.reserved:
        scheduler.release(one.info.key)
        scheduler.submit(one.info.workload, NOW_NS)
    result.reserved.clear()


# -- what the engine said -------------------------------------------------------------------------


def _admissions(workloads: list[Workload], result: CycleResult) -> dict[str, object]:
    held = {one.key: one.admission for one in workloads if one.admission is not None}
    held |= {one.info.key: one.admission() for one in result.reserved}
    return {key: _plain(admission) for key, admission in held.items()}


def _plain(admission: Admission) -> object:
    return admission.cluster_queue, [
        (one.name, one.count, dict(one.flavors), dict(one.usage)) for one in admission.pod_sets
    ]


def _events(result: CycleResult) -> Counter[tuple[str, str]]:
    return Counter(_event_pairs(result))


def _event_pairs(result: CycleResult) -> Iterator[tuple[str, str]]:
    for one in result.reserved:
        yield one.info.key, "QuotaReserved"
        if one.checks_ready:
            yield one.info.key, "Admitted"
    for gone in result.preempted:
        yield gone.target.key, "EvictedDueToPreempted"
        yield gone.target.key, "Preempted"
        yield gone.preemptor.key, "PreemptedWorkload"
    for slice_ in result.replaced:
        yield slice_.key, "WorkloadSliceReplaced"
    for waiting in result.pending:
        yield waiting.info.key, str(waiting.reason)


def _queued(scheduler: Scheduler, *, inadmissible: bool) -> dict[str, list[str]]:
    found = {
        name: sorted(
            str(info.key) for info in (queue.inadmissible() if inadmissible else queue.active())
        )
        for name, queue in scheduler.pending.items()
    }
    return {name: keys for name, keys in found.items() if keys}


_Conditions = dict[str, dict[str, Condition]]


def _conditions(workloads: list[Workload], result: CycleResult) -> _Conditions:
    """Conditions as the shell would write them after this cycle."""
    by_key: _Conditions = {
        one.key: {condition.type: condition for condition in one.conditions} for one in workloads
    }

    def write(key: str, kind: str, status: bool, reason: str) -> None:
        by_key[key][kind] = Condition(kind, status, reason)

    for one in result.reserved:
        write(one.info.key, QUOTA_RESERVED, True, "QuotaReserved")
        reason = "Admitted" if one.checks_ready else "UnsatisfiedAdmissionChecks"
        write(one.info.key, ADMITTED, one.checks_ready, reason)
    for gone in result.preempted:
        write(gone.target.key, EVICTED, True, "Preempted")
        write(gone.target.key, PREEMPTED, True, str(gone.reason))
    for waiting in result.pending:
        write(waiting.info.key, QUOTA_RESERVED, False, str(waiting.reason))
        write(waiting.info.key, ADMITTED, False, "NoReservation")
    return by_key


def _reasons(conditions: Any) -> dict[str, tuple[bool, str]]:
    return {one.type: (one.status, one.reason) for one in conditions if one.type in _CONDITIONS}


# -- what was recorded ----------------------------------------------------------------------------


def _recorded_admissions(expected: Case) -> dict[str, object]:
    return {
        key: (
            given["clusterQueue"],
            [
                (
                    one["name"],
                    one.get("count", 1),
                    one.get("flavors") or {},
                    {
                        name: parse_amount(name, amount)
                        for name, amount in (one.get("resourceUsage") or {}).items()
                    },
                )
                for one in given.get("podSetAssignments") or ()
            ],
        )
        for key, given in (expected.get("assignments") or {}).items()
    }


def _recorded_events(expected: Case) -> Counter[tuple[str, str]]:
    return Counter(
        (f"{event['Key']['Namespace']}/{event['Key']['Name']}", event["Reason"])
        for event in expected.get("events") or ()
    )


def _sorted(by_queue: Mapping[str, list[str]] | None) -> dict[str, list[str]]:
    return {name: sorted(keys) for name, keys in (by_queue or {}).items()}
