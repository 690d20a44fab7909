"""Security of the chart's pods: *restricted* for all but the agent, OpenShift's and SELinux' rules, and each capability of the agent with its reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.kit.places import REPO
from tests.kit.pod_security import violations
from tests.packages.chart import SECRETS, needs_helm, of, rendered, template

INSTALL = (REPO / "docs" / "install.md").read_text()
MODES = ("standalone", "kubernetes", "beside")
SCC_FIELDS = {
    "allowHostDirVolumePlugin",
    "allowHostIPC",
    "allowHostNetwork",
    "allowHostPID",
    "allowHostPorts",
    "allowPrivilegeEscalation",
    "allowPrivilegedContainer",
    "allowedCapabilities",
    "defaultAddCapabilities",
    "fsGroup",
    "groups",
    "priority",
    "readOnlyRootFilesystem",
    "requiredDropCapabilities",
    "runAsUser",
    "seLinuxContext",
    "seccompProfiles",
    "supplementalGroups",
    "users",
    "volumes",
}
"""Fields of security.openshift.io/v1 SecurityContextConstraints that its schema requires or that we set."""


def pods(objects: list[Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for one in objects:
        if one["kind"] == "Pod":
            found[one["metadata"]["name"]] = one["spec"]
        elif one["kind"] in ("Deployment", "DaemonSet", "Job", "StatefulSet"):
            found[one["metadata"]["name"]] = one["spec"]["template"]["spec"]
    return found


PAGE = ("queue.page.service=true", "networkPolicy.pageFrom[0].podSelector.x=y")


@needs_helm
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("more", [(), ("openShift=true",), PAGE], ids=["", "openShift", "page"])
def test_the_queues_pods_pass_restricted(mode: str, more: tuple[str, ...]) -> None:
    beside = mode == "beside"
    if beside and more == PAGE:
        more = ()  # There is no page beside Kueue.
    objects = rendered(*SECRETS, f"queue.mode={mode}", *more)
    found = {name: violations(pod) for name, pod in pods(objects).items()}
    privileged = {name for name, broken in found.items() if broken}
    assert "s-queue" in found
    assert privileged <= {"s-agent", "s-cleanup", "s-test"}, found
    assert found["s-agent"], "a check that finds nothing in it finds nothing"
    if not beside:  # There agents are needed.
        alone = rendered(*SECRETS, f"queue.mode={mode}", "agent.enabled=false", *more)
        assert not [pod for pod in pods(alone).values() if violations(pod)]


@needs_helm
def test_a_scheduler_beside_the_queue_passes_restricted_too() -> None:
    objects = rendered(*SECRETS, "queue.mode=kubernetes", "scheduler.besideQueue=true")
    queue = pods(objects)["s-queue"]
    assert [one["name"] for one in queue["containers"]] == ["queue", "scheduler"]
    assert violations(queue) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"hostPID": True}, "hostPID"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "volume x: hostPath"),
        ({"securityContext": {"runAsNonRoot": True}}, "c: seccompProfile"),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, "c: runAsNonRoot"),
    ],
)
def test_a_pod_that_breaks_the_standard_is_found(change: dict[str, Any], found: str) -> None:
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    good = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "securityContext": own}],
    }
    assert violations(good) == []
    assert violations({**good, **change}) == [found]
    for broken in ({"allowPrivilegeEscalation": True}, {"capabilities": {"add": ["KILL"]}}):
        assert violations({**good, "containers": [{"name": "c", "securityContext": {**own, **broken}}]})  # fmt: skip


@needs_helm
@pytest.mark.parametrize("mode", MODES)
def test_on_openshift_ids_are_the_namespaces_and_the_agent_has_constraints(mode: str) -> None:
    """restricted-v2 refuses a pod that names an id out of its namespace's range."""
    unprivileged = yaml.safe_load(unprivileged_text())["agent"]["securityContext"]["capabilities"]
    adding = [f"agent.securityContext.capabilities.add[{n}]={one}" for n, one in enumerate(unprivileged["add"])]  # fmt: skip
    objects = rendered(*SECRETS, f"queue.mode={mode}", "openShift=true", *adding)
    for name, pod in pods(objects).items():
        if name not in ("s-agent", "s-cleanup", "s-cleanup-agents", "s-cleanup-cluster"):
            for context in (pod.get("securityContext") or {}, *(c["securityContext"] for c in pod["containers"])):  # fmt: skip
                assert not context.keys() & {"runAsUser", "runAsGroup", "fsGroup"}, name
    constraints = of(objects, "SecurityContextConstraints")
    assert constraints["apiVersion"] == "security.openshift.io/v1"
    assert constraints.keys() - {"apiVersion", "kind", "metadata"} == SCC_FIELDS
    assert constraints["users"] == [f"system:serviceaccount:gpu:s-{one}" for one in ("agent", "cleanup")]  # fmt: skip
    assert constraints["allowedCapabilities"] == unprivileged["add"]
    agent = pods(objects)["s-agent"]
    assert {kind for one in agent["volumes"] for kind in one.keys() - {"name"}} <= set(constraints["volumes"])  # fmt: skip
    assert constraints["allowHostPID"] is agent["hostPID"]
    assert not [one for one in rendered(*SECRETS) if one["kind"].startswith("SecurityContext")]


@needs_helm
def test_without_privilege_the_constraints_allow_none() -> None:
    given = ("openShift=true", "cleanup.enabled=false", "agent.securityContext.privileged=false")
    constraints = of(rendered(*SECRETS, *given), "SecurityContextConstraints")
    assert constraints["allowPrivilegedContainer"] is False
    assert constraints["users"] == ["system:serviceaccount:gpu:s-agent"]


@needs_helm
def test_selinux_labels_go_to_the_pods() -> None:
    level = "queue.seLinuxOptions.level=s0:c1\\,c2"
    objects = rendered(*SECRETS, "queue.mode=kubernetes", level, "agent.securityContext.seLinuxOptions.type=spc_t")  # fmt: skip
    found = pods(objects)
    assert found["s-queue"]["securityContext"]["seLinuxOptions"] == {"level": "s0:c1,c2"}
    assert found["s-scheduler"]["securityContext"]["seLinuxOptions"] == {"level": "s0:c1,c2"}
    (agent,) = found["s-agent"]["containers"]
    assert agent["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert template(*SECRETS, "queue.seLinuxOptions=spc_t").returncode != 0


def unprivileged_text() -> str:
    (found,) = re.findall(r"```yaml\n(agent:\n  securityContext:\n.*?)```", INSTALL, re.S)
    return str(found)


def test_each_capability_of_the_agent_has_its_reason() -> None:
    """Those of the unprivileged agent, of the table of reasons, and of the unit."""
    example = yaml.safe_load(unprivileged_text())["agent"]["securityContext"]
    assert example["privileged"] is False
    assert example["capabilities"]["drop"] == ["ALL"]
    added = example["capabilities"]["add"]
    assert len(added) == len(set(added))
    table = INSTALL.partition("### Privileges on the node")[2].partition("```yaml")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    reasons = {
        name: reason.strip()
        for names, reason in rows
        for name in re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", names.partition("(")[0])
        if not names.strip().startswith("`KUBELET")
    }
    assert reasons.keys() == set(added)
    assert all(len(reason) > 10 for reason in reasons.values())
    unit = (REPO / "systemd" / "sluice.service").read_text()
    (bounding,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.M)
    assert {one.removeprefix("CAP_") for one in bounding.split()} <= reasons.keys()
