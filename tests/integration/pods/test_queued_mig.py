"""MIG instances through the queue: the node reports how its cards are cut, the controller places pods on instances that
are there, and both follow when a card is cut anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.queued import LABELS, refusal
from tests.kit.node import until
from tests.kit.pods import PodNode, pod_node
from tests.kit.queue.controller import QueueController, serving
from tests.kit.workplace import workplace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's")

RESOURCE = "nvidia.com/mig-3g.40gb"
QUEUES = f"""
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {{name: h100}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: vision}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: vision}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [{RESOURCE}]
    flavors:
    - name: h100
      resources:
      - {{name: {RESOURCE}, nominalQuota: 4}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {{name: train, namespace: vision}}
spec: {{clusterQueue: vision}}
"""


@pytest.fixture
def places() -> Iterator[tuple[QueueController, PodNode]]:
    with (
        workplace() as directory,
        serving(directory / "queue", settings=["nodes.report_s=0.5"]) as controller,
    ):
        controller.apply(QUEUES)
        settings = (
            f'mode = "mig"\nmig_strategy = "mixed"\n[queue]\nserver = "{controller.address}"\n'
            'node_name = "n1"\n'
        )
        with pod_node(
            Path(directory) / "node",
            gpus="h100-80gb:1g.10gb+3g.40gb",
            settings=settings,
            flags=f"--pods-api --resource {RESOURCE}",
            devices=1,
        ) as node:
            until(
                "the node is in the queue", lambda: "Ready" in controller.cli("get", "nodes").stdout
            )
            yield controller, node


def submit(controller: QueueController, node: PodNode, name: str) -> str:
    controller.apply(
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: vision, labels: {{kueue.x-k8s.io/queue-name: train}}}}
spec:
  containers:
  - name: main
    resources: {{limits: {{{RESOURCE}: "1"}}}}
"""
    )
    return f"vision/pod-{name}"


def admit(node: PodNode, name: str) -> str:
    pod = {"name": name, "namespace": "vision", "labels": LABELS, "containers": [{"name": "main"}]}
    answer = node.kubelet.do("admit", pod=pod)
    assert "error" not in answer, answer
    return str(answer["uid"])


def gpus(controller: QueueController) -> list[dict[str, Any]]:
    (found,) = controller.get("nodes")["items"]
    reported: list[dict[str, Any]] = found["status"]["gpus"]
    return reported


def test_pods_are_placed_on_instances_that_are_there(
    places: tuple[QueueController, PodNode],
) -> None:
    controller, node = places
    card = node.node.cli_json("mig", "show")[0]
    instances = {
        device["uuid"]: (one["profile"], one["span"]["start"], one["span"]["size"])
        for one in card["instances"]
        for device in one["devices"]
    }
    shown = {
        one["uuid"]: (one["migProfile"], one["migStart"], one["migSize"])
        for one in gpus(controller)
    }
    assert shown == instances
    assert {one["parentUuid"] for one in gpus(controller)} == {card["gpu"]}
    assert "0: 1g.10gb,3g.40gb" in controller.cli("get", "nodes", "-o", "wide").stdout

    uid = admit(node, "first")
    assert "vision/first waits in queue train" in refusal(node, uid), "not by the node's defaults"
    first = submit(controller, node, "first")
    until("its decision is here", lambda: refusal(node, uid) == "")
    grant = node.node.grant("vision/first/main")
    assert grant is not None
    assert grant["workload"] == first
    (device,) = grant["devices"]
    assert instances[device["gpu"]][0] == "3g.40gb"
    assert device["memory_limit_bytes"] == 40320 << 20
    until("the controller knows that it runs", lambda: controller.phase(first) == "Running")
    second = submit(controller, node, "second")
    until("the second waits", lambda: controller.phase(second) == "Pending")
    until(
        "it says why",
        lambda: "has room for 0 of 1 3g.40gb" in controller.cli("explain", second).stdout,
    )

    refused = node.node.cli("mig", "set", "--gpu", "0", "2x3g.40gb", check=False)
    assert refused.returncode == 1
    assert "(pod vision/first, container main)" in refused.stderr
    node.kubelet.do("end", uid=uid)
    until("the first is over", lambda: controller.phase(first) == "Finished")
    until("the second is decided", lambda: controller.phase(second) != "Pending")
    promised = node.node.cli("mig", "set", "--gpu", "0", "2x3g.40gb", check=False)
    assert promised.returncode == 1
    assert "the queue: 1 pod decided for it" in promised.stderr


def test_the_queue_follows_a_card_that_is_cut_anew(places: tuple[QueueController, PodNode]) -> None:
    controller, node = places
    done = node.node.cli("mig", "set", "--gpu", "0", "2x3g.40gb", check=False)
    assert done.returncode == 0, done.stderr
    until("the controller knows", lambda: "0: 2x3g.40gb" in controller.cli("get", "nodes", "-o", "wide").stdout)  # fmt: skip
    names = [submit(controller, node, name) for name in ("one", "two", "three")]
    decided = until(
        "two of them have their instance",
        lambda: (
            len(got := [one for one in names if controller.phase(one) != "Pending"]) == 2 and got
        ),
    )
    assert len(decided) == 2
    given = [gpu for gpu in gpus(controller) if gpu["givenMemoryBytes"]]
    assert sorted(one["givenMemoryBytes"] for one in given) == [40320 << 20] * 2
