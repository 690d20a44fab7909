"""Which pods a kubelet's Topology Manager admits, and on which NUMA nodes, by the node's NodeResourceTopology."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.gpushares.extender.numa import (
    MAX_ZONES,
    RESTRICTED,
    SINGLE,
    BadTopology,
    predict,
    read_topology,
    uses_of,
)
from queuecontroller.gpushares.extender.numa_nodes import NumaNodes

GPU = "nvidia.com/gpu"
NIC = "example.com/nic"


def topology(
    *zones: Mapping[str, object], policy: str = SINGLE, scope: str = "container"
) -> dict[str, Any]:
    """As NFD writes it. Each zone: free amounts by resource, or (most, free)."""

    def resource(name: str, amounts: object) -> dict[str, str]:
        most, free = amounts if isinstance(amounts, tuple) else (amounts, amounts)
        return {
            "name": name,
            "capacity": str(most),
            "allocatable": str(most),
            "available": str(free),
        }

    return {
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope},
        ],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [resource(name, one) for name, one in zone.items()],
            }
            for number, zone in enumerate(zones)
        ],
    }


def pod(
    *containers: Mapping[str, object],
    before: Mapping[str, object] | None = None,
    sidecar: Mapping[str, object] | None = None,
    name: str = "p",
    **spec: Any,
) -> dict[str, Any]:
    """Containers c0, c1 and so on with these limits, an init container, and one that stays."""
    first = [{"name": "first", "resources": {"limits": before}}] if before is not None else []
    if sidecar is not None:
        first.append({"name": "side", "resources": {"limits": sidecar}, "restartPolicy": "Always"})
    every = [{"name": f"c{at}", "resources": {"limits": one}} for at, one in enumerate(containers)]
    return {
        "metadata": {"name": name, "namespace": "t", "uid": f"u-{name}"},
        "spec": {"containers": every, "initContainers": first, **spec},
    }


def one(cpu: object, memory: str = "4Gi", **more: object) -> dict[str, object]:
    named = {"gpu": GPU, "nic": NIC}
    return {"cpu": cpu, "memory": memory, **{named[key]: value for key, value in more.items()}}


TWO = ({"cpu": 8, "memory": "64Gi", GPU: 4}, {"cpu": 8, "memory": "64Gi", GPU: 4})
FULL = ({"cpu": (8, 2), "memory": "64Gi", GPU: 4}, {"cpu": 8, "memory": "64Gi", GPU: 4})
APART = ({"cpu": 8, "memory": "64Gi", GPU: (4, 0)}, {"cpu": (8, 0), "memory": "64Gi", GPU: 4})
FOUR = tuple({"cpu": 4, GPU: 2} for _ in range(4))


@pytest.mark.parametrize(
    ("zones", "settings", "document", "numa_nodes"),
    [
        (TWO, {}, pod(one(4, gpu=1)), {"c0": {0}}),
        (FULL, {}, pod(one(4, gpu=1)), {"c0": {1}}),
        (APART, {}, pod(one(4, gpu=1)), None),
        (TWO, {}, pod(one(9, gpu=1)), None),
        (TWO, {}, pod(one(1, "65Gi", gpu=1)), None),
        # CPUs of a Guaranteed pod are aligned if they are whole, memory always.
        (APART, {}, pod(one("500m", gpu=1)), {"c0": {1}}),
        (APART, {}, pod(one("500m", "65Gi", gpu=1)), None),
        # Devices of every pod are, and nothing else of a pod that is not Guaranteed.
        (APART, {}, pod({GPU: 1}), {"c0": {1}}),
        (APART, {}, pod({GPU: 5}), None),
        (APART, {}, pod(one(9, "100Gi", gpu=4), resources={"limits": {"cpu": "9"}}), {"c0": {1}}),
        (APART, {}, pod(one(4, gpu=1), {"memory": "1Gi"}), {"c0": {1}}),
        (TWO, {}, pod({"cpu": 12, "memory": "100Gi"}, {"cpu": 1}), {}),
        # What no NUMA node has is not aligned.
        (TWO, {}, pod(one(4, gpu=1, nic=1)), {"c0": {0}}),
        ((*TWO[:1], {**TWO[1], NIC: 1}), {}, pod(one(4, gpu=1, nic=1)), {"c0": {1}}),
        # Container by container, or all together.
        (TWO, {}, pod(one(6, gpu=1), one(6, gpu=1)), {"c0": {0}, "c1": {1}}),
        (TWO, {"scope": "pod"}, pod(one(6, gpu=1), one(6, gpu=1)), None),
        (FULL, {"scope": "pod"}, pod(one(4, gpu=1), one(4)), {"c0": {1}, "c1": {1}}),
        (TWO, {}, pod(one(6, gpu=1), one(6, gpu=1), one(4)), None),
        # An init container gives back what it has, and one that stays does not.
        (TWO, {}, pod(one(8), one(8), before=one(8)), {"first": {0}, "c0": {0}, "c1": {1}}),
        (TWO, {}, pod(one(8), one(8), sidecar=one(1)), None),
        (TWO, {"scope": "pod"}, pod(one(8), before=one(8)), {"first": {0}, "c0": {0}}),
        (TWO, {"scope": "pod"}, pod(one(8), sidecar=one(1)), None),
        # Restricted: as few NUMA nodes as the whole machine would need.
        (TWO, {"policy": RESTRICTED}, pod(one(4, gpu=1)), {"c0": {0}}),
        (FULL, {"policy": RESTRICTED}, pod(one(8, gpu=1)), {"c0": {1}}),
        (APART, {"policy": RESTRICTED}, pod(one(4, gpu=1)), None),
        (TWO, {"policy": RESTRICTED}, pod(one(12, "100Gi", gpu=6)), {"c0": {0, 1}}),
        (TWO, {"policy": RESTRICTED}, pod(one(12, "100Gi", gpu=1)), None),
        (TWO, {"policy": RESTRICTED}, pod(one(17, "100Gi", gpu=6)), None),
        (FOUR, {"policy": RESTRICTED}, pod({GPU: 3}), {"c0": {0, 1}}),
        (
            ({GPU: (2, 0)}, {GPU: 2}, {GPU: 2}, {GPU: 2}),
            {"policy": RESTRICTED},
            pod({GPU: 3}),
            {"c0": {1, 2}},
        ),
        # The others admit every pod.
        (APART, {"policy": "best-effort"}, pod(one(4, gpu=1)), {}),
        (APART, {"policy": "none"}, pod(one(4, gpu=1)), {}),
        ((), {}, pod(one(4, gpu=1)), {}),
    ],
)  # fmt: skip
def test_the_kubelet_s_decision_is_predicted(
    zones: tuple[Mapping[str, object], ...],
    settings: dict[str, str],
    document: dict[str, Any],
    numa_nodes: dict[str, set[int]] | None,
) -> None:
    """None: the kubelet rejects the pod."""
    found = predict(read_topology(topology(*zones, **settings)), uses_of(document))
    assert bool(found.reason) == (numa_nodes is None)
    assert found.numa_nodes == (numa_nodes or {})


def test_the_reason_names_what_is_free_where() -> None:
    read = read_topology(topology(*APART))
    assert predict(read, uses_of(pod(one(4, "2Gi", gpu=2)))).reason == (
        "its kubelet would reject the pod (topologyManagerPolicy single-numa-node): container c0 needs cpu 4, memory 2Gi,"
        " nvidia.com/gpu 2 free on one NUMA node; node 0 has cpu 8, memory 64Gi, nvidia.com/gpu 0;"
        " node 1 has cpu 0, memory 64Gi, nvidia.com/gpu 4"
    )
    read = read_topology(topology(*TWO, policy=RESTRICTED))
    assert "container c0 needs cpu, memory, nvidia.com/gpu on different numbers of NUMA nodes" in (
        predict(read, uses_of(pod(one(12, gpu=1)))).reason
    )


@pytest.mark.parametrize(
    ("policies", "policy", "scope"),
    [
        (["SingleNUMANodePodLevel"], SINGLE, "pod"),
        (["RestrictedContainerLevel"], RESTRICTED, ""),
        (["BestEffort"], "", ""),
        ([], "", ""),
    ],
)
def test_the_deprecated_field_is_read_where_there_are_no_attributes(
    policies: list[str], policy: str, scope: str
) -> None:
    document = topology(*TWO)
    del document["attributes"]
    read = read_topology({**document, "topologyPolicies": policies})
    assert (read.policy, read.scope) == (policy, scope)


def test_memory_by_what_pods_may_have_and_cpus_by_what_there_is() -> None:
    """The kubelet decides so how many NUMA nodes a container needs."""
    document = topology(
        {"cpu": 8, "memory": "64Gi"}, {"cpu": 8, "memory": "64Gi"}, policy=RESTRICTED
    )
    for zone in document["zones"]:
        zone["resources"][0] |= {"allocatable": "7"}
        zone["resources"][1] |= {"allocatable": "60Gi"}
    assert predict(read_topology(document), uses_of(pod(one(4, "62Gi")))).reason
    document["zones"][0]["resources"][0]["available"] = "7"
    document["zones"][1]["resources"][0]["available"] = "7"
    assert predict(read_topology(document), uses_of(pod(one(8, "60Gi")))).reason
    assert predict(read_topology(document), uses_of(pod(one(14, "61Gi")))).numa_nodes == {
        "c0": {0, 1}
    }


@pytest.mark.parametrize(
    "change",
    [
        {"zones": [{"type": "Node"}]},
        {"zones": [{"name": "socket", "type": "Node"}]},
        {"zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "available": "x"}]}]},
        {"zones": [{"name": f"node-{n}", "type": "Node"} for n in range(MAX_ZONES + 1)]},
        {"zones": [{"name": "node-1", "type": "Node"}, {"name": "zone-1", "type": "Node"}]},
        {"zones": [{"name": "node-0", "type": "Node", "resources": [{"name": str(n)} for n in range(65)]}]},
        {"zones": "all"},
        {"attributes": [{"name": "topologyManagerPolicy"}]},
    ],
)  # fmt: skip
def test_another_object_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    document = {**topology(*APART), **change}
    with pytest.raises(BadTopology):
        read_topology(document)
    nodes = NumaNodes(lambda uid: False)
    assert nodes.report("a", document)
    assert nodes.refusals(pod(one(4, gpu=1)), ["a"]) == {}


def test_zones_that_are_no_numa_nodes_are_left_out() -> None:
    document = topology(*TWO)
    document["zones"][0]["type"] = "Socket"
    assert [zone.number for zone in read_topology(document).zones] == [1]


def test_a_bound_pod_is_counted_until_a_report_can_have_it() -> None:
    """That is the second one after its start: the first may have been on its way."""
    started: set[str] = set()
    nodes = NumaNodes(started.__contains__)
    assert nodes.report("a", topology(*TWO)) == ""
    assert nodes.numa_nodes(pod(one(6, gpu=1)), "a") == {"c0": {0}}
    nodes.bind(pod(one(6, gpu=1), name="x"), "a")
    assert nodes.numa_nodes(pod(one(6, gpu=1)), "a") == {"c0": {1}}
    nodes.bind(pod(one(6, gpu=1), name="y"), "a")
    assert list(nodes.refusals(pod(one(6, gpu=1)), ["a", "b"])) == ["a"]
    nodes.report("a", topology(*TWO))
    started.add("u-x")
    nodes.report("a", topology(*TWO))
    assert nodes.refusals(pod(one(6, gpu=1)), ["a"]), "not yet"
    nodes.report("a", topology(*TWO))
    assert nodes.numa_nodes(pod(one(6, gpu=1)), "a") == {"c0": {0}}, "the report is believed"
    nodes.forget("u-y")
    assert nodes.numa_nodes(pod(one(6, gpu=1), one(6, gpu=1)), "a") == {"c0": {0}, "c1": {1}}


def test_pods_are_tried_again_only_if_something_is_free_that_was_missing() -> None:
    nodes = NumaNodes(lambda uid: False)
    nodes.report("a", topology(*APART))
    nodes.report("a", topology(*TWO))
    assert nodes.freed == 0, "no pod was refused"
    nodes.report("a", topology(*APART))
    assert nodes.refusals(pod(one(4, gpu=1)), ["a"])
    nodes.report("a", topology(*APART))
    assert nodes.freed == 0
    nodes.report("a", topology(*TWO))
    assert nodes.freed == 1
    for change in (topology(*TWO, policy="none"), None):
        nodes.report("a", topology(*APART))
        assert nodes.refusals(pod(one(4, gpu=1)), ["a"])
        before = nodes.freed
        nodes.report("a", change)
        assert nodes.freed == before + 1
        assert nodes.refusals(pod(one(4, gpu=1)), ["a"]) == {}
    nodes.report("a", topology(*TWO))
    nodes.bind(pod(one(8, gpu=1), name="x"), "a")
    assert nodes.refusals(pod(one(8, gpu=1), one(8, gpu=1)), ["a"])
    nodes.forget("u-x")
    assert nodes.freed == 4


def test_pods_of_the_whole_scope_are_counted_once() -> None:
    nodes = NumaNodes(lambda uid: False)
    nodes.report("a", topology(*TWO, scope="pod"))
    nodes.bind(pod(one(3, gpu=1), one(3, gpu=1), name="x"), "a")
    assert nodes.numa_nodes(pod(one(2, gpu=2)), "a") == {"c0": {0}}
    assert nodes.numa_nodes(pod(one(3)), "a") == {"c0": {1}}
    nodes.report("a", None)
    nodes.forget("u-x")
    nodes.bind(pod(one(3), name="x"), "a")


def recorded() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        Path(__file__).with_name("admissions.json").read_text()
    )
    return found


def as_reported(case: dict[str, Any]) -> dict[str, Any]:
    """The NodeResourceTopology of the machine at that moment."""
    zones = []
    for one in case["zones"]:
        amounts = {
            "cpu": (one["cpus"], one["free_cpus"]),
            "memory": (one["memory"], max(0, one["free_memory"])),
        }
        if one["devices"]:
            amounts[GPU] = (one["devices"], one["free_devices"])
        zones.append(amounts)
    return topology(*zones, policy=case["policy"], scope=case["scope"])


def test_the_predictions_are_the_decisions_of_the_kubelet_s_own_managers() -> None:
    """Recorded by tests/cluster/kubernetes/admission, with Kubernetes 1.36.3. NUMA nodes: None, where it rejected the pod."""
    cases = recorded()
    assert {(one["policy"], one["scope"], one["numa_nodes"] is None) for one in cases} == set(
        itertools.product((SINGLE, RESTRICTED), ("container", "pod"), (True, False))
    )
    wrong = []
    for case in cases:
        found = predict(read_topology(as_reported(case)), uses_of({"spec": case["spec"]}))
        nodes = {name: sorted(numbers) for name, numbers in found.numa_nodes.items()}
        known = case["numa_nodes"]
        if bool(found.reason) != (known is None) or (known and {**known, **nodes} != known):
            wrong.append((case, found))
    assert wrong == []
