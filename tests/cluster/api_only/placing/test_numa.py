"""Nodes whose kubelets align pods on NUMA nodes, with a real kube-scheduler: no pod is bound that such a kubelet would reject."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, define
from tests.cluster.scheduling import (
    PODS,
    Fleet,
    Service,
    bound,
    clear,
    gpu_pod,
    placement,
    refusal,
    replicas,
    scheduler,
    wait_bound,
    wait_refused,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP, VERSION, PLURAL = "topology.node.k8s.io", "v1alpha2", "noderesourcetopologies"
TOPOLOGIES = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
CPUS, CARDS = 8, 4
"""CPUs of a NUMA node, and cards of a node with two of them."""
STRICT, LOOSE = "gpu-strict", "gpu-loose"


def definition() -> dict[str, Any]:
    """The CRD, as far as it is read here: its fields are at the top, beside metadata."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": VERSION, "served": True, "storage": True}
    kind = "NodeResourceTopology"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": PLURAL, "singular": kind.lower(), "kind": kind},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }  # fmt: skip


@dataclass
class Lab:
    plane: ControlPlane
    both: list[Replica]
    fleet: Fleet

    def report(self, node: str, *free: int, policy: str = "single-numa-node") -> None:
        """The NodeResourceTopology of a node, with CPUs that are free on each NUMA node."""

        def resource(name: str, most: int, now: int) -> dict[str, str]:
            return {
                "name": name,
                "capacity": str(most),
                "allocatable": str(most),
                "available": str(now),
            }

        document = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "NodeResourceTopology",
            "metadata": {"name": node},
            "attributes": [
                {"name": "topologyManagerPolicy", "value": policy},
                {"name": "topologyManagerScope", "value": "container"},
            ],
            "zones": [
                {
                    "name": f"node-{number}",
                    "type": "Node",
                    "resources": [resource("cpu", CPUS, now), resource("nvidia.com/gpu", 20, 20)],
                }
                for number, now in enumerate(free)
            ],
        }
        known = self.plane.api.find(f"{TOPOLOGIES}/{node}")
        if known is None:
            self.plane.api.call("POST", TOPOLOGIES, document)
        else:
            self.plane.api.patch(f"{TOPOLOGIES}/{node}", {"zones": document["zones"]})

    def create(self, name: str, cpus: int, node: str = STRICT, **amounts: int) -> None:
        """A Guaranteed pod for one of the nodes."""
        spec = {"nodeSelector": {"kubernetes.io/hostname": node}}
        pod = gpu_pod(name, cpu=str(cpus), spec=spec, **amounts)
        for one in pod["spec"]["containers"][0]["resources"].values():
            one |= {"cpu": str(cpus), "memory": "1Gi"}
        self.plane.api.call("POST", PODS, pod)

    def numa_node(self, name: str) -> int:
        """Return the NUMA node of the pod's GPU."""
        ((share,),) = placement(wait_bound(self.plane, name))["containers"].values()
        return int(share["uuid"].rpartition("-")[2]) * 2 // CARDS


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    plane = control_plane
    define(plane)
    plane.api.call("POST", CRDS, definition())
    until("it is served", lambda: "items" in plane.api.get(TOPOLOGIES), 60)
    place: Path = tmp_path_factory.mktemp("numa")
    with replicas(plane, place, 1) as one:
        fleet = Fleet(plane, {place / "0.sock": one[0]}, gpus=CARDS, numa_nodes=2)
        for node in (STRICT, LOOSE):
            fleet.add(node, cpu=str(2 * CPUS))
        with (
            fleet,
            Service([each.asked_port for each in one]) as service,
            scheduler(plane, place, service.port),
        ):
            until("all report", lambda: fleet.sessions_total >= 2, 60)
            made = Lab(plane, one, fleet)
            made.report(LOOSE, 0, 0, policy="best-effort")
            yield made
            clear(plane)


def test_pods_are_bound_where_the_kubelet_admits_them(lab: Lab) -> None:
    lab.report(STRICT, 2, CPUS)
    lab.create("large", 6, gpumem=1000)
    assert lab.numa_node("large") == 1, "where its CPUs are"
    lab.create("small", 2, gpumem=1000)
    assert lab.numa_node("small") == 0
    lab.create("late", 4, gpumem=1000)
    why = wait_refused(lab.plane, "late")
    assert "topologyManagerPolicy single-numa-node" in why
    assert "node 0 has cpu 0" in why, "what was bound since the report is counted"
    assert "node 1 has cpu 2" in why
    lab.create("loose", 4, LOOSE, gpumem=1000)
    wait_bound(lab.plane, "loose")
    # More CPUs are free by the next report. kube-scheduler sees no event for it; the queue requeues the pod.
    lab.report(STRICT, 4 + 2, 4 + 6)
    wait_bound(lab.plane, "late", 30)


def test_what_was_bound_and_is_gone_is_free_again(lab: Lab) -> None:
    clear(lab.plane)
    lab.report(STRICT, CPUS, 0)
    lab.create("first", CPUS, gpumem=1000)
    wait_bound(lab.plane, "first")
    lab.create("second", CPUS, gpumem=1000)
    assert "needs cpu 8" in wait_refused(lab.plane, "second")
    lab.plane.api.delete(f"{PODS}/first", 0)
    wait_bound(lab.plane, "second", 30)


def test_a_new_leader_reads_the_reports_first(lab: Lab) -> None:
    clear(lab.plane)
    lab.report(STRICT, 0, 4)
    (replica,) = lab.both
    replica.end(signal.SIGKILL)
    replica.start()
    lab.create("later", 6, gpumem=1000)
    until("the new leader refuses it", lambda: "needs cpu 6" in refusal(pod_of(lab, "later")), 60)
    lab.create("aligned", 4, gpumem=1000)
    assert lab.numa_node("aligned") == 1
    assert not bound(pod_of(lab, "later"))


def pod_of(lab: Lab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = lab.plane.api.get(f"{PODS}/{name}")
    return found
