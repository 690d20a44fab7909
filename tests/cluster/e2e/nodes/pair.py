"""Sluice in mode kubernetes on two nodes, by the chart: the queue's objects are the API server's, and its extender places pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.api import path_of
from tests.cluster.lab import METRICS_PORT, SYSTEM, Lab, Sample, samples
from tests.cluster.machine.machine import Machine
from tests.cluster.machine.node import Cluster, Worker
from tests.cluster.machine.settings import FIRST, SECOND
from tests.cluster.manifests import NAMESPACE
from tests.cluster.programs import images, product
from tests.cluster.queueing import door, of_kueue
from tests.kit.node import until
from tests.kit.queue import queues

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/namespaces/{NAMESPACE}/workloads"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
WORKLOAD = "kueue.x-k8s.io/workload"
MODE = {"queue.mode": "kubernetes", "scheduler.image": images.SCHEDULER}
"""The second, since the cluster has no way to a registry."""


class Pair(Lab):
    def __init__(
        self, cluster: Cluster, second: Worker, images: product.Images, helm: Path
    ) -> None:
        super().__init__(cluster, images, helm)
        self.second = second

    @property
    def machines(self) -> dict[str, Machine]:
        """Those that run, by the names of their nodes."""
        both: tuple[Machine, ...] = (self.cluster, self.second)
        return {one.place.hostname: one for one in both if one.alive()}

    # --- installing ---

    def import_images(self) -> None:
        for machine in self.machines.values():
            machine.import_image(self._images.archive)
            machine.import_image(images.scheduler(machine.programs))

    def name_image(self, *names: str) -> None:
        """Gives the agent's image, in which there are Python and a shell, these names too: those of manifests, on a cluster
        without a way to their registries."""
        for machine in self.machines.values():
            for name in names:
                machine.run("ctr", "images", "tag", "--force", self.image, name)

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        super().install({**MODE, **(values or {})})

    # --- asking ---

    def node(self, name: str = FIRST.hostname) -> dict[str, Any]:
        found: dict[str, Any] = self.api.get(path_of("nodes", "", name))
        return found

    def is_ready(self, name: str) -> bool:
        return any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in self.node(name)["status"]["conditions"]
        )

    def offered(self, name: str) -> int:
        """GPUs that the kubelet of that node can allocate."""
        return int(self.node(name)["status"]["allocatable"].get("nvidia.com/gpu", 0))

    def agents(self) -> list[dict[str, Any]]:
        """Pods of the agents that are ready."""
        return [
            pod
            for pod in self.agent_pods()
            for one in pod["status"].get("conditions", [])
            if (one["type"], one["status"]) == ("Ready", "True")
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def metrics(self) -> list[Sample]:
        return [one for pod in self.agents() for one in self._page(pod)]

    def metrics_of(self, node: str) -> list[Sample]:
        """Samples of that node's agent, once it is ready."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.agents() if one["spec"]["nodeName"] == node]

        return self._page(until(f"the agent of {node} is ready", found, 90)[0])

    def _page(self, pod: Mapping[str, Any]) -> list[Sample]:
        return samples(self.cluster.page(pod["status"]["podIP"], METRICS_PORT))

    def grants_on(self, node: str) -> list[str]:
        """Names of the grants that this node's agent has."""
        found = self.metrics_of(node)
        return sorted(labels["name"] for name, labels, _ in found if name == "sluice_grant_info")

    def checkpoint(self) -> list[dict[str, Any]]:
        return [one for machine in self.machines.values() for one in self.checkpoint_of(machine)]

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Pods with these labels that are not being deleted."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = self.api.items("pods", NAMESPACE, labelSelector=selector)
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def running_on(self, node: str, **labels: str) -> list[str]:
        return sorted(
            one["metadata"]["name"]
            for one in self.pods(**labels)
            if one["status"].get("phase") == "Running" and one["spec"].get("nodeName") == node
        )

    # --- the queue ---

    def queue(self, name: str, gpus: int) -> None:
        """A LocalQueue and a ClusterQueue of that name, with quota for so many GPUs."""
        covered = {queues.GPU: gpus, queues.GPU_MEMORY: 400_000, queues.GPU_CORES: 400}
        amounts = [{"name": key, "nominalQuota": value} for key, value in covered.items()]
        group = {"coveredResources": list(covered), "flavors": [{"name": "any", "resources": amounts}]}  # fmt: skip
        spec = {"namespaceSelector": {}, "resourceGroups": [group]}
        local = f"namespaces/{NAMESPACE}/localqueues"
        for plural, document in (
            ("resourceflavors", of_kueue("ResourceFlavor", "any", {})),
            ("clusterqueues", of_kueue("ClusterQueue", name, spec)),
            (local, door(name, name)),
        ):
            path = f"{KUEUE}/{plural}"
            if self.api.find(f"{path}/{document['metadata']['name']}") is None:
                self.api.call("POST", path, document)

    def status_of(self, queue: str) -> dict[str, Any]:
        return dict(self.api.get(f"{KUEUE}/clusterqueues/{queue}").get("status") or {})

    def used(self, queue: str) -> dict[str, str]:
        """Reservations of a ClusterQueue by resource, as its status has them."""
        return {
            one["name"]: one["total"]
            for flavor in self.status_of(queue).get("flavorsReservation") or ()
            for one in flavor["resources"]
        }

    def workloads(self) -> list[dict[str, Any]]:
        return list(self.api.get(WORKLOADS)["items"])

    def queue_tasks(self) -> list[tuple[Machine, str]]:
        """Machine and container of each replica of the controller that has a running container."""
        selector = "app.kubernetes.io/component=queue"
        return [
            (self.machines[pod["spec"]["nodeName"]], one["containerID"].partition("://")[2])
            for pod in self.api.items("pods", SYSTEM, labelSelector=selector)
            for one in pod["status"].get("containerStatuses", [])
            if "running" in one["state"]
        ]

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl(*words)


def conditions(document: Mapping[str, Any]) -> dict[str, str]:
    """Conditions that are true, with their reasons."""
    return {
        one["type"]: one.get("reason", "")
        for one in (document.get("status") or {}).get("conditions") or ()
        if one["status"] == "True"
    }


def workload_of(workloads: Sequence[dict[str, Any]], pod: Mapping[str, Any]) -> dict[str, Any]:
    """The Workload of a pod or of its owner; empty if there is none."""
    head = pod["metadata"]
    uids = {head["uid"], *(one["uid"] for one in head.get("ownerReferences") or ())}
    name = (head.get("annotations") or {}).get(WORKLOAD)
    for one in workloads:
        owners = {each["uid"] for each in one["metadata"].get("ownerReferences") or ()}
        if uids & owners or name == one["metadata"]["name"]:
            return one
    return {}


__all__ = ["FIRST", "SECOND", "Pair", "conditions", "workload_of"]
