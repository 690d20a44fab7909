"""A node that reads its pods from an API server: the real daemon and queue controller, a kubelet without the Pods API, as
nearly all are, and an API server that behaves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.queued import LABELS, QUEUES
from tests.kit.apiserver import ApiServer
from tests.kit.node import until
from tests.kit.pods import PodNode, pod_node
from tests.kit.queue.controller import QueueController, serving
from tests.kit.workplace import workplace

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


class Served:
    """An ApiServer in a thread of its own."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.api.start(), self._loop).result(20)

    def do(self, what: Callable[..., Any], *arguments: Any) -> Any:
        async def call() -> Any:
            return what(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.api.close(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    def kubeconfig(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "k"}}],
                    "clusters": [{"name": "k", "cluster": {"server": self.api.url}}],
                }
            )
        )
        return path


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture(scope="module")
def places(served: Served) -> Iterator[tuple[QueueController, PodNode]]:
    served.do(served.api.put, NODES, {"metadata": {"name": "n1"}, "status": {"capacity": {}}})
    with (
        workplace() as directory,
        serving(directory / "queue", settings=["nodes.report_s=0.5"]) as controller,
    ):
        controller.apply(QUEUES)
        access = served.kubeconfig(directory / "kubeconfig")
        settings = (
            f'kubeconfig = "{access}"\n[queue]\nserver = "{controller.address}"\nnode_name = "n1"\n'
        )
        with pod_node(directory / "node", settings=settings, flags="") as node:
            until(
                "the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout
            )
            yield controller, node


def admit(served: Served, node: PodNode, name: str, **head: Any) -> str:
    """Admit a pod as a cluster does: the API server has it first."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6k", "nvidia.com/gpucores": "25"}
    document = {
        "metadata": {"name": name, "namespace": "vision", **head},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }
    uid = served.do(served.api.put, PODS, document)["metadata"]["uid"]
    pod = {"name": name, "namespace": "vision", "uid": uid, "containers": [{"name": "main"}]}
    answer = node.kubelet.do("admit", pod=pod)
    assert "error" not in answer, answer
    return str(uid)


def refusal(node: PodNode, uid: str) -> str:
    return str(node.kubelet.do("start_container", uid=uid, container="main").get("error", ""))


def owner(served: Served, plural: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    document = {"metadata": {"name": name, "namespace": "vision", **more}}
    uid = served.do(served.api.put, plural, document)["metadata"]["uid"]
    version = plural.removeprefix("/apis/").rpartition("/")[0]
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


def end(served: Served, node: PodNode, uid: str, name: str) -> None:
    node.kubelet.do("end", uid=uid)
    served.do(served.api.remove, PODS, f"vision/{name}")
    until(f"{name} has no grant", lambda: node.node.grant(f"vision/{name}/main") is None)


def test_what_a_pod_asks_for_counts_without_any_feature_gate(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    _, node = places
    uid = admit(served, node, "plain")
    assert refusal(node, uid) == ""
    grant = node.node.grant("vision/plain/main")
    assert grant is not None
    assert grant["devices"][0]["memory_limit_bytes"] == 6000 << 20
    assert grant["devices"][0]["share_ratio"] == pytest.approx(0.25)
    end(served, node, uid, "plain")


def test_a_running_pods_annotation_resizes_it_and_its_events_tell(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    _, node = places
    uid = admit(served, node, "moving")
    assert refusal(node, uid) == ""

    def annotate(text: str) -> None:
        document = dict(served.do(served.api.get, PODS, "vision/moving"))
        head = {**document["metadata"], "annotations": {"resize.sluice.dev/main": text}}
        served.do(served.api.put, PODS, {**document, "metadata": head})

    def memory() -> int:
        grant = node.node.grant("vision/moving/main")
        return 0 if grant is None else int(grant["devices"][0]["memory_limit_bytes"]) >> 20

    def events() -> list[tuple[str, str]]:
        found = served.do(lambda: list(served.api.objects.items()))
        return [
            (one["type"], one["reason"])
            for (where, _), one in found
            if where.endswith("/events") and one["involvedObject"]["name"] == "moving"
        ]

    annotate("gpumem=2000")
    until("it has less", lambda: memory() == 2000)
    annotate("gpumem=9000")
    until("more is refused", lambda: ("Warning", "SluiceResizeRefused") in events())
    assert memory() == 2000
    annotate("gpucores=10")
    until("it has its memory back", lambda: memory() == 6000)
    until("both changes are told", lambda: events().count(("Normal", "SluiceResized")) == 2)
    end(served, node, uid, "moving")


def test_the_scheduler_can_count_what_the_gpus_have(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    _, node = places

    def capacity() -> dict[str, str]:
        return dict(served.do(served.api.get, NODES, "n1")["status"]["capacity"])

    until("both cards are counted", lambda: capacity().get("nvidia.com/gpucores") == "200")
    assert 150_000 < int(capacity()["nvidia.com/gpumem"]) <= 163_840
    assert "sluice_kubernetes_counted 1" in node.node.metrics()
    assert "countable" in node.node.cli("doctor", check=False).stdout


def test_the_pods_of_a_job_take_the_decisions_for_the_job_and_no_more_than_there_are(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    controller, node = places
    job = owner(served, "/apis/batch/v1/jobs", "Job", "many", labels=LABELS)
    uids = {
        name: admit(served, node, name, ownerReferences=[job])
        for name in ("many-a", "many-b", "many-c")
    }
    said = refusal(node, uids["many-a"])
    assert "vision/many-a, made by Job many waits in queue train: no decision" in said
    pod = '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "30"}}}]}'
    controller.apply(
        f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: many, namespace: vision, labels: {{kueue.x-k8s.io/queue-name: train}}}}
spec: {{parallelism: 2, completions: 2, template: {{spec: {pod}}}}}
"""
    )
    until("the first runs", lambda: refusal(node, uids["many-a"]) == "")
    until("the second runs", lambda: refusal(node, uids["many-b"]) == "")
    assert "the 2 decided for it on this node have their pods" in refusal(node, uids["many-c"])
    assert refusal(node, uids["many-a"]) == "", "it keeps the one it has"
    for name in ("many-a", "many-b"):
        grant = node.node.grant(f"vision/{name}/main")
        assert grant is not None
        assert grant["devices"][0]["memory_limit_bytes"] == 8000 << 20
        assert grant["workload"] == "vision/job-many"
    for name, uid in uids.items():
        end(served, node, uid, name)


def test_a_replica_of_a_deployment_starts_by_its_decision_and_leaves_a_claim_behind_for_nobody(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    controller, node = places
    deployment = owner(served, "/apis/apps/v1/deployments", "Deployment", "web", labels=LABELS)
    replicas = owner(
        served, "/apis/apps/v1/replicasets", "ReplicaSet", "web-77", ownerReferences=[deployment]
    )
    first = admit(served, node, "web-77-a", ownerReferences=[replicas])
    assert "made by Deployment web waits in queue train" in refusal(node, first)
    node.kubelet.do("end", uid=first)  # gone before its decision came
    served.do(served.api.remove, PODS, "vision/web-77-a")
    pod = '{"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "7000", "nvidia.com/gpucores": "20"}}}]}'
    controller.apply(
        f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: vision, labels: {{kueue.x-k8s.io/queue-name: train}}}}
spec: {{replicas: 1, template: {{spec: {pod}}}}}
"""
    )
    second = admit(served, node, "web-77-b", ownerReferences=[replicas])
    until("the second runs", lambda: refusal(node, second) == "")
    grant = node.node.grant("vision/web-77-b/main")
    assert grant is not None
    assert grant["workload"] == "vision/deployment-web-0"
    end(served, node, second, "web-77-b")


def test_whose_pod_it_is_cannot_be_told_so_it_does_not_start(
    served: Served, places: tuple[QueueController, PodNode]
) -> None:
    _, node = places
    job = owner(served, "/apis/batch/v1/jobs", "Job", "hidden")
    uid = admit(served, node, "hidden-a", ownerReferences=[job])
    served.api.refuse = lambda method, path: (403, "Forbidden") if "/jobs/" in path else None
    said = refusal(node, uid)
    assert "whether vision/hidden-a, made by Job hidden belongs to a queue is unknown" in said
    assert "permission denied reading Job vision/hidden" in said
    served.api.refuse = lambda method, path: (503, "Unavailable") if "/jobs/" in path else None
    assert "the pod's owners cannot be read now" in refusal(node, uid)
    served.api.refuse = lambda method, path: None
    assert refusal(node, uid) == "", "a Job that is no queue's"
    end(served, node, uid, "hidden-a")


def test_devices_come_back_at_the_pods_end_and_not_two_looks_later(tmp_path: Path) -> None:
    served = Served()
    try:
        served.do(served.api.put, NODES, {"metadata": {"name": "n1"}, "status": {}})
        with workplace() as directory:
            access = served.kubeconfig(directory / "kubeconfig")
            settings = f'kubeconfig = "{access}"\n[queue]\nnode_name = "n1"\n'
            with pod_node(directory / "node", settings=settings, flags="", reconcile_s=30) as node:
                uid = admit(served, node, "short")
                assert refusal(node, uid) == ""
                assert node.node.grant("vision/short/main") is not None
                began_s = time.monotonic()
                end(served, node, uid, "short")
                assert time.monotonic() - began_s < 20, "two looks are 27 s apart at least"
    finally:
        served.close()


def test_where_nobody_tells_what_a_pod_asks_for_it_is_said_and_not_only_done(
    tmp_path: Path,
) -> None:
    with (
        workplace() as directory,
        pod_node(directory / "node", settings='[queue]\nnode_name = "n1"\n', flags="") as node,
    ):
        pod = {"name": "blind", "containers": [{"name": "main"}]}
        uid = str(node.kubelet.do("admit", pod=pod)["uid"])
        assert refusal(node, uid) == ""
        assert "sluice_kubelet_container_starts_unread_total 1" in node.node.metrics()
        told = node.node.cli("doctor", check=False).stdout
        assert "no source for the pods' requests" in told
        assert "1 containers have the node's defaults" in told
        log = (node.node.directory / "daemon.log").read_text()
        assert "has the node's defaults instead of its requests" in log
