"""Capacity that providers report, distributed over the quotas of ClusterQueues and Cohorts."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.cache.kinds import (
    CAPACITY_PROVIDERS,
    CLUSTER_QUEUES,
    COHORTS,
    ORCHESTRATORS,
)
from queuecontroller.cluster.cache.mirror import specified
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.reconcilers.dynamic_quota import (
    DynamicQuota,
    Orchestrated,
    orchestrate,
)
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.quota.proportional import distribute
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import Resource

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.fractions(min_value=0, max_value=100))


@given(capacity=st.integers(0, 1 << 62), weights=WEIGHTS)
def test_all_of_it_is_given_and_nothing_is_a_whole_unit_off(
    capacity: int, weights: dict[str, Fraction]
) -> None:
    found = distribute(capacity, weights)
    total = sum(weights.values(), Fraction(0))
    assert sum(found.values()) == (capacity if total else 0)
    for name, units in found.items():
        assert abs(units - (capacity * weights[name] / total if total else 0)) < 1


def test_the_largest_remainders_get_what_is_left() -> None:
    assert distribute(10, {one: Fraction(1) for one in "cab"}) == {"c": 3, "a": 4, "b": 3}
    assert distribute(600, {"a": Fraction(100), "b": Fraction(200)}) == {"a": 200, "b": 400}
    assert distribute(5, {"a": Fraction(1), "b": Fraction(3)}) == {"a": 1, "b": 4}


def groups(**quotas: Any) -> list[dict[str, Any]]:
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    flavors = [{"name": "f", "resources": resources}]
    return [{"coveredResources": list(quotas), "flavors": flavors}]


class Server:
    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.patches: list[Any] = []

    async def merge_patch(self, kind: Resource, name: str, patch: Any, *_: object) -> Any:
        self.patches.append(patch)
        found = dict(self.cache.get(kind, name) or {})
        head = {**found["metadata"], "resourceVersion": str(99 + len(self.patches))}
        return {**found, "metadata": head, "status": {**found["status"], **patch["status"]}}


class World:
    def __init__(self) -> None:
        self.cache = ObjectCache()
        self.made = 0

    def put(self, kind: Resource, name: str, spec: Any, status: Any = None) -> dict[str, Any]:
        self.made += 1
        head = {
            "name": name,
            "uid": f"u-{name}",
            "resourceVersion": str(self.made),
            "generation": 1,
            "creationTimestamp": f"2026-01-01T00:00:{self.made:02}Z",
        }
        document = {"kind": kind.kind, "metadata": head, "spec": spec, "status": status or {}}
        self.cache.take(kind, document)
        return document

    def queue(self, name: str, cohort: str = "", status: Any = None, **quotas: Any) -> None:
        spec = {"cohortName": cohort, "resourceGroups": groups(**quotas) if quotas else []}
        self.put(CLUSTER_QUEUES, name, spec, status)

    def cohort(self, name: str, parent: str = "", **quotas: Any) -> None:
        spec = {"parentName": parent, "resourceGroups": groups(**quotas) if quotas else []}
        self.put(COHORTS, name, spec)

    def provider(self, name: str, is_ready: bool = True, flavor: str = "f", **amounts: Any) -> None:
        spec = {"orchestratedFlavors": [{"name": "f"}], "controllerName": "example.com/own"}
        ready = {"type": "CapacitySynchronized", "status": str(is_ready)}
        capacity = {"flavors": [{"name": flavor, "resources": amounts}]}
        self.put(CAPACITY_PROVIDERS, name, spec, {"conditions": [ready], "capacity": capacity})

    def orchestrator(
        self, name: str, *providers: str, root: tuple[str, str] | None = None, factor: Any = 1
    ) -> dict[str, Any]:
        of = [{"name": one, "effectiveCapacityMultiplier": factor} for one in providers]
        spec: dict[str, Any] = {"capacityDiscovery": {"providers": of}}
        if root is not None:
            reference = {"kind": root[0], "name": root[1]}
            spec["capacityDistribution"] = {"subtreeRootQuotaRef": reference}
        return self.put(ORCHESTRATORS, name, spec)


def nominal(found: Orchestrated) -> dict[str, str]:
    return {
        f"{name} {quota['name']}": quota["nominalQuota"]
        for (_, name), quotas in found.quotas.items()
        for group in quotas["resourceGroups"]
        for quota in group["flavors"][0]["resources"]
    }


def reason(found: Orchestrated, kind: str = "Distributed") -> str:
    return found.conditions[kind][1]


def test_a_tree_gets_the_capacity_by_its_nominal_quotas() -> None:
    world = World()
    world.cohort("root", cpu=1)
    world.cohort("below", "root")
    world.queue("a", "root", cpu="500m", memory="1Gi")
    world.queue("b", "below", cpu="1500m", memory="3Gi")
    world.queue("c", "elsewhere", cpu=7)
    world.provider("p", cpu=5, memory="7Gi", other=1)
    world.provider("q", cpu="100m")
    made = world.orchestrator("o", "p", "q", root=("Cohort", "root"), factor="2")
    found = orchestrate(made, world.cache)
    assert found.capacity == {"f": {"cpu": "10200m", "memory": "14Gi", "other": "2"}}
    assert nominal(found) == {
        "root cpu": "3400m",
        "a cpu": "1700m",
        "a memory": "3584Mi",
        "b cpu": "5100m",
        "b memory": "10752Mi",
    }
    assert reason(found) == "QuotasDistributed"


def test_only_pairs_that_a_provider_reports_are_changed() -> None:
    world = World()
    world.queue("a", cpu=4, memory="auto", gpu=2)
    world.provider("p", cpu=9, memory="1Gi")
    world.provider("other", flavor="g", gpu=99)
    found = orchestrate(
        world.orchestrator("o", "p", "other", root=("ClusterQueue", "a")), world.cache
    )
    assert nominal(found) == {"a cpu": "9", "a memory": "auto", "a gpu": 2}


def test_a_queue_lends_no_more_than_it_has() -> None:
    world = World()
    world.queue("a", "c", cpu=4)
    spec = world.cache.get(CLUSTER_QUEUES, "a")
    assert spec is not None
    spec["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = "3"
    world.provider("p", cpu="2500m")
    found = orchestrate(world.orchestrator("o", "p", root=("ClusterQueue", "a")), world.cache)
    (quotas,) = found.quotas.values()
    (quota,) = quotas["resourceGroups"][0]["flavors"][0]["resources"]
    assert quota == {"name": "cpu", "nominalQuota": "2500m", "lendingLimit": "2500m"}


@pytest.mark.parametrize(
    ("is_ready", "named", "why"),
    [(False, "p", "ProviderNotReady"), (True, "absent", "Misconfigured")],
)
def test_without_capacity_nothing_is_distributed(is_ready: bool, named: str, why: str) -> None:
    world = World()
    world.queue("a", cpu=4)
    world.provider("p", is_ready, cpu=9)
    found = orchestrate(world.orchestrator("o", named, root=("ClusterQueue", "a")), world.cache)
    assert (found.capacity, dict(found.quotas)) == (None, {})
    assert reason(found, "EffectiveCapacityComputed") == why
    assert reason(found) == "EffectiveCapacityNotComputed"


def test_an_orchestrator_without_a_root_only_adds_up() -> None:
    world = World()
    world.provider("p", cpu=9)
    found = orchestrate(world.orchestrator("o", "p"), world.cache)
    assert found.capacity == {"f": {"cpu": "9"}}
    assert set(found.conditions) == {"EffectiveCapacityComputed"}


def test_of_two_orchestrators_the_one_above_and_the_older_distribute() -> None:
    world = World()
    world.cohort("root")
    world.queue("a", "root", cpu=4)
    world.provider("p", cpu=9)
    below = world.orchestrator("below", "p", root=("ClusterQueue", "a"))
    above = world.orchestrator("above", "p", root=("Cohort", "root"))
    younger = world.orchestrator("younger", "p", root=("Cohort", "root"))
    conflict = "ConflictingDynamicQuotaOrchestrator"
    assert reason(orchestrate(below, world.cache)) == conflict
    assert reason(orchestrate(above, world.cache)) == "QuotasDistributed"
    assert reason(orchestrate(younger, world.cache)) == conflict


@pytest.mark.parametrize(
    ("by", "why"),
    [
        (("DynamicQuotaOrchestrator", "o"), "QuotasDistributed"),
        (("DynamicQuotaOrchestrator", "deleted"), "QuotasDistributed"),
        (("DynamicQuotaOrchestrator", "elsewhere"), "EffectiveQuotasConflict"),
        (("Thing", "t"), "EffectiveQuotasConflict"),
    ],
)
def test_quotas_that_another_controller_sets_are_left_to_it(by: tuple[str, str], why: str) -> None:
    world = World()
    reference = {"apiGroup": "kueue.x-k8s.io", "kind": by[0], "name": by[1]}
    world.queue("a", status={"effectiveQuotas": {"orchestratorRef": reference}}, cpu=4)
    world.queue("b", cpu=4)
    world.provider("p", cpu=9)
    world.orchestrator("elsewhere", "p", root=("ClusterQueue", "b"))
    made = world.orchestrator("o", "p", root=("ClusterQueue", "a"))
    assert reason(orchestrate(made, world.cache)) == why


def test_a_root_that_does_not_exist_is_a_mistake() -> None:
    world = World()
    world.provider("p", cpu=9)
    made = world.orchestrator("o", "p", root=("Cohort", "absent"))
    assert reason(orchestrate(made, world.cache)) == "Misconfigured"


@pytest.mark.parametrize("is_on", [True, False])
def test_it_writes_what_differs_once(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuecontroller.cluster.reconcilers.dynamic_quota.COALESCED_S", 0.0)
    world = World()
    world.queue("a", cpu=4)
    world.provider("p", cpu=9)
    world.orchestrator("o", "p", root=("ClusterQueue", "a"))
    features = {Feature.DYNAMIC_QUOTA} if is_on else set()
    server = Server(world.cache)
    known: list[tuple[Resource, str]] = []
    world.cache.on_update = lambda kind, key, document: known.append((kind, key))
    made = DynamicQuota(world.cache, cast(ApiClient, server), lambda: True, lambda: 1, features)

    async def run() -> None:
        running = asyncio.create_task(made.work_queue.run())
        for _ in range(2):
            made.changed("a", None)
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(run())
    assert [list(one["status"]) for one in server.patches] == (
        [["effectiveQuotas"], ["conditions", "effectiveCapacity"]] if is_on else []
    )
    # The watch reports neither again: both answers are handled as it would be.
    assert known == ([(CLUSTER_QUEUES, "a"), (ORCHESTRATORS, "o")] if is_on else [])


def test_the_effective_quotas_count_with_the_gate_alone() -> None:
    world = World()
    quotas = {"resourceGroups": groups(cpu=9)}
    world.queue("a", status={"effectiveQuotas": quotas}, cpu=4)
    document = world.cache.get(CLUSTER_QUEUES, "a")
    assert document is not None
    assert specified(document)["spec"]["resourceGroups"] == groups(cpu=4)
    assert specified(document, dynamic_quota=True)["spec"]["resourceGroups"] == groups(cpu=9)
