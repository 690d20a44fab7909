"""A pod under a queue never starts by the defaults or by its own requests, with any owner and wherever its label is."""

from __future__ import annotations

import json

import pytest

from tests.cluster import manifests
from tests.cluster.api import path_of
from tests.cluster.lab import QUEUE, SYSTEM, Lab
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until
from tests.kit.queue import queues

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
LABEL = {"kueue.x-k8s.io/queue-name": "train"}
WAITS = "waits in queue"
KINDS = ("Job", "Deployment", "StatefulSet")
PLACES = ("owner", "template", "both")
OBJECTS = queues.manifests(
    queues.flavor("h100"),
    queues.cluster_queue(
        "team", "h100", {queues.GPU: 4, queues.GPU_MEMORY: 40000, queues.GPU_CORES: 200}
    ),
    queues.local_queue("train", "default", "team"),
)


def queue_command(lab: Lab, *words: str, given: str | None = None) -> str:
    return lab.cluster.kubectl(
        "exec",
        "-i",
        "-n",
        SYSTEM,
        f"deploy/{QUEUE}",
        "--",
        "sluice-queue",
        *words,
        given=given or "",
    )


def waiting(lab: Lab, name: str) -> bool:
    return any(WAITS in one for one in lab.events(name))


def test_none_waits_less_for_its_owner_or_the_place_of_its_label(lab: Lab) -> None:
    """All at once: most of the time a kubelet tries again."""
    names = {f"{kind.lower()}-{place}": (kind, place) for kind in KINDS for place in PLACES}
    for name, (kind, place) in names.items():
        labels = LABEL if place != "owner" else {}
        pod = lab.gpu_pod(name, memory_mib=4000, cores=10, labels=labels)
        lab.apply(manifests.owned(kind, name, pod, labels=LABEL if place != "template" else {}))

    def told() -> bool:
        found = lab.api.items("pods", NAMESPACE)
        started = [one for one in found if one["status"].get("phase") in ("Running", "Succeeded")]
        assert started == [], [one["metadata"]["name"] for one in started]
        waits = {one["metadata"]["labels"]["app"] for one in found if waiting(lab, one["metadata"]["name"])}  # fmt: skip
        return waits == names.keys()

    until("the events of each one's pod say that it waits", told, 120)
    assert lab.live() == {}


def test_a_bare_pod_waits_and_starts_by_its_decision(lab: Lab) -> None:
    document = lab.gpu_pod("decided", memory_mib=8000, cores=40, labels=LABEL)
    lab.create_pod(document)
    until("it waits", lambda: waiting(lab, "decided"), 60)
    assert lab.phase("decided") == "Pending"
    queue_command(lab, "apply", "-f", "-", given=OBJECTS)
    queue_command(lab, "apply", "-f", "-", given=json.dumps(document))
    lab.wait_for("decided", deadline_s=120)
    assert lab.inside("decided")["total_mib"] == 8000


def test_without_the_controller_nothing_of_a_queue_starts(lab: Lab) -> None:
    """The controller is away, and the agent is a new one that has never heard it."""
    path = path_of("deployments", SYSTEM, QUEUE)
    lab.api.patch(path, {"spec": {"replicas": 0}})
    try:
        until(
            "it is away",
            lambda: (
                not lab.api.items("pods", SYSTEM, labelSelector="app.kubernetes.io/component=queue")
            ),
            60,
        )
        before = lab.agent_pod()
        lab.api.delete(path_of("pods", SYSTEM, before["metadata"]["name"]), 1)
        until(
            "another agent",
            lambda: lab.agent_pod()["metadata"]["uid"] != before["metadata"]["uid"],
            90,
        )
        lab.create_pod(lab.gpu_pod("alone", memory_mib=4000, cores=20, labels=LABEL))
        until("it waits", lambda: waiting(lab, "alone"), 60)
        assert lab.phase("alone") == "Pending"
        lab.run("beside", memory_mib=4000, cores=20)
    finally:
        lab.api.patch(path, {"spec": {"replicas": 1}})
        until("it is back", lambda: lab.ready("deployments", QUEUE), 120)
