"""Where a pod's limits come from: its own requests, by whatever way this cluster has; never silently from somewhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.api import path_of
from tests.cluster.lab import AGENT, SYSTEM, Lab
from tests.kit.node import NodeError, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ASKED_MIB = 7000
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def asked(lab: Lab, name: str) -> int:
    """Memory in MiB that a container sees after requesting 7000 MiB."""
    lab.run(name, memory_mib=ASKED_MIB, cores=20, command="sleep 3600")
    return int(lab.inside(name)["total_mib"])


def settings(lab: Lab, text: str) -> None:
    """The agent with this in its configuration."""
    lab.install({"agent.config": f"[kubelet]\nenabled = true\n{text}"})
    lab.agent_pod()


@pytest.fixture(scope="module")
def as_it_was(installed: Lab) -> Iterator[None]:
    """Once for the file: each scenario installs what it needs, by values of its own alone."""
    yield
    installed.clear()
    installed.install()


def test_by_default_the_api_server_says_them(lab: Lab) -> None:
    gates = json.loads((lab.cluster.directory / "kubelet.json").read_text())["featureGates"]
    assert gates == {}, "a kubelet as it comes"
    assert asked(lab, "watched") == ASKED_MIB


def test_the_kubelet_s_pods_api_says_them_where_it_is_on(lab: Lab, as_it_was: None) -> None:
    if not lab.cluster.serves_pods_api():
        pytest.skip(f"the kubelet of {lab.cluster.programs.version} has no Pods API")
    lab.cluster.set_gates({"PodsAPI": True})
    try:
        settings(lab, 'limits = ["queue", "pod"]\n')
        assert asked(lab, "told") == ASKED_MIB
    finally:
        lab.cluster.set_gates({})
        # The kubelet leaves its socket there, and without a listener there is no answer: pods would wait.
        lab.cluster.run("rm", "-f", "/var/lib/kubelet/pods-api/pods-api.sock")


def test_where_nobody_can_be_asked_the_defaults_hold_and_it_is_said(
    lab: Lab, as_it_was: None
) -> None:
    """Only the kubelet is to be asked, and this one has no Pods API. Without a queue the pod starts, by the defaults."""
    lab.install(
        {
            "agent.config": '[kubelet]\nenabled = true\npod_sources = ["kubelet"]\ndefault_memory_mib = 3000\n'
            '[queue]\nserver = ""\n'
        }
    )
    before = lab.metric("sluice_kubelet_container_starts_unread_total") or 0
    assert asked(lab, "unasked") == 3000
    until(
        "an event says so",
        lambda: any("SluiceDefaultsUsed" in one for one in lab.events("unasked")),
        30,
    )
    assert (lab.metric("sluice_kubelet_container_starts_unread_total") or 0) > before
    pod = lab.agent_pod()["metadata"]["name"]
    assert "unasked" in lab.cluster.kubectl("logs", "-n", SYSTEM, pod, "-c", "agent")
    findings = json.loads(lab.agent("sh", "-c", "sluice doctor --json || true"))
    told = [one["topic"] for one in findings if one["level"] != "ok"]
    assert {"pods", "limits"} & set(told), told


def test_what_cannot_be_read_is_said_everywhere(lab: Lab, as_it_was: None) -> None:
    """The agent's role is taken away. A pod either waits, with the reason, or starts by the defaults with an event, a log
    line, a metric and a finding of the doctor that say so: never a GPU of its own without a word."""
    lab.install()
    bindings = [
        one
        for one in lab.api.get(BINDING)["items"]
        if any(
            s.get("name") == AGENT and s.get("namespace") == SYSTEM
            for s in one.get("subjects") or []
        )
    ]
    assert bindings
    for one in bindings:
        lab.api.delete(f"{BINDING}/{one['metadata']['name']}")
    before = lab.agent_pod()["metadata"]["uid"]
    lab.api.delete(path_of("pods", SYSTEM, lab.agent_pod()["metadata"]["name"]), 1)
    until("another agent", lambda: lab.agent_pod()["metadata"]["uid"] != before, 90)
    lab.create_pod(lab.gpu_pod("unread", memory_mib=ASKED_MIB, cores=20, command="sleep 3600"))

    def told() -> bool:
        events = " ".join(lab.events("unread"))
        # With a queue the first question is whether the pod is one's.
        return any(one in events for one in ("cannot be read", "belongs to a queue is unknown"))

    try:
        until("the pod's events say that its requests cannot be read", told, 90)
    except NodeError as error:
        raise AssertionError(f"{lab.phase('unread')}: {lab.events('unread')}") from error
    doctor = lab.agent("sh", "-c", "sluice doctor || true")
    assert "forbids reading this node's pods" in doctor, doctor
    log = lab.cluster.kubectl(
        "logs", "-n", SYSTEM, lab.agent_pod()["metadata"]["name"], "-c", "agent"
    )
    assert "403" in log or "forbidden" in log.lower(), log[-2000:]
    if lab.phase("unread") == "Running":
        assert lab.inside("unread")["total_mib"] != ASKED_MIB
