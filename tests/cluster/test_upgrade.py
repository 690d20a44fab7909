"""`helm upgrade` under running tenants, and `helm uninstall`, after which nothing is left on the node or in the API."""

from __future__ import annotations

import pytest

from tests.cluster.figures import Figures
from tests.cluster.lab import GPU, RELEASE, SYSTEM, Lab
from tests.cluster.test_pods import measure
from tests.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
KINDS = "daemonsets,deployments,pods,services,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,roles,rolebindings,jobs,leases,persistentvolumeclaims"
CLUSTER_KINDS = "clusterroles,clusterrolebindings,runtimeclasses,mutatingwebhookconfigurations,validatingwebhookconfigurations,customresourcedefinitions,priorityclasses"
NOT_OURS = ("kube-root-ca.crt", "default")
"""Kubernetes' own in every namespace."""


def test_an_upgrade_under_running_tenants(lab: Lab, figures: Figures) -> None:
    lab.run("third", memory_mib=8000, cores=30)
    lab.run("rest", memory_mib=8000, cores=60)
    before = lab.live()
    agent = lab.agent_pod()["metadata"]["uid"]
    lab.install({"agent.config": "[kubelet]\nenabled = true\ndefault_memory_mib = 2000\n"})
    until("another agent", lambda: lab.agent_pod()["metadata"]["uid"] != agent, 120)
    assert lab.live() == before
    measure(lab, {"third": 0.3, "rest": 0.6}, figures)
    assert lab.inside("third")["total_mib"] == 8000
    lab.run("later", memory_mib=None, cores=None, command="sleep 3600")
    assert lab.inside("later")["total_mib"] == 2000, "the new settings hold"


def test_uninstalling_leaves_nothing(installed: Lab) -> None:
    lab = installed
    lab.clear()
    lab.uninstall()
    until("the kubelet offers no GPU", lambda: lab.allocatable("nvidia.com/gpu") == 0, 60)
    assert left_in_the_api(lab) == []
    assert left_on_the_node(lab) == []


def left_in_the_api(lab: Lab) -> list[str]:
    def found() -> list[str]:
        spaced = lab.cluster.kubectl("get", KINDS, "-n", SYSTEM, "-o", "name").split()
        wide = lab.cluster.kubectl("get", CLUSTER_KINDS, "-o", "name").split()
        mine = [one for one in spaced if one.partition("/")[2] not in NOT_OURS]
        mine += [one for one in wide if RELEASE in one]
        node = lab.node()
        for part in (node["metadata"].get("labels", {}), node["metadata"].get("annotations", {})):
            mine += [f"node: {key}" for key in part if "sluice" in key]
        for part in ("capacity", "allocatable"):
            for name, amount in node["status"][part].items():
                # The kubelet counts devices whose plugin is gone for another five minutes, and gives none of them.
                if (
                    (part, name) != ("capacity", GPU)
                    and name.startswith("nvidia.com/")
                    and amount != "0"
                ):
                    mine.append(f"node: {part} {name} = {amount}")
        return mine

    try:
        until("nothing is left in the API", lambda: not found(), 60)
    except Exception:
        return found()
    return []


def left_on_the_node(lab: Lab) -> list[str]:
    """Mounts, CDI files, sockets and state of ours, BPF pins, processes; what NVIDIA's tools laid out is theirs.
    Below /tmp lie this machine's own tests."""
    script = (
        "awk '$5 ~ /sluice/ && $5 !~ /^\\/tmp\\// {print \"mount \" $5}' /proc/self/mountinfo; "
        "ls -d /run/cdi/sluice.dev-* /etc/cdi/sluice* /run/sluice/* /run/sluice* /var/lib/sluice* "
        "/var/lib/kubelet/device-plugins/*sluice* /sys/fs/bpf/*sluice* 2>/dev/null; "
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -E '^(/usr/bin/python3 )?[^ ]*/usr/bin/sluice ' ; done; true"
    )
    return lab.cluster.run("sh", "-c", script).stdout.splitlines()
