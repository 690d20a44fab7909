"""Jobs of a queue whose pods ask for shares of GPUs, and what was kept for them: for the tests here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import JOBS, WORKLOADS, Replica, apply, door, of_kueue
from tests.cluster.scheduling import PODS, Fleet, gpu_pod
from tests.kit.node import until

ASKED = ("cpu", "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
PLENTY = "1000000"
NODES = 4
CARDS = 2
HALF = {"gpumem": 50_000, "gpucores": 50}
"""Two of them do not fit on a card."""


def queue_job(name: str, pods: int = 1, queue: str = "gpus", **amounts: Any) -> dict[str, Any]:
    template = gpu_pod(name, **amounts)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kueue.x-k8s.io/queue-name": queue},
        },
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": template["spec"]},
        },
    }


def make_pods(plane: ControlPlane, name: str, numbers: range) -> None:
    """Create the pods as the Job's controller does."""
    document = plane.api.get(f"{JOBS}/{name}")
    template = document["spec"]["template"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "controller": True}
    owner["uid"] = document["metadata"]["uid"]
    for number in numbers:
        head = {
            "labels": template["metadata"].get("labels"),
            "annotations": template["metadata"].get("annotations"),
            "name": f"{name}-{number}",
            "ownerReferences": [owner],
        }
        plane.api.create("pods", "default", {"metadata": head, "spec": template["spec"]})


def kept(workload: dict[str, Any] | None) -> list[tuple[str, str, int, int]]:
    """Node, card, bytes and parts per million of each place that is noted at it."""
    admission = ((workload or {}).get("status") or {}).get("admission") or {}
    return sorted(
        one
        for given in admission.get("podSetAssignments") or ()
        for each in given.get("gpuPlaces") or ()
        for _ in range(each["count"])
        for one in shares(json.loads(each["place"]))
    )


def shares(place: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    return [
        (place["node"], one["uuid"], one["memory_bytes"], one["share_ppm"])
        for each in place.get("containers", {}).values()
        for one in each
    ]


def objects(plane: ControlPlane) -> None:
    resources = [{"name": one, "nominalQuota": PLENTY} for one in ASKED]
    flavors = [{"name": "gpus", "resources": resources}]
    groups = [{"coveredResources": list(ASKED), "flavors": flavors}]
    apply(
        plane,
        of_kueue("ResourceFlavor", "gpus", {}),
        of_kueue("ClusterQueue", "gpus", {"resourceGroups": groups, "namespaceSelector": {}}),
        door("gpus", "gpus"),
    )


def labels_of(node: str) -> dict[str, str]:
    """Every second one is of one rack."""
    return {"rack": f"r{int(node.rpartition('-')[2]) % 2}", "pool": "gpus"}


def make_fleet(plane: ControlPlane, sockets: dict[Path, Replica]) -> Fleet:
    fleet = Fleet(plane, sockets, gpus=CARDS)
    known = {one["metadata"]["name"] for one in plane.api.get("/api/v1/nodes")["items"]}
    for n in range(NODES):
        name = f"gpu-{n}"
        if name in known:
            plane.api.delete(f"/api/v1/nodes/{name}")
        fleet.add(name, **labels_of(name))
    return fleet


def clear(plane: ControlPlane) -> None:
    for one in plane.api.get(JOBS)["items"]:
        path = f"{JOBS}/{one['metadata']['name']}"
        plane.api.delete(path)
        if plane.api.find(path) is not None:
            plane.api.patch(path, {"metadata": {"finalizers": None}})
    for one in plane.api.get(PODS)["items"]:
        plane.api.delete(f"{PODS}/{one['metadata']['name']}", grace_s=0)
    until("nothing is left", lambda: not plane.api.get(WORKLOADS)["items"], 120)
    until("no pod is left", lambda: not plane.api.get(PODS)["items"], 120)
