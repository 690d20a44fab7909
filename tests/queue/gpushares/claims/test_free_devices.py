"""Quota is reserved where nodes have free devices: what claims hold, what pods that are on their way will hold, and
what preemption would free."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.cache.pod_scheduling import PodScheduling, read_scheduled
from queuecontroller.gpushares.claims.in_use import read_claim
from queuecontroller.gpushares.claims.room import AllocatedClaims, ClaimedDevices
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME, Ground, NodeFacts
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.reflector import Changed, Removed, Synced
from sluicecommon.kubernetes.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)

AT = "2026-11-22T10:00:00Z"
CARDS = "example.com/cards"
DRIVER = "example.com"
API = "kueue.x-k8s.io/v1beta2"


def kueue(kind: str, name: str, namespace: str = "", **spec: Any) -> dict[str, Any]:
    head = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API, "kind": kind, "metadata": head, "spec": spec}


def objects(topology: bool) -> list[dict[str, Any]]:
    mapping = {"name": CARDS, "deviceClassNames": ["cards", "small"]}
    quotas = [{"name": name, "nominalQuota": "1000"} for name in ("cpu", CARDS)]
    group = {"coveredResources": ["cpu", CARDS], "flavors": [{"name": "f", "resources": quotas}]}
    flavor: dict[str, Any] = {"topologyName": "t", "nodeLabels": {"gpu": "yes"}} if topology else {}
    return [
        {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "resources": {"deviceClassMappings": [mapping]},
        },
        kueue("Topology", "t", levels=[{"nodeLabel": "rack"}, {"nodeLabel": HOSTNAME}]),
        kueue("ResourceFlavor", "f", **flavor),
        kueue(
            "ClusterQueue",
            "q",
            namespaceSelector={},
            resourceGroups=[group],
            preemption={"withinClusterQueue": "LowerPriority"},
        ),
        kueue("LocalQueue", "q", "team", clusterQueue="q"),
    ]


def device(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"size": {"int": 1}}, **more}


def shared(name: str, memory: str = "80Gi") -> dict[str, Any]:
    return device(name, allowMultipleAllocations=True, capacity={"memory": {"value": memory}})


class World:
    """A queue with mode kubernetes' cache and book, and as many cards on nodes as are named."""

    def __init__(self, topology: bool = False, leader: World | None = None, **nodes: int) -> None:
        self.preempted: list[WorkloadKey] = []
        self.reasons: dict[WorkloadKey, tuple[PendingReason, str]] = {}
        """Reasons why workloads wait, as last reported."""
        self.versions: Iterator[int] = leader.versions if leader else itertools.count(1)
        self.cache: ObjectCache = leader.cache if leader else ObjectCache()
        self.claims: AllocatedClaims = leader.claims if leader else AllocatedClaims()
        self.pods: PodScheduling = leader.pods if leader else PodScheduling()
        self.ground: Ground = leader.ground if leader else Ground()
        self.claimed = ClaimedDevices(self.claims, self.pods.pods_of, self.pods.pod)
        self.pods.on_end = self.claimed.pod_ended
        self.book = Book(BookSettings(), False, lambda: "0", self.ground, claimed=self.claimed)
        self.book.restore(Snapshot("", 1, 0), 0)
        self.book.apply(objects(topology), False, 0)
        self.mirror = Mirror(self.book, self.cache)
        if leader is not None:
            self.mirror.begin(1)
            return
        self.claims.changed(Synced())
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        for name in ("cards", "small"):
            spec = {"selectors": [selector], "extendedResourceName": f"{DRIVER}/{name}"}
            self.take(DEVICE_CLASSES, "", name, spec=spec)
        for node, count in nodes.items():
            self.node(node, *(device(f"d{at}") for at in range(count)))

    def take(self, kind: Any, namespace: str, name: str, **content: Any) -> None:
        version = str(next(self.versions))
        head = {"name": name, "uid": name, "resourceVersion": version}
        assert self.cache.take(
            kind,
            {"metadata": {**head, **({"namespace": namespace} if namespace else {})}, **content},
        )
        self.mirror.count_claims_again(1)

    def node(self, name: str, *devices: dict[str, Any], **spec: Any) -> None:
        labels = {HOSTNAME: name, "rack": "r", "gpu": "yes"}
        self.ground.put_node(NodeFacts(name, labels, {"cpu": 8000, "pods": 50}))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        content = {
            "driver": DRIVER,
            "nodeName": name,
            "pool": pool,
            "devices": list(devices),
            **spec,
        }
        self.take(RESOURCE_SLICES, "", name, spec=content)

    def submit(
        self,
        name: str,
        *requests: dict[str, Any],
        pods: int = 1,
        priority: int = 0,
        cpu: str = "1",
        cycles: int = 5,
    ) -> str:
        """Submit a Workload of which each pod has a claim with these requests; returns the reason why it waits."""
        made = [{"name": f"r{at}", **one} for at, one in enumerate(requests)]
        spec = {"spec": {"devices": {"requests": made}}}
        self.take(RESOURCE_CLAIM_TEMPLATES, "team", name, spec=spec)
        self.put(name, self.document(name, pods, priority, cpu))
        return self.why(name, cycles)

    def document(self, name: str, pods: int, priority: int, cpu: str) -> dict[str, Any]:
        spec = {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            "resourceClaims": [{"name": "a", "resourceClaimTemplateName": name}],
        }
        sets = [{"name": "main", "count": pods, "template": {"spec": spec}}]
        version = str(next(self.versions))
        head = {"name": name, "namespace": "team", "uid": name, "creationTimestamp": AT}
        return {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {**head, "generation": 1, "resourceVersion": version},
            "spec": {"queueName": "q", "podSets": sets, "priority": priority},
            "status": {},
        }

    def put(self, name: str, document: dict[str, Any]) -> None:
        assert self.cache.take(WORKLOADS, document)
        self.mirror.workload(f"team/{name}", document, 1)

    def why(self, name: str, cycles: int = 5) -> str:
        """The reason why it waits, after the cycles; empty: it holds quota."""
        for _ in range(cycles):
            result = self.book.workloads.cycle(1)
            self.preempted += [one.target.key for one in result.preempted]
            for one in result.pending:
                self.reasons[one.info.key] = (one.reason, one.message)
        record = self.book.workloads.records[WorkloadKey(f"team/{name}")]
        if record.workload.admission is not None:
            return ""
        self.reason, message = self.reasons[record.key]
        return message

    def pod(self, name: str, workload: str, node: str, phase: str = "Running") -> None:
        head = {
            "annotations": {"kueue.x-k8s.io/workload": workload},
            "labels": {"kueue.x-k8s.io/podset": "main"},
        }
        status = {"phase": phase}
        read = read_scheduled({"metadata": head, "spec": {"nodeName": node}, "status": status})
        self.pods.changed(Changed(Item(f"team/{name}", "1", read)))

    def claim(self, name: str, pod: str, *devices: tuple[str, str], **result: Any) -> None:
        """A claim of a pod for devices by pool and name; none: it is not allocated."""
        results = [
            {"driver": DRIVER, "pool": pool, "device": one, **result} for pool, one in devices
        ]
        status = {"allocation": {"devices": {"results": results}}} if devices else {}
        owner = {"kind": "Pod", "name": pod, "uid": pod}
        head = {"name": name, "namespace": "team", "ownerReferences": [owner]}
        read = read_claim({"metadata": head, "status": status})
        self.claims.changed(Changed(Item(f"team/{name}", "1", read)))

    def gone(self, pod: str) -> None:
        self.pods.changed(Removed(f"team/{pod}"))

    def end(self, claim: str) -> None:
        self.claims.changed(Removed(f"team/{claim}"))

    def finish(self, name: str) -> None:
        assert self.cache.drop(WORKLOADS, f"team/{name}", name)
        self.mirror.workload(f"team/{name}", None, 1)


def exactly(name: str = "cards", count: int = 1, **more: Any) -> dict[str, Any]:
    return {"exactly": {"deviceClassName": name, "count": count, **more}}


both = pytest.mark.parametrize("topology", [False, True], ids=["without a topology", "by topology"])


@both
def test_devices_of_claims_are_not_free(topology: bool) -> None:
    world = World(topology, a=2)
    world.claim("other", "plain", ("a", "d0"))
    why = world.submit("one", exactly(count=2))
    assert "devices for the claim" in why
    assert "a" in world.ground.nodes
    world.end("other")
    assert world.why("one") == ""


@both
def test_what_was_admitted_counts_until_its_claims_do(topology: bool) -> None:
    world = World(topology, a=2)
    assert world.submit("one", exactly()) == ""
    assert world.submit("two", exactly()) == ""
    assert world.submit("three", exactly()) != ""
    world.pod("one-0", "one", "a")
    world.claim("c1", "one-0", ("a", "d1"))
    assert world.why("three") != "", "the claim holds what was reserved, not one more and not none"
    world.pod("two-0", "two", "a")
    world.claim("c2", "two-0", ("a", "d0"))
    assert world.why("three") != ""
    world.end("c1")
    assert world.why("three") == "", "its pod has ended"
    assert world.submit("four", exactly()) != ""


@both
def test_a_claim_that_is_not_allocated_takes_nothing(topology: bool) -> None:
    world = World(topology, a=1)
    world.claim("waits", "plain")
    assert world.submit("one", exactly()) == ""


@both
def test_each_pod_needs_its_devices_on_one_node(topology: bool) -> None:
    world = World(topology, a=2, b=1, c=1)
    assert world.submit("three", exactly(count=2), exactly()) != ""
    assert world.submit("two", exactly(count=2), pods=2) != "", "only one node has two"
    assert world.submit("four", exactly(), pods=4) == ""
    assert world.submit("more", exactly()) != ""


@both
def test_extended_resources_need_free_devices_of_their_class(topology: bool) -> None:
    world = World(topology, a=2, b=1)
    world.claim("other", "plain", ("b", "d0"))

    def submit(name: str, cards: int) -> str:
        made = world.document(name, pods=1, priority=0, cpu="1")
        pod = made["spec"]["podSets"][0]["template"]["spec"]
        del pod["resourceClaims"]
        pod["containers"][0]["resources"]["requests"][CARDS] = cards
        world.put(name, made)
        return world.why(name)

    assert "devices for the claim" in submit("three", 3)
    assert submit("two", 2) == "", "nodes have none but by claims"
    assert submit("one", 1) != "", "the two are reserved for it"
    world.pod("two-0", "two", "a")
    world.claim("c", "two-0", ("a", "d0"), ("a", "d1"))
    assert world.why("one") != ""
    world.end("other")
    assert world.why("one") == ""


def test_a_finished_workload_returns_what_was_reserved_for_it() -> None:
    world = World(a=1)
    assert world.submit("one", exactly()) == ""
    assert world.submit("two", exactly()) != ""
    world.finish("one")
    assert world.why("two") == ""


@both
def test_devices_are_preempted_with_the_workload_that_holds_them(topology: bool) -> None:
    world = World(topology, a=1, b=1)
    for name, node in (("low", "a"), ("mid", "b")):
        assert world.submit(name, exactly(), priority={"low": 1, "mid": 5}[name]) == ""
        world.pod(f"{name}-0", name, node)
        world.claim(name, f"{name}-0", (node, "d0"))
    # The quota of this book is free at once, that of a cluster once the pods are gone.
    assert world.submit("high", exactly(), priority=9, cycles=1) != ""
    assert world.preempted == ["team/low"]
    world.gone("low-0")
    assert world.why("high") == "", "the claim of a pod that is gone ends soon"
    assert world.preempted == ["team/low"], "and it does not need another victim"
    assert world.submit("lowest", exactly(), priority=0) != ""
    world.end("low")
    assert world.why("lowest") != "", "high has its device"
    assert world.why("low") != ""


def test_pods_that_end_return_their_devices_also_while_they_are_kept() -> None:
    world = World(a=1)
    assert world.submit("one", exactly()) == ""
    world.pod("one-0", "one", "a")
    world.claim("c", "one-0", ("a", "d0"))
    world.finish("one")
    assert world.submit("two", exactly()) != "", "its pod still runs"
    world.pod("one-0", "one", "a", "Failed")
    assert world.why("two") == ""
    world.claim("c", "one-0", ("a", "d0"))
    world.gone("one-0")
    world.end("c")
    assert world.submit("three", exactly()) != "", "nothing is returned twice"


def test_claims_of_others_are_not_preempted() -> None:
    world = World(a=1)
    world.claim("other", "plain", ("a", "d0"))
    assert "preemption" not in world.submit("high", exactly(), priority=9)
    assert world.reason == PendingReason.WAITING_FOR_PLACEMENT
    assert world.preempted == []


def test_any_of_several_alternatives_is_enough() -> None:
    world = World(a=1)
    one = {"deviceClassName": "cards", "count": 1, "name": "x"}
    assert world.submit("two", {"firstAvailable": [{**one, "count": 2}, one]}) == ""
    assert world.submit("more", {"firstAvailable": [{**one, "count": 2}, one]}) != ""


def test_access_for_administration_needs_nothing_free() -> None:
    world = World(a=1)
    world.claim("other", "plain", ("a", "d0"))
    assert world.submit("one", exactly(adminAccess=True)) == ""
    world.end("other")
    world.claim("admin", "watches", ("a", "d0"), adminAccess=True)
    assert world.submit("two", exactly()) == "", "nor does it take anything"


def test_requests_that_compete_for_one_device_are_tried_in_any_order() -> None:
    world = World()
    world.node("a", device("d0"), {**device("d1"), "attributes": {"size": {"int": 2}}})
    small = {"cel": {"expression": 'device.attributes["example.com"].size == 1'}}
    assert world.submit("one", exactly(), exactly(selectors=[small])) == ""
    assert world.submit("two", exactly(selectors=[small])) != ""


def test_shared_devices_have_the_capacity_that_claims_leave() -> None:
    world = World()
    world.node("a", shared("d0"), shared("d1", "40Gi"))

    def asks(amount: str) -> dict[str, Any]:
        return exactly(capacity={"requests": {"memory": amount}})

    world.claim("other", "plain", ("a", "d0"), consumedCapacity={"memory": "50Gi"})
    assert world.submit("large", asks("50Gi")) != ""
    assert world.submit("first", asks("30Gi")) == ""
    assert world.submit("second", asks("30Gi")) == ""
    assert world.submit("third", asks("20Gi")) != ""
    assert world.submit("small", asks("10Gi")) == ""
    world.end("other")
    assert world.why("large") == ""


def test_parts_of_a_card_have_the_counters_that_others_leave() -> None:
    world = World()
    parts = [
        device(
            name,
            consumesCounters=[{"counterSet": "card", "counters": {"slices": {"value": str(n)}}}],
        )
        for name, n in (("whole", 7), ("half", 4), ("part", 3), ("bit", 1))
    ]
    counters = [{"name": "card", "counters": {"slices": {"value": "7"}}}]
    world.node("a", *parts, sharedCounters=counters)
    world.claim("other", "plain", ("a", "half"))
    assert world.submit("one", exactly(count=2)) != "", "3 and 1 are more than the 3 that are left"
    assert world.submit("two", exactly()) == ""
    world.end("other")
    assert world.submit("three", exactly()) == ""


def test_pods_that_need_no_node_of_a_topology_still_need_one_that_takes_them() -> None:
    world = World(a=1, b=1)
    facts = world.ground.nodes["a"]
    world.ground.put_node(NodeFacts("a", facts.labels, facts.allocatable, ready=False))
    assert world.submit("one", exactly(), pods=2) != ""
    assert world.submit("two", exactly(), cpu="20") == "", "kube-scheduler looks after the rest"


def test_devices_with_the_taint_of_a_rule_are_for_claims_that_tolerate_it() -> None:
    world = World(a=1, b=1)
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    rule = {"deviceSelector": {"driver": DRIVER, "pool": "a"}, "taint": taint}
    world.take(DEVICE_TAINT_RULES, "", "rule", spec=rule)
    assert world.submit("two", exactly(), pods=2) != ""
    tolerated = [{"key": "maintenance", "operator": "Exists"}]
    assert world.submit("one", exactly(tolerations=tolerated), pods=2) == ""
    world.finish("one")
    world.cache.drop(DEVICE_TAINT_RULES, "rule", "rule")
    world.mirror.count_claims_again(1)
    assert world.why("two") == ""


def test_a_request_that_cannot_be_evaluated_is_left_to_kube_scheduler() -> None:
    world = World(a=1)
    unknown = {"cel": {"expression": "device.driver.matches('.*')"}}
    world.claim("other", "plain", ("a", "d0"))
    assert world.submit("one", exactly(selectors=[unknown])) == ""


def test_a_claim_of_more_devices_than_the_api_allows_is_never_searched_for() -> None:
    world = World(a=3)
    assert world.submit("one", exactly(count=1_000_000)) != ""
    assert world.submit("two", *([exactly(count=30)] * 30)) == "", (
        "too many to search for: kube-scheduler decides"
    )


def test_the_next_leader_reserves_for_pods_that_have_no_claims_yet() -> None:
    world = World(a=2, b=1)
    assert world.submit("one", exactly(), pods=2) == ""
    record = world.book.workloads.records[WorkloadKey("team/one")]
    assert record.workload.admission is not None
    document = world.document("one", 2, 0, "1")
    condition = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": AT,
    }
    given = {
        "name": "main",
        "count": 2,
        "flavors": {"cpu": "f", CARDS: "f"},
        "resourceUsage": {"cpu": "2", CARDS: "2"},
    }
    document["status"] = {
        "admission": {"clusterQueue": "q", "podSetAssignments": [given]},
        "conditions": [condition],
    }
    world.put("one", document)
    world.pod("one-0", "one", "a")
    world.claim("c1", "one-0", ("a", "d0"))
    later = World(leader=world)
    assert later.submit("two", exactly(), pods=2) != "", "one device is left"
    assert later.submit("three", exactly()) == ""
    later.claim("c1", "one-0")
    assert later.submit("four", exactly()) == "", "a pod that ended is not reserved for again"
