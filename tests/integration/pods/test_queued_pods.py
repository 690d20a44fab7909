"""Pods that go through the queue: quota first, then exactly the share that was decided. A real controller, a real
daemon on simulated GPUs, and a kubelet that behaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.queued import LABELS, QUEUES, refusal
from tests.kit.node import until
from tests.kit.pods import PodNode, pod_node
from tests.kit.queue.controller import QueueController, serving
from tests.kit.workplace import workplace


def manifest(name: str, gpumem: int, gpucores: int) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: vision, labels: {{kueue.x-k8s.io/queue-name: train}}}}
spec:
  containers:
  - name: main
    resources:
      limits: {{nvidia.com/gpu: "1", nvidia.com/gpumem: "{gpumem}", nvidia.com/gpucores: "{gpucores}"}}
"""


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[QueueController, PodNode]]:
    with (
        workplace() as directory,
        serving(directory / "queue", settings=["nodes.report_s=0.5"]) as controller,
    ):
        controller.apply(QUEUES)
        settings = f'[queue]\nserver = "{controller.address}"\nnode_name = "n1"\n'
        with pod_node(Path(directory) / "node", settings=settings) as node:
            until(
                "the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout
            )
            yield controller, node


def admit(node: PodNode, name: str, **more: Any) -> str:
    pod = {"name": name, "namespace": "vision", "containers": [{"name": "main"}], **more}
    answer = node.kubelet.do("admit", pod=pod)
    assert "error" not in answer, answer
    return str(answer["uid"])


def test_a_queued_pod_waits_for_its_decision_and_gets_what_was_decided(
    places: tuple[QueueController, PodNode],
) -> None:
    controller, node = places
    uid = admit(node, "trainer", labels=LABELS)
    assert "vision/trainer waits in queue train" in refusal(node, uid)
    assert node.node.grant("vision/trainer/main") is None
    controller.apply(manifest("trainer", 8000, 30))
    until("its decision is here", lambda: refusal(node, uid) == "")
    grant = node.node.grant("vision/trainer/main")
    assert grant is not None
    assert grant["devices"][0]["memory_limit_bytes"] == 8000 << 20
    assert grant["devices"][0]["share_ratio"] == pytest.approx(0.3)
    assert grant["workload"] == "vision/pod-trainer"
    until(
        "the controller knows that it runs",
        lambda: controller.phase("vision/pod-trainer") == "Running",
    )
    node.kubelet.do("end", uid=uid)
    until(
        "the controller knows that it is over",
        lambda: controller.phase("vision/pod-trainer") == "Finished",
    )


def test_without_quota_a_pod_waits_until_another_ends(
    places: tuple[QueueController, PodNode],
) -> None:
    controller, node = places
    first, second = admit(node, "first", labels=LABELS), admit(node, "second", labels=LABELS)
    controller.apply(manifest("first", 40_000, 60))
    until("the first runs", lambda: refusal(node, first) == "")
    controller.apply(manifest("second", 40_000, 60))
    until("the second is in line", lambda: controller.phase("vision/pod-second") == "Pending")
    assert "no decision" in refusal(node, second)
    node.kubelet.do("end", uid=first)
    until("the second runs", lambda: refusal(node, second) == "")
    assert len({grant["name"] for grant in node.node.grants() if grant["state"] == "active"}) == 1
    node.kubelet.do("end", uid=second)
    until("the second is over", lambda: controller.phase("vision/pod-second") == "Finished")


def test_pods_of_no_queue_have_their_own_limits(places: tuple[QueueController, PodNode]) -> None:
    _, node = places
    uid = admit(
        node, "plain", containers=[{"name": "main", "limits": {"nvidia.com/gpumem": "1000"}}]
    )
    assert refusal(node, uid) == ""
    grant = node.node.grant("vision/plain/main")
    assert grant is not None
    assert grant["devices"][0]["memory_limit_bytes"] == 1000 << 20
    assert grant["workload"] == ""
    node.kubelet.do("end", uid=uid)


def test_while_the_controller_is_away_running_pods_restart_and_new_ones_wait(
    places: tuple[QueueController, PodNode],
) -> None:
    controller, node = places
    uid = admit(node, "steady", labels=LABELS)
    controller.apply(manifest("steady", 8000, 30))
    until("it runs", lambda: refusal(node, uid) == "")
    controller.kill()
    assert refusal(node, uid) == "", "the same grant, without a request to the queue"
    late = admit(node, "late", labels=LABELS)
    assert "no decision" in refusal(node, late)
