"""Topologies in mode kubernetes: nodes as documents, pods made as a Job's controller makes them; domains chosen, gates lifted with
node selectors, nodes that fail replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    apply,
    condition,
    define,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    serving,
    suspended,
    workload_of,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
HOST = "kubernetes.io/hostname"
BLOCK, RACK = "example.com/block", "example.com/rack"
PODS = "/api/v1/namespaces/default/pods"
NODES = {"b1": {"r1": ("n1", "n2"), "r2": ("n3", "n4")}, "b2": {"r3": ("n5", "n6")}}
"""Blocks, racks, nodes of 4 CPUs."""
RACK_OF = {
    node: rack for racks in NODES.values() for rack, nodes in racks.items() for node in nodes
}


def node(plane: ControlPlane, name: str, block: str, rack: str, cpu: str = "4") -> None:
    labels = {HOST: name, BLOCK: block, RACK: rack, "pool": "tas"}
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    apply(plane, made)
    # What the controller-manager takes off a node that is ready.
    plane.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    set_ready(plane, name, True, cpu)


def set_ready(plane: ControlPlane, name: str, ready: bool, cpu: str = "4") -> None:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "2"}
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "reason": "r"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    define(control_plane)
    for block, racks in NODES.items():
        for rack, names in racks.items():
            for name in names:
                node(control_plane, name, block, rack)
    other = {"name": "else", "labels": {HOST: "else", "pool": "other"}}
    apply(control_plane, {"apiVersion": "v1", "kind": "Node", "metadata": other})
    with serving(control_plane, tmp_path_factory.mktemp("queue")) as replica:
        until("it decides", replica.leads, 60)
        flavor = {"nodeLabels": {"pool": "tas"}, "topologyName": "racks"}
        resources = [{"name": one, "nominalQuota": 100} for one in ("cpu", "nvidia.com/gpu")]
        groups = [
            {
                "coveredResources": ["cpu", "nvidia.com/gpu"],
                "flavors": [{"name": "tas", "resources": resources}],
            }
        ]
        spec = {
            "resourceGroups": groups,
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        levels = {"levels": [{"nodeLabel": one} for one in (BLOCK, RACK, HOST)]}
        apply(
            control_plane,
            of_kueue("Topology", "racks", levels),
            of_kueue("ResourceFlavor", "tas", flavor),
            of_kueue("ClusterQueue", "tas", spec),
            door("tas", "tas"),
        )
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
        apply(control_plane, {**kind, "metadata": {"name": "high"}, "value": 100})
        yield control_plane


@pytest.fixture(autouse=True)
def over(queue: ControlPlane) -> Iterator[None]:
    """Each test begins with empty nodes."""
    yield
    for one in queue.api.get(JOBS)["items"]:
        queue.api.delete(f"{JOBS}/{one['metadata']['name']}")
        patch = {"metadata": {"finalizers": None}}
        if queue.api.find(f"{JOBS}/{one['metadata']['name']}") is not None:
            queue.api.patch(f"{JOBS}/{one['metadata']['name']}", patch)
    for one in queue.api.get(PODS)["items"]:
        queue.api.delete(f"{PODS}/{one['metadata']['name']}", grace_s=0)
    until("no workload is left", lambda: not queue.api.get(f"{KUEUE}/workloads")["items"], 60)


def wishing(name: str, pods: int, cpu: str = "1", **annotations: str) -> dict[str, Any]:
    """Annotations without their prefix and with _ for -."""
    made = job(name, "tas", cpu, pods)
    given = {f"kueue.x-k8s.io/podset-{key.replace('_', '-')}": v for key, v in annotations.items()}
    made["spec"]["template"]["metadata"] = {"annotations": given}
    made["spec"]["completionMode"] = "Indexed"
    return made


def start(plane: ControlPlane, document: dict[str, Any]) -> dict[str, int]:
    """The nodes it was given, and how many pods each."""
    plane.api.create("jobs", "default", document)
    name = document["metadata"]["name"]
    until(f"{name} is started", lambda: not suspended(plane, name), 60)
    return given(plane, name)


def given(plane: ControlPlane, name: str) -> dict[str, int]:
    workload = workload_of(plane, name)
    assert workload is not None
    found: Counter[str] = Counter()
    for one in workload["status"]["admission"]["podSetAssignments"]:
        topology = one["topologyAssignment"]
        assert topology["levels"] == [HOST]
        for part in topology["slices"]:
            counts, (values,) = part["podCounts"], part["valuesPerLevel"]
            number = part["domainCount"]
            each = values.get("individual") or {}
            names = [values.get("universal", "")] * number
            if each:
                ends = each.get("prefix", ""), each.get("suffix", "")
                names = [f"{ends[0]}{root}{ends[1]}" for root in each["roots"]]
            every = counts.get("individual") or [counts.get("universal")] * number
            for host, count in zip(names, every, strict=True):
                found[host] += count
    return dict(found)


def racks(found: dict[str, int]) -> set[str]:
    return {RACK_OF[host] for host in found}


def make_pods(plane: ControlPlane, name: str, numbers: list[int]) -> None:
    """Create the pods as the Job's controller does."""
    document = plane.api.get(f"{JOBS}/{name}")
    template = document["spec"]["template"]
    for number in numbers:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": document["metadata"]["uid"],
            "controller": True,
        }
        index = str(number)
        labels = {
            **template["metadata"].get("labels", {}),
            "batch.kubernetes.io/job-completion-index": index,
        }
        head = {
            **template["metadata"],
            "name": f"{name}-{number}",
            "labels": labels,
            "ownerReferences": [owner],
        }
        plane.api.create("pods", "default", {"metadata": head, "spec": template["spec"]})


def selector(plane: ControlPlane, name: str) -> str | None:
    """The node that a pod is bound to; None: it waits for its place."""
    spec = plane.api.get(f"{PODS}/{name}")["spec"]
    if any(one["name"] == "kueue.x-k8s.io/topology" for one in spec.get("schedulingGates", ())):
        return None
    return str(spec["nodeSelector"][HOST])


def test_required_is_one_rack_and_each_pod_is_told_its_node(queue: ControlPlane) -> None:
    found = start(queue, wishing("one-rack", 6, required_topology=RACK))
    assert len(racks(found)) == 1
    assert sum(found.values()) == 6
    template = queue.api.get(f"{JOBS}/one-rack")["spec"]["template"]
    assert template["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    make_pods(queue, "one-rack", [0, 1, 2, 3, 4, 5])
    until("all are let go", lambda: all(selector(queue, f"one-rack-{n}") for n in range(6)), 60)
    hosts = [selector(queue, f"one-rack-{number}") for number in range(6)]
    assert Counter(hosts) == Counter(found)
    assert hosts == sorted(map(str, hosts)), "neighbours by number are neighbours on nodes"
    queue.api.delete(f"{PODS}/one-rack-5", grace_s=0)
    make_pods(queue, "one-rack", [5])
    until("one made anew has its place again", lambda: selector(queue, "one-rack-5"), 60)
    assert selector(queue, "one-rack-5") == hosts[5]


def test_what_no_rack_holds_waits_and_says_why(queue: ControlPlane) -> None:
    queue.api.create("jobs", "default", wishing("too-many", 9, required_topology=RACK))

    def why() -> dict[str, Any]:
        return condition(workload_of(queue, "too-many"), "QuotaReserved")

    until("it says why", lambda: why().get("reason") == "TopologyPlacementFailed", 60)
    assert 'topology "racks" allows to fit only 8 out of 9 pod(s)' in why()["message"]
    assert "1 not of the flavor" in why()["message"]
    assert suspended(queue, "too-many")


def test_preferred_takes_the_next_wider_level(queue: ControlPlane) -> None:
    found = start(queue, wishing("wider", 10, preferred_topology=RACK))
    assert racks(found) == {"r1", "r2"}, "one block, two racks of it"


def test_slices_stay_together(queue: ControlPlane) -> None:
    first = start(queue, wishing("in-the-way", 1, "3", required_topology=HOST))
    wish = {
        "preferred_topology": BLOCK,
        "slice_required_topology": HOST,
        "slice_size": "2",
    }
    found = start(queue, wishing("pairs", 8, **wish))
    assert sum(found.values()) == 8
    assert all(count % 2 == 0 for count in found.values())
    assert not set(first) & set(found), "one CPU is left there, and a slice takes two"


def test_what_other_pods_hold_is_not_free(queue: ControlPlane) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}
        spec = {"nodeName": name, "containers": [container]}
        head = {"name": f"other-{name}"}
        queue.api.create("pods", "default", {"metadata": head, "spec": spec})
    made = wishing("beside", 8, required_topology=BLOCK)

    def only_there() -> bool:
        queue.api.create("jobs", "default", made)
        until("it is started", lambda: not suspended(queue, "beside"), 60)
        return True

    assert only_there()
    assert racks(given(queue, "beside")) == {"r3"}
    queue.api.create("jobs", "default", wishing("waits", 3, "2", required_topology=BLOCK))
    reason = "TopologyPlacementFailed"
    until(
        "the next waits",
        lambda: condition(workload_of(queue, "waits"), "QuotaReserved").get("reason") == reason,
        60,
    )
    for name in ("n1", "n2", "n3"):
        queue.api.delete(f"{PODS}/other-{name}", grace_s=0)
    until("until others have gone", lambda: not suspended(queue, "waits"), 60)


def test_gpus_are_counted_like_anything_else(queue: ControlPlane) -> None:
    made = wishing("gpus", 4, required_topology=RACK)
    resources = {"cpu": "1", "nvidia.com/gpu": "1"}
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": resources, "limits": {"nvidia.com/gpu": "1"}}
    found = start(queue, made)
    assert set(found.values()) == {2}


def test_a_higher_priority_preempts_for_room(queue: ControlPlane) -> None:
    for number in range(3):
        start(queue, wishing(f"low-{number}", 8, required_topology=RACK))
    high = wishing("high", 8, required_topology=RACK)
    high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    queue.api.create("jobs", "default", high)
    until("it is started", lambda: not suspended(queue, "high"), 60)
    stopped = [number for number in range(3) if suspended(queue, f"low-{number}")]
    assert len(stopped) == 1, "one rack is enough, and there is quota for all"
    (number,) = stopped
    workload = workload_of(queue, f"low-{number}")
    assert condition(workload, "Preempted")["reason"] == "InClusterQueue"
    assert len(racks(given(queue, "high"))) == 1
    finish(queue, "high")
    until("then it is its turn", lambda: not suspended(queue, f"low-{number}"), 60)


def test_a_node_that_is_gone_is_replaced_within_its_rack(queue: ControlPlane) -> None:
    found = start(queue, wishing("lasting", 2, "3", required_topology=RACK))
    make_pods(queue, "lasting", [0, 1])
    until("both are let go", lambda: all(selector(queue, f"lasting-{n}") for n in (0, 1)), 60)
    start(queue, wishing("smaller", 1, required_topology=HOST))
    lost = str(selector(queue, "lasting-1"))
    block = next(b for b, every in NODES.items() if RACK_OF[lost] in every)
    node(queue, "spare", block, RACK_OF[lost])
    queue.api.patch("/api/v1/nodes/spare", {"metadata": {"labels": {"spare": "yes"}}})
    RACK_OF["spare"] = RACK_OF[lost]
    until("the spare one is known", lambda: knows_spare(queue), 60)
    try:
        queue.api.delete(f"/api/v1/nodes/{lost}")
        until("it has another", lambda: lost not in given(queue, "lasting"), 60)
        after = given(queue, "lasting")
        assert after == {**{h: n for h, n in found.items() if h != lost}, "spare": 1}
        assert is_true(workload_of(queue, "lasting"), "Admitted")
        queue.api.delete(f"{PODS}/lasting-1", grace_s=0)
        make_pods(queue, "lasting", [1])
        until("its pod goes there", lambda: selector(queue, "lasting-1") == "spare", 60)
    finally:
        node(queue, lost, block, RACK_OF[lost])
        queue.api.delete("/api/v1/nodes/spare")
        del RACK_OF["spare"]


def test_several_nodes_that_fail_at_once_are_each_replaced(queue: ControlPlane) -> None:
    found = start(queue, wishing("wide", 3, "3", preferred_topology=BLOCK))
    assert len(found) == 3
    lost = sorted(found)[:2]
    kept = sorted(found)[2]
    blocks = {one: next(b for b, every in NODES.items() if RACK_OF[one] in every) for one in lost}
    try:
        for one in lost:
            queue.api.delete(f"/api/v1/nodes/{one}")
        until("it has others", lambda: not set(lost) & set(given(queue, "wide")), 60)
        after = given(queue, "wide")
        assert (len(after), after[kept]) == (3, 1)
        workload = workload_of(queue, "wide")
        assert workload is not None
        assert is_true(workload, "Admitted")
        assert "schedulingStats" not in workload["status"], "it was not evicted meanwhile"
    finally:
        for one in lost:
            node(queue, one, blocks[one], RACK_OF[one])


def knows_spare(queue: ControlPlane) -> bool:
    """A probe that only the spare node can take."""
    made = wishing("probe", 1, "4", required_topology=HOST)
    made["spec"]["template"]["spec"]["nodeSelector"] = {"spare": "yes"}
    if queue.api.find(f"{JOBS}/probe") is None:
        queue.api.create("jobs", "default", made)
    if suspended(queue, "probe"):
        return False
    queue.api.delete(f"{JOBS}/probe")
    until("it is gone", lambda: workload_of(queue, "probe") is None, 60)
    return True


def test_without_a_replacement_it_is_evicted(queue: ControlPlane) -> None:
    start(queue, wishing("whole-rack", 2, "4", required_topology=RACK))
    (lost, _) = sorted(given(queue, "whole-rack"))
    block = next(b for b, every in NODES.items() if RACK_OF[lost] in every)
    try:
        queue.api.delete(f"/api/v1/nodes/{lost}")
        until("it is evicted, and starts elsewhere", lambda: moved(queue, lost), 60)
    finally:
        node(queue, lost, block, RACK_OF[lost])
    workload = workload_of(queue, "whole-rack")
    assert workload is not None
    (stats,) = workload["status"]["schedulingStats"]["evictions"]
    assert (stats["reason"], stats["count"]) == ("NodeFailures", 1)


def moved(queue: ControlPlane, lost: str) -> bool:
    workload = workload_of(queue, "whole-rack")
    if not (workload or {}).get("status", {}).get("admission"):
        return False
    found = given(queue, "whole-rack")
    return lost not in found and len(racks(found)) == 1 and not suspended(queue, "whole-rack")


def test_a_pod_without_a_job_is_told_its_node_as_it_is_let_go(queue: ControlPlane) -> None:
    head = {
        "name": "alone",
        "labels": {"kueue.x-k8s.io/queue-name": "tas", "kueue.x-k8s.io/managed": "true"},
        "annotations": {"kueue.x-k8s.io/podset-required-topology": HOST},
        "finalizers": ["kueue.x-k8s.io/managed"],
    }
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}}
    gate = {"name": "kueue.x-k8s.io/admission"}
    queue.api.create(
        "pods",
        "default",
        {"metadata": head, "spec": {"containers": [container], "schedulingGates": [gate]}},
    )

    def spec() -> dict[str, Any]:
        return dict(queue.api.get(f"{PODS}/alone")["spec"])

    until("it is let go", lambda: not spec().get("schedulingGates"), 60)
    assert spec()["nodeSelector"][HOST] in RACK_OF
