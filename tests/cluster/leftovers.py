"""Remains of an uninstalled Sluice, in the API and on the node: there must be none."""

from __future__ import annotations

from tests.cluster.lab import GPU, RELEASE, SYSTEM, Lab
from tests.kit.node import until

KINDS = "daemonsets,deployments,pods,services,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,roles,rolebindings,jobs,leases,persistentvolumeclaims"
CLUSTER_KINDS = "clusterroles,clusterrolebindings,runtimeclasses,mutatingwebhookconfigurations,validatingwebhookconfigurations,customresourcedefinitions,priorityclasses,resourceslices,deviceclasses,validatingadmissionpolicies,validatingadmissionpolicybindings"
NOT_OURS = ("kube-root-ca.crt", "default")
"""Kubernetes' own in every namespace."""


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
        "/var/lib/kubelet/device-plugins/*sluice* /var/lib/kubelet/plugins_registry/*sluice* "
        "/var/lib/kubelet/plugins/*sluice*/* /sys/fs/bpf/*sluice* 2>/dev/null; "
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -E '^(/usr/bin/python3 )?[^ ]*/usr/bin/sluice ' ; done; true"
    )
    return lab.cluster.run("sh", "-c", script).stdout.splitlines()
