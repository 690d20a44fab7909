"""Runs one recorded search for preemption targets, with the flavors already chosen."""

from __future__ import annotations

from dataclasses import replace

from queuecontroller.kueueapi.manifests import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_workload,
)
from queuecontroller.scheduler.model.assignment import (
    Assignment,
    FlavorAssignment,
    Mode,
    PodSetResult,
)
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.preemption.classic import classic_targets
from queuecontroller.scheduler.preemption.fair import fair_targets
from queuecontroller.scheduler.preemption.search import Preemptor, order_key
from queuecontroller.scheduler.quota.cache import Cache
from tests.kit.conformance.case import Case, Comparison, Outcome
from tests.kit.conformance.flavor_cases import settings_of, values

NOW_NS = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z, the fixed clock of all recorded cases."""

_MODES = {"NoFit": Mode.NO_FIT, "Preempt": Mode.PREEMPT, "Fit": Mode.FIT}


def put_objects(cache: Cache, case: Case) -> None:
    for flavor in values(case.get("flavors")):
        cache.put_flavor(read_flavor(flavor))
    for cohort in values(case.get("cohorts")):
        cache.put_cohort(read_cohort(cohort))
    for queue in values(case.get("clusterQueues")):
        cache.put_cluster_queue(read_cluster_queue(queue))
    cache.settle()


def run_preemption_case(case: Case) -> Outcome:
    settings = _settings(case)
    cache = Cache()
    put_objects(cache, case)
    for manifest in case["admitted"]:
        workload = read_workload(manifest)
        assert workload.admission is not None
        queue = workload.admission.cluster_queue
        cache.add_workload(WorkloadInfo(workload, queue, cache.numbers))
    name = case["targetClusterQueue"]
    info = WorkloadInfo(read_workload(case["incoming"]), name, cache.numbers)
    assignment = _assignment(case, info, cache)
    usage_before = _usage(cache)
    preemptor = Preemptor(cache, settings, classic_targets, fair_targets, NOW_NS)
    targets = preemptor.targets(cache.queues[name], info, assignment)

    compare = Comparison()
    compare.same("usage after the search", usage_before, _usage(cache))
    _compare(compare, case["expected"], targets, cache, name)
    return compare.outcome()


def _settings(case: Case) -> EngineSettings:
    sharing = case.get("fairSharing")
    if not sharing:
        return settings_of(case)
    default = EngineSettings().fair_strategies
    named = sharing.get("preemptionStrategies")
    strategies = tuple(map(FairPreemptionStrategy, named)) if named else default
    return replace(settings_of(case), fair_sharing=True, fair_strategies=strategies)


def _assignment(case: Case, info: WorkloadInfo, cache: Cache) -> Assignment:
    """The given flavors with the requests of the incoming workload."""
    result = Assignment(mode=Mode.PREEMPT)
    by_name = {one.name: one for one in info.pod_sets}
    for given in case["assignment"]:
        pod_set = by_name[given["name"]].scaled_to(given.get("count", by_name[given["name"]].count))
        one = PodSetResult(pod_set.name, pod_set.count, pod_set.requests)
        for resource, got in given["flavors"].items():
            fr = cache.numbers.number(got["name"], resource)
            one.flavors[resource] = FlavorAssignment(got["name"], _MODES[got["mode"]], 0, fr=fr)
            result.usage[fr] = result.usage.get(fr, 0) + pod_set.requests.get(resource, 0)
        result.pod_sets.append(one)
    return result


def _usage(cache: Cache) -> dict[str, dict[int, int]]:
    roots = {queue.node.root.name: queue.node.root for queue in cache.queues.values()}
    return {
        node.name: {fr: used for fr, used in node.usage.items() if used}
        for root in roots.values()
        for node in root.subtree()
    }


def _compare(
    compare: Comparison, expected: Case, targets: list[Target], cache: Cache, queue: str
) -> None:
    ours = [(target.info.cluster_queue, target.info.key, str(target.reason)) for target in targets]
    if "wantSet" in expected:
        wanted = sorted(expected["wantSet"])
        compare.same("set of targets", wanted, sorted(f"{key}:{why}" for _, key, why in ours))
    if expected.get("targets") is None and "wantSet" in expected:
        return
    recorded = [
        (one["clusterQueue"], one["workload"], one["reason"])
        for one in expected.get("targets") or []
    ]
    compare.same("targets", sorted(recorded), sorted(ours))
    if sorted(recorded) != sorted(ours):
        return
    # Where Kueue's own order leaves workloads equal, which of them comes first is chance.
    ranks = {
        info.key: order_key(info, queue, NOW_NS)
        for state in cache.queues.values()
        for info in state.workloads.values()
    }
    compare.same(
        "order of targets",
        [ranks[key] for _, key, _ in recorded],
        [ranks[target.info.key] for target in targets],
    )
