"""Sluice on the test cluster as its users have it: installed with helm from the built image, spoken to with kubectl; and the
questions that every scenario asks of it."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

from tests.cluster import manifests
from tests.cluster.api import path_of
from tests.cluster.machine.machine import Machine
from tests.cluster.machine.node import Cluster, ClusterError
from tests.cluster.manifests import NAMESPACE
from tests.cluster.programs import product
from tests.kit.node import until

RELEASE, SYSTEM = "sluice", "sluice-system"
AGENT, QUEUE = f"{RELEASE}-agent", f"{RELEASE}-queue"
GPU = "nvidia.com/gpu"
METRICS_PORT = 9464
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
LAST_EVENTS, LAST_LINES = 6, 60
"""Last events of a pod, and last lines of a log, that the report of a failure shows."""
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Sample = tuple[str, dict[str, str], float]


class Lab:
    every: ClassVar[WeakSet[Lab]] = WeakSet()
    """All of them; the state of those that run becomes part of a failure's report."""

    def __init__(self, cluster: Cluster, images: product.Images, helm: Path) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self._images = images
        self._helm = helm
        self._has_storage = False
        Lab.every.add(self)

    @property
    def image(self) -> str:
        return self._images.names["sluice-nodeagent"]

    # --- installing ---

    def helm(self, *words: str | Path) -> str:
        return self.cluster.run(self._helm, *words, timeout_s=300).stdout

    def import_images(self) -> None:
        self.cluster.import_image(self._images.archive)

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """`helm install` for the first time, `helm upgrade` later; returns when all of it is ready. `values`: by
        their path, {"agent.config": …}."""
        words = ["upgrade", "--install", RELEASE, product.CHART, "-n", SYSTEM, "--create-namespace"]
        words.append("--reset-values")  # where none are given helm takes the last ones again
        for key, value in self.values(values or {}).items():
            words += ["--set-json", f"{key}={json.dumps(value)}"]
        self.helm(*words, "--wait", "--timeout", "180s")
        until("the agent is on the node", lambda: self.ready("daemonsets", AGENT), 120)
        until("the queue's controller is ready", lambda: self.ready("deployments", QUEUE), 120)
        until("the kubelet has the GPUs", lambda: self.allocatable(GPU) > 0, 60)

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Chart values that a user of this cluster must set: none, unless there is no volume for
        the queue."""
        return {**({} if self._has_storage else {"queue.persistence.enabled": False}), **given}

    def offer_volume(self) -> None:
        """A default StorageClass with one volume in it: a cluster on which the chart needs no values."""
        place = "/var/lib/volume"
        self.cluster.run("install", "-d", "-m", "777", place)
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": "standard", "annotations": default},
                "provisioner": "kubernetes.io/no-provisioner",
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "volume"},
                "spec": {
                    "capacity": {"storage": "2Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "standard",
                    "hostPath": {"path": place},
                },
            },
        )
        self._has_storage = True

    def uninstall(self) -> None:
        try:
            self.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout", "180s")
        except Exception as failed:
            # Why is in the logs of its hooks.
            for pod in self.api.items("pods", SYSTEM):
                name = pod["metadata"]["name"]
                if "-cleanup-" in name:
                    failed.add_note(f"{name}: {json.dumps(pod['status'], indent=1)}")
                    failed.add_note(self.cluster.kubectl("logs", "-n", SYSTEM, name))
            raise

    def ready(self, plural: str, name: str) -> bool:
        found = self.api.find(path_of(plural, SYSTEM, name))
        if found is None:
            return False
        status, generation = found["status"], found["metadata"]["generation"]
        if status.get("observedGeneration") != generation:
            return False
        if plural == "daemonsets":
            wanted = status["desiredNumberScheduled"]
            return wanted > 0 and wanted == status.get("numberReady") == status.get(
                "updatedNumberScheduled"
            )
        there, ready = (int(status.get(one, 0)) for one in ("replicas", "readyReplicas"))
        return ready == there == int(found["spec"]["replicas"])

    # --- asking ---

    def node(self) -> dict[str, Any]:
        (found,) = self.api.items("nodes")
        return found

    def allocatable(self, resource: str) -> int:
        return int(self.node()["status"]["allocatable"].get(resource, 0))

    def agent_pods(self) -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=agent"
        return self.api.items("pods", SYSTEM, labelSelector=selector)

    def agent_pod(self) -> dict[str, Any]:
        """The one that is ready; waits for it."""

        def ready() -> dict[str, Any] | None:
            for pod in self.agent_pods():
                states = pod["status"].get("containerStatuses", [])
                if (
                    "deletionTimestamp" not in pod["metadata"]
                    and states
                    and all(one["ready"] for one in states)
                ):
                    return pod
            return None

        return until("an agent is ready", ready, 90)

    def agent(self, *words: str) -> str:
        """A command in the agent's pod, as an operator gives it."""
        self.agent_pod()
        return self.cluster.kubectl(
            "exec", "-n", SYSTEM, f"ds/{AGENT}", "-c", "agent", "--", *words
        )

    def grants(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.agent("sluice", "ps", "--json"))
        return found

    def metrics(self) -> list[Sample]:
        return samples(self.cluster.page(self.agent_pod()["status"]["podIP"], METRICS_PORT))

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that have these labels; None where there is none."""
        found = [v for n, have, v in self.metrics() if n == name and labels.items() <= have.items()]
        return sum(found) if found else None

    def pod(self, name: str, namespace: str = NAMESPACE) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.api.find(path_of("pods", namespace, name))
        return found

    def live(self) -> dict[str, str]:
        """Grants by their names, NAMESPACE/POD/CONTAINER, from the agent's page: it costs less than `sluice ps` in the pod."""
        return {
            labels["grant"]: labels["name"]
            for metric, labels, _ in self.metrics()
            if metric == "sluice_grant_info"
        }

    def grants_of(self, pod: str) -> list[str]:
        return [grant for grant, name in self.live().items() if name.split("/")[1] == pod]

    def phase(self, name: str) -> str:
        found = self.pod(name)
        return str(found["status"].get("phase", "")) if found else "gone"

    def events(self, name: str, namespace: str = NAMESPACE) -> list[str]:
        selector = f"involvedObject.name={name}"
        found = self.api.items("events", namespace, fieldSelector=selector)
        return [f"{one.get('reason', '')}: {one.get('message', '')}" for one in found]

    def state(self) -> Iterator[tuple[str, str]]:
        """Title and text: status and last events of the pods that have not ended, their owners and
        Workloads, the pods of the release, and the last lines that the queue's controllers logged."""
        for pod in self.api.items("pods", NAMESPACE):
            name, status = pod["metadata"]["name"], pod["status"]
            if status["phase"] not in ("Succeeded", "Failed"):
                shown = [f"node {pod['spec'].get('nodeName')}: {json.dumps(status)}"]
                yield f"pod {name}", "\n".join([*shown, *self.events(name)[-LAST_EVENTS:]])
        owners = "jobs,deployments,statefulsets,replicasets"
        for words in (("get", owners), ("get", "workloads"), ("events", "--types=Warning")):
            with suppress(ClusterError):  # Not every mode has Workloads.
                said = self.cluster.kubectl(*words, "-n", NAMESPACE)
                yield " ".join(words), "\n".join(said.splitlines()[-LAST_LINES:])
        yield SYSTEM, self.cluster.kubectl("get", "pods", "-n", SYSTEM, "-o", "wide")
        for pod in self.api.items("pods", SYSTEM):
            if pod["metadata"]["name"].startswith(QUEUE):
                words = ("logs", "-n", SYSTEM, pod["metadata"]["name"], f"--tail={LAST_LINES}")
                yield f"log of {pod['metadata']['name']}", self.cluster.kubectl(*words)

    def log(self, name: str, container: str = "main") -> str:
        text: str = self.api.get(path_of("pods", NAMESPACE, name) + f"/log?container={container}")
        return text if isinstance(text, str) else json.dumps(text)

    # --- running ---

    def apply(self, *documents: Mapping[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": documents}
        self.cluster.kubectl("apply", "-f", "-", given=json.dumps(items))

    def create_pod(self, document: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.api.create("pods", NAMESPACE, document)
        return made

    def run(self, name: str, **asked: Any) -> str:
        """A pod that uses its GPU until it is deleted; returns when it runs."""
        self.create_pod(manifests.gpu_pod(name, self._images.names["sluice-nodeagent"], **asked))
        self.wait_for(name)
        return name

    def gpu_pod(self, name: str, **asked: Any) -> dict[str, Any]:
        return manifests.gpu_pod(name, self._images.names["sluice-nodeagent"], **asked)

    def wait_for(self, name: str, phase: str = "Running", deadline_s: float = 90) -> None:
        end_s = time.monotonic() + deadline_s
        while (now := self.phase(name)) != phase:
            # What has ended does not change any more; and nothing that is refused for good comes later.
            if time.monotonic() > end_s or now in ("Failed", "Succeeded"):
                pod = self.pod(name) or {}
                why = pod.get("status", {}).get("message", "")
                raise AssertionError(f"{name} is {now}, not {phase} ({why}): {self.events(name)}")
            time.sleep(0.1)

    def end_process(self, name: str) -> None:
        """The container's first process dies, as of a crash: from the node, since a container cannot kill its own."""
        statuses = (self.pod(name) or {})["status"]["containerStatuses"]
        task = statuses[0]["containerID"].partition("://")[2]
        self.cluster.run("ctr", "tasks", "kill", "-s", "SIGKILL", task)

    def exec(self, name: str, *words: str, container: str = "main") -> str:
        return self.cluster.kubectl("exec", "-n", NAMESPACE, name, "-c", container, "--", *words)

    def inside(self, name: str, container: str = "main") -> dict[str, Any]:
        """The GPU as a program in the container sees it through CUDA and NVML."""
        text = self.exec(name, "python3", "-c", manifests.READ, container=container)
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def reports(self, name: str, container: str = "main") -> list[dict[str, float]]:
        """The lines of `sluice-sim-job --report`."""
        lines = self.log(name, container).splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"at_ns"')]

    def delete(self, *names: str, grace_s: int = 0) -> None:
        """Returns when the API has them no more."""
        for name in names:
            self.api.delete(path_of("pods", NAMESPACE, name), grace_s)
        until("the pods are gone", lambda: all(self.pod(name) is None for name in names), 60)

    def clear(self) -> None:
        """Ends every workload of the tests; returns when nothing of them is left on the node, which every scenario must hold."""
        makers = ("deployments", "replicasets", "statefulsets", "jobs")
        for plural in makers:
            for one in self.api.items(plural, NAMESPACE):
                self.api.delete(path_of(plural, NAMESPACE, one["metadata"]["name"]))
        until(
            "no controller makes pods",
            lambda: not any(self.api.items(plural, NAMESPACE) for plural in makers),
        )
        self.delete(*(one["metadata"]["name"] for one in self.api.items("pods", NAMESPACE)))
        until("no grant is left", lambda: not self.live(), 30)

    # --- what must always hold ---

    def checkpoint(self) -> list[dict[str, Any]]:
        """The kubelet's own record: which container has which device ids."""
        return self.checkpoint_of(self.cluster)

    @staticmethod
    def checkpoint_of(machine: Machine) -> list[dict[str, Any]]:
        document = json.loads(machine.run("cat", CHECKPOINT).stdout)
        return list(document["Data"]["PodDeviceEntries"] or [])

    def given_twice(self) -> list[str]:
        """Device ids of two containers, two grants of a container, GPUs with more promised than they have."""
        running = {one["metadata"]["uid"]: one for one in self._running()}
        ids = Counter(
            one
            for entry in self.checkpoint()
            if entry["PodUID"] in running and not self._handed_on(running[entry["PodUID"]], entry)
            for group in entry["DeviceIDs"].values()
            for one in group
        )
        names = Counter(self.live().values())
        twice = [
            f"{kind} {name}"
            for kind, found in (("device", ids), ("grant", names))
            for name, times in found.items()
            if times > 1
        ]
        return twice + [f"GPU {labels['gpu']}" for labels in self.overfull()]

    def lost(self) -> list[str]:
        """Running pods without a grant, and grants without a pod."""
        wanted = {f"{NAMESPACE}/{one['metadata']['name']}" for one in self._running()}
        there = {name.rpartition("/")[0] for name in self.live().values()}
        return [f"{name} has no grant" for name in sorted(wanted - there)] + [
            f"grant of {name}, which does not run" for name in sorted(there - wanted)
        ]

    def _running(self) -> Iterator[dict[str, Any]]:
        for one in self.api.items("pods", NAMESPACE):
            if (
                one["status"].get("phase") == "Running"
                and "deletionTimestamp" not in one["metadata"]
            ):
                yield one

    @staticmethod
    def _handed_on(pod: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
        """An init container's devices go to the next one: the record names both."""
        return entry["ContainerName"] in {
            one["name"] for one in pod["spec"].get("initContainers", [])
        }

    def overfull(self) -> list[dict[str, str]]:
        """Labels of GPUs of which more memory is granted than they have."""
        values = self.metrics()
        memory = {
            labels["gpu"]: value
            for name, labels, value in values
            if name == "sluice_gpu_memory_bytes"
        }
        return [
            labels
            for name, labels, value in values
            if name == "sluice_gpu_memory_granted_bytes" and value > memory[labels["gpu"]]
        ]

    def reachable(self) -> bool:
        try:
            self.metrics()
        except OSError:
            return False
        return True


def samples(text: str) -> list[Sample]:
    found = []
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match:
            found.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3])))
    return found
