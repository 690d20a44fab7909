"""Runs one recorded call of the flavor assigner: one workload, one queue, a scripted oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuecontroller.kueueapi.manifests import (
    read_cluster_queue,
    read_flavor,
    read_topology_levels,
    read_workload,
)
from queuecontroller.scheduler.flavors import FlavorAssigner, Price
from queuecontroller.scheduler.model.assignment import Assignment, Mode, PreemptionMode
from queuecontroller.scheduler.model.flavor_resources import FlavorResources, Fr
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import PodSetRequests, WorkloadInfo
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from sluicecommon.kubernetes.quantity import parse_amount
from tests.kit.conformance.case import Case, Comparison, Outcome

_POSSIBILITIES: Mapping[str, PreemptionMode] = {
    "NoCandidates": PreemptionMode.NO_CANDIDATES,
    "Preempt": PreemptionMode.PREEMPT,
    "Reclaim": PreemptionMode.RECLAIM,
}
_MODES = {Mode.NO_FIT: "NoFit", Mode.PREEMPT: "Preempt", Mode.FIT: "Fit"}


class ScriptedOracle:
    """Answers what the case says, by "flavor|resource"; else that own workloads can go."""

    def __init__(self, script: Mapping[str, Mapping[str, Any]], numbers: FlavorResources) -> None:
        self._numbers = numbers
        self._answers: dict[str, Price] = {
            pair: (_POSSIBILITIES[said["possibility"]], int(said.get("borrowAfter", 0)))
            for pair, said in script.items()
        }

    def simulate(self, queue: ClusterQueueState, info: WorkloadInfo, fr: Fr, amount: int) -> Price:
        pair = "|".join(self._numbers.pair(fr))
        return self._answers.get(pair, (PreemptionMode.PREEMPT, 0))


def settings_of(case: Case) -> EngineSettings:
    gates = case.get("featureGates") or {}
    return EngineSettings(
        fair_sharing=bool(case.get("enableFairSharing")),
        partial_admission=gates.get("PartialAdmission", True),
        reclaimable_pods=gates.get("ReclaimablePods", True),
        priority_sorting_within_cohort=gates.get("PrioritySortingWithinCohort", True),
        recompute_overlapping_targets=gates.get(
            "RecomputeAssignmentUponPreemptionTargetsOverlap", True
        ),
        preemption_gates=gates.get("MultiKueueOrchestratedPreemption", False),
        fair_reclaim_within_nominal=gates.get("FairSharingPreemptWithinNominal", True),
        fair_nominal_first=gates.get("FairSharingPrioritizeNonBorrowing", True),
        omitted_resource_is_unlimited=False,
    )


def run_flavor_case(case: Case) -> Outcome:
    settings = settings_of(case)
    cache = Cache()
    for flavor in values(case.get("flavors")):
        cache.put_flavor(read_flavor(flavor))
    for topology in case.get("topologies") or ():
        cache.put_topology(*read_topology_levels(topology))
    name = _put_queue(cache, case["clusterQueue"])
    other = case.get("secondaryClusterQueue")
    other_name = _put_queue(cache, other) if other else None
    cache.settle()
    _use(cache, name, case.get("clusterQueueUsage"))
    if other_name is not None:
        _use(cache, other_name, case.get("secondaryClusterQueueUsage"))

    workload = read_workload(
        {
            "metadata": {"name": "wl"},
            "spec": {"podSets": case["podSets"]},
            "status": {"reclaimablePods": case.get("reclaimablePods") or []},
        }
    )
    info = WorkloadInfo(workload, name, cache.numbers, reclaimable=settings.reclaimable_pods)
    if case.get("replacesWorkloadSlice"):
        info.replaces = _replaced(case["replacesWorkloadSlice"])
    oracle = ScriptedOracle(case.get("oracle") or {}, cache.numbers)
    assignment = FlavorAssigner(cache.queues[name], oracle, settings).assign(info)
    return _compare(case["expected"], assignment, cache.numbers)


def values(objects: object) -> list[object]:
    if isinstance(objects, Mapping):
        return list(objects.values())
    return list(objects) if isinstance(objects, list) else []


def _put_queue(cache: Cache, manifest: object) -> str:
    spec = read_cluster_queue(manifest)
    cache.put_cluster_queue(spec)
    return spec.name


def _use(cache: Cache, queue: str, usage: Mapping[str, int] | None) -> None:
    for pair, amount in (usage or {}).items():
        flavor, resource = pair.split("|", 1)
        cache.queues[queue].node.add(cache.numbers.number(flavor, resource), int(amount))


def _replaced(slice_: Mapping[str, Any]) -> list[PodSetRequests]:
    return [
        PodSetRequests(
            one["Name"],
            one["Count"],
            {request["name"]: request["value"] for request in one["Requests"]},
            flavors=one["Flavors"],
        )
        for one in slice_["TotalRequests"]
    ]


def _compare(expected: Case, ours: Assignment, numbers: FlavorResources) -> Outcome:
    compare = Comparison()
    compare.same("mode", expected["mode"], _MODES[ours.mode])
    recorded = expected["assignment"]
    compare.same("borrowing", recorded.get("borrowing", 0), ours.borrowing)
    usage = {"|".join(numbers.pair(fr)): amount for fr, amount in ours.usage.items()}
    compare.same("usage", recorded.get("usage") or {}, usage)
    if ours.mode is Mode.NO_FIT and recorded.get("noFitReason"):
        compare.same("no-fit reason", recorded["noFitReason"], str(ours.pending_reason))
    theirs = recorded.get("podSets") or []
    names = [one["name"] for one in theirs]
    compare.same("pod sets", names, [one.name for one in ours.pod_sets])
    for their, our in zip(theirs, ours.pod_sets, strict=False):
        what = f"pod set {our.name}"
        compare.same(f"{what} count", their.get("count"), our.count)
        compare.same(
            f"{what} flavors",
            _flavors(their),
            {
                name: (got.flavor, _MODES[got.mode], got.tried_index)
                for name, got in our.flavors.items()
            },
        )
        requests = {
            name: parse_amount(name, said) for name, said in (their.get("requests") or {}).items()
        }
        compare.same(f"{what} requests", requests, dict(our.requests))
    return compare.outcome()


def _flavors(pod_set: Case) -> dict[str, tuple[str, str, int]]:
    return {
        name: (got["name"], got["mode"], got.get("triedFlavorIdx", -1))
        for name, got in (pod_set.get("flavors") or {}).items()
    }
