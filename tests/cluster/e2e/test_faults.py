"""Faults around the agent: the kubelet, the runtime, the pods, the node. Nothing is lost, nothing
is given twice, and running programs notice nothing."""

from __future__ import annotations

import signal

import pytest

from tests.cluster import manifests
from tests.cluster.lab import GPU, Lab
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
BACK_S = 10.0


def tenants(lab: Lab) -> dict[str, str]:
    """Two that run, and the grant of each."""
    for number in range(2):
        lab.run(f"steady-{number}", memory_mib=4000, cores=30)
    return lab.live()


def undisturbed(lab: Lab, before: dict[str, str]) -> None:
    """They have the same grants, have not restarted, and their GPUs go on."""
    now = lab.live()
    assert {grant: now.get(grant) for grant in before} == before
    for number in range(2):
        name = f"steady-{number}"
        pod = lab.pod(name)
        assert pod is not None
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        at_ns = last_report_ns(lab, name)
        until(
            f"{name} goes on",
            lambda name=name, at_ns=at_ns: last_report_ns(lab, name) > at_ns,
            30,
        )


def last_report_ns(lab: Lab, name: str) -> float:
    return until(f"{name} reports", lambda: lab.reports(name), 30)[-1]["at_ns"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
@pytest.mark.parametrize("name", ["kubelet", "containerd"])
def test_the_kubelet_or_the_runtime_restarts(lab: Lab, name: str, how: signal.Signals) -> None:
    before = tenants(lab)
    lab.cluster.restart(name, how)
    until("the kubelet answers", lab.cluster.kubelet_answers, 60)
    until("the node is ready", lab.cluster.node_ready, 60)
    until("the kubelet has the GPUs", lambda: lab.allocatable(GPU) == 20, 60)
    until("the kubelet has the sums", lambda: lab.allocatable("nvidia.com/gpucores") == 200, 60)
    undisturbed(lab, before)
    lab.run("after", memory_mib=4000, cores=20, command="sleep 3600")
    assert lab.inside("after")["total_mib"] == 4000


def test_the_api_server_is_away_for_a_while(lab: Lab) -> None:
    before = tenants(lab)
    lab.cluster.stop("kube-apiserver", signal.SIGKILL)
    lab.cluster.start("kube-apiserver")
    until("it answers", lambda: lab.api.get("/readyz") == "ok", 60)
    until("the agent is heard", lab.reachable, 30)
    undisturbed(lab, before)
    lab.run("after", memory_mib=4000, cores=20, command="sleep 3600")
    assert lab.inside("after")["total_mib"] == 4000


def test_a_pod_that_is_deleted_by_force_gives_its_devices_back(lab: Lab) -> None:
    lab.run("forced", memory_mib=70000, cores=50)
    lab.run("other", memory_mib=70000, cores=50)
    lab.cluster.kubectl("delete", "pod", "-n", NAMESPACE, "forced", "--force", "--grace-period=0")
    lab.create_pod(lab.gpu_pod("next", memory_mib=70000, cores=50, command="sleep 3600"))
    lab.wait_for("next", deadline_s=30)
    until("the old grant is gone", lambda: not lab.grants_of("forced"), BACK_S)


def test_a_node_that_lost_its_power_has_its_workloads_again(lab: Lab) -> None:
    """Pods of a Deployment run again; a bare pod either runs again or has failed with the kubelet's
    reason, and never runs without its limits. The books start empty."""
    lab.apply(
        manifests.owned("Deployment", "served", lab.gpu_pod("served", memory_mib=4000, cores=20), 2)
    )
    lab.run("bare", memory_mib=4000, cores=20, restart="Always")

    def served() -> list[str]:
        pods = lab.api.items("pods", NAMESPACE, labelSelector="app=served")
        return [
            one["metadata"]["name"]
            for one in pods
            if one["status"].get("phase") == "Running"
            and all(s["ready"] for s in one["status"].get("containerStatuses", [{"ready": False}]))
        ]

    until("both run", lambda: len(served()) == 2, 60)
    lab.cluster.reboot()
    until("the agent is back", lambda: lab.reachable() and lab.allocatable(GPU) == 20, 120)
    until("both run again", lambda: len(served()) == 2 and len(lab.live()) >= 2, 120)
    for name in served():
        until("its program answers", lambda name=name: lab.inside(name)["total_mib"] == 4000, 30)
    bare = lab.pod("bare")
    assert bare is not None
    if bare["status"]["phase"] == "Running":
        until("its program answers", lambda: lab.inside("bare")["total_mib"] == 4000, 60)
    else:
        assert bare["status"]["reason"] == "UnexpectedAdmissionError", bare["status"]
