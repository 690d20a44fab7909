"""Parts of nodes and pods that count for topologies, and the rule for a node that has failed."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.node_context import NodeContext, facts_of, slim_node, slim_pod
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.reconcilers.failing_nodes import FailingNodes
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.topology.ground import Ground, Part

HOST = "kubernetes.io/hostname"


def node(name: str, ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "labels": {HOST: f"host-{name}"},
            "annotations": {"large": "x"},
        },
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "1500m", "memory": "1Ki", "pods": "10"},
            "images": ["many"],
            "conditions": [{"type": "DiskPressure"}, {"type": "Ready", "status": ready}],
        },
    }


def test_facts_of_a_node() -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}]
    slim = slim_node(node("a", taints=taints, podCIDR="x"))
    assert "images" not in slim["status"]
    assert "annotations" not in slim["metadata"]
    facts = facts_of(slim)
    assert facts.allocatable == {"cpu": 1500, "memory": 1024, "pods": 10}
    assert facts.host == "host-a"
    assert facts.ready
    assert [one.key for one in facts.taints] == ["k"]
    assert not facts_of(slim_node(node("a", ready="Unknown"))).ready
    assert not facts_of(slim_node(node("a", unschedulable=True))).ready


def pod(name: str, workload: str = "", on: str = "a") -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"}
    if workload:
        head["labels"] = {"sluice.dev/topology": "true", "more": "x"}
        head["annotations"] = {"kueue.x-k8s.io/workload": workload, "more": "x"}
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    return slim_pod({"metadata": head, "spec": {"nodeName": on, "containers": [container]}})


def test_pods_that_a_workload_was_given_places_for_are_not_counted_again() -> None:
    world = ObjectCache()
    heard: list[None] = []
    around = NodeContext(world, lambda: heard.append(None))
    around.node("a", slim_node(node("a")))
    around.pod("n/plain", pod("plain"))
    around.pod("n/placed", pod("placed", "w"))
    assert around.ground.others_on("a") == {"cpu": 2000, "pods": 2}, "nothing is known of w"
    document: dict[str, Any] = {
        "metadata": {"name": "w", "namespace": "n", "uid": "w", "resourceVersion": "1"},
        "status": {
            "admission": {"podSetAssignments": [{"topologyAssignment": {"levels": [HOST]}}]}
        },
    }
    world.take(WORKLOADS, document)
    around.workload("n/w")
    assert around.ground.others_on("a") == {"cpu": 1000, "pods": 1}
    world.drop(WORKLOADS, "n/w", "w")
    around.workload("n/w")
    assert around.ground.others_on("a") == {"cpu": 2000, "pods": 2}, "it still runs"
    told = len(heard)
    around.node("a", slim_node(node("a")))
    around.pod("n/plain", pod("plain"))
    assert len(heard) == told, "nothing has changed"
    around.pod("n/placed", None)
    around.pod("n/plain", None)
    assert around.ground.others_on("a") == {}
    around.workload("n/w")
    around.node("a", None)
    assert around.ground.nodes == {}


def test_when_a_node_has_failed() -> None:
    failing = FailingNodes()
    failing.seen("a", slim_node(node("a")), 0.0)
    failing.seen("b", slim_node(node("b")), 0.0)
    failing.seen("a", slim_node(node("a", ready="Unknown")), 10.0)
    failing.seen("a", slim_node(node("a", ready="False")), 30.0)
    assert failing.due(39.9) == []
    assert failing.due(40.0) == ["host-a"]
    assert failing.due(41.0) == [], "once"
    assert failing.failed == {"host-a"}
    failing.seen("b", None, 41.0)
    assert failing.due(41.0) == ["host-b"], "one that is gone fails at once"
    failing.seen("a", slim_node(node("a")), 50.0)
    assert failing.failed == {"host-b"}
    failing.seen("a", slim_node(node("a", ready="False")), 60.0)
    failing.seen("a", slim_node(node("a")), 61.0)
    assert failing.due(1000.0) == [], "it was back in time"


def test_a_node_that_was_deleted_unseen_fails_unless_it_comes_back() -> None:
    ground = Ground()
    ground.put_node(facts_of(slim_node(node("a"))))
    held = Part("host-a", 1, {"cpu": 1}), Part("host-b", 1, {"cpu": 1}), Part("host-c", 1, {})
    ground.hold(WorkloadKey("n/w"), (*held, Part(("t", ("r",)), 1, {"cpu": 1})))
    assert sorted(ground.lost_hosts()) == ["host-b", "host-c"]
    failing = FailingNodes()
    for host in ground.lost_hosts():
        failing.missing(host, 100.0)
    failing.seen("c", slim_node(node("c")), 120.0)
    assert failing.due(129.9) == []
    assert failing.due(130.0) == ["host-b"]


def test_what_pods_ask_for_nothing_of_is_given_back_by_nobody() -> None:
    """The end of one of two such pods took the place of the other's amount with it."""
    ground = Ground()
    for name in ("n/a", "n/b"):
        ground.put_pod(name, "a", {"cpu": 1, "nvidia.com/gpucores": 0})
    assert ground.drop_pod("n/a")
    assert ground.drop_pod("n/b")
    assert ground.others_on("a") == {}
