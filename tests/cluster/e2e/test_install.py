"""`helm install` with the chart's defaults on a node as NVIDIA's operator leaves it."""

from __future__ import annotations

import json

import pytest

from tests.cluster.api import path_of
from tests.cluster.lab import AGENT, GPU, QUEUE, RELEASE, SYSTEM, Lab
from tests.cluster.machine.node import ClusterError
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
CARDS, SLOTS = 2, 10


def test_agent_and_queue_are_ready_without_restarts(lab: Lab) -> None:
    pods = lab.api.items("pods", SYSTEM)
    assert {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods} >= {
        "agent",
        "queue",
    }
    assert {
        one["metadata"]["name"]: s["restartCount"]
        for one in pods
        for s in one["status"]["containerStatuses"]
    } == {one["metadata"]["name"]: 0 for one in pods}


def test_the_node_offers_slots_and_sums_that_the_stock_scheduler_can_count(lab: Lab) -> None:
    offered = lab.node()["status"]["allocatable"]
    assert int(offered[GPU]) == CARDS * SLOTS
    assert int(offered["nvidia.com/gpucores"]) == CARDS * 100
    memory = int(offered["nvidia.com/gpumem"])
    card_mib = int(lab.metric("sluice_gpu_memory_bytes") or 0) >> 20
    assert memory <= card_mib, "never more than the cards have"
    assert memory > 0.95 * card_mib


def test_the_doctor_finds_nothing(lab: Lab) -> None:
    findings = json.loads(lab.agent("sh", "-c", "sluice doctor --json || true"))
    told = [
        f"{one['level']} {one['topic']}: {one['what']}" for one in findings if one["level"] != "ok"
    ]
    # A container sees the host's control groups of version 1 only where they are mounted for it.
    assert [one for one in told if not one.startswith("warning ebpf functions")] == []


def test_an_administrator_asks_the_queue_without_flags(lab: Lab) -> None:
    command = ("exec", "-n", SYSTEM, f"deploy/{QUEUE}", "--", "sluice-queue", "get", "nodes")
    name = lab.node()["metadata"]["name"]
    until(
        "the node is there, as soon as its agent has a session",
        lambda: name in lab.cluster.kubectl(*command),
        60,
    )


def test_helm_test_runs_a_real_check(lab: Lab) -> None:
    said = lab.helm("test", RELEASE, "-n", SYSTEM, "--timeout", "120s")
    assert "Succeeded" in said


def test_a_second_release_on_the_same_nodes_is_refused_or_harmless(lab: Lab) -> None:
    """Two agents on one node: the second says whose node it is, and the first goes on."""
    first = lab.agent_pod()["metadata"]["uid"]
    spec = lab.api.get(path_of("daemonsets", SYSTEM, AGENT))["spec"]["template"]["spec"]
    name = "second-agent"
    spec = {**spec, "nodeName": lab.node()["metadata"]["name"], "restartPolicy": "Never"}
    lab.api.create("pods", SYSTEM, {"metadata": {"name": name}, "spec": spec})
    try:
        ended = until(
            "the second one has ended",
            lambda: (
                (found := lab.pod(name, SYSTEM)) and found["status"]["phase"] == "Failed" and found
            ),
            90,
        )
        assert ended
        said = lab.cluster.kubectl("logs", "-n", SYSTEM, name, "-c", "agent")
        assert "another" in said or "already" in said or "pid" in said, said
    finally:
        lab.api.delete(path_of("pods", SYSTEM, name), 0)
    assert lab.agent_pod()["metadata"]["uid"] == first
    lab.run("beside-it")


def test_what_the_agent_may_do_in_the_api_is_little(lab: Lab) -> None:
    who = f"--as=system:serviceaccount:{SYSTEM}:{AGENT}"
    for verb, what in (
        ("create", "pods"),
        ("delete", "pods"),
        ("get", "secrets"),
        ("list", "secrets"),
        ("update", "nodes"),
        ("create", "pods/exec"),
    ):
        with pytest.raises(ClusterError):
            lab.cluster.kubectl("auth", "can-i", verb, what, "-A", who)
    for verb, what in (("list", "pods"), ("watch", "pods"), ("create", "events")):
        assert "yes" in lab.cluster.kubectl("auth", "can-i", verb, what, "-A", who)
