"""The Pod Security Standard *restricted* (https://kubernetes.io/docs/concepts/security/pod-security-standards/, Kubernetes 1.34), control by control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SECCOMP = {"RuntimeDefault", "Localhost"}
APPARMOR = {"", "RuntimeDefault", "Localhost"}


def violations(pod: dict[str, Any]) -> list[str]:
    """Controls that a pod's specification breaks; empty if a namespace that enforces *restricted* takes it."""
    own = pod.get("securityContext") or {}
    found = [field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)]
    found += [
        f"volume {one['name']}: {kind}"
        for one in pod.get("volumes") or ()
        for kind in one.keys() - {"name"} - VOLUMES
    ]
    if own.get("sysctls"):
        found.append("sysctls")
    found += _options("pod", own)
    kinds = ("initContainers", "containers", "ephemeralContainers")
    for container in [one for kind in kinds for one in pod.get(kind) or ()]:
        found += [f"{container['name']}: {one}" for one in _of_container(container, own)]
    return found


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "capabilities are not dropped"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot"
    if own.get("runAsUser", pod.get("runAsUser", 1)) == 0:
        yield "runAsUser 0"
    seccomp = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    if seccomp.get("type") not in SECCOMP:
        yield "seccompProfile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports") or ()):
        yield "hostPort"
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        for way in ("httpGet", "tcpSocket"):
            if ((container.get(name) or {}).get(way) or {}).get("host"):
                yield f"{name}: host"
    yield from _options("", own)


def _options(where: str, context: dict[str, Any]) -> Iterator[str]:
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type", "") not in SELINUX or selinux.get("user") or selinux.get("role"):
        yield f"{where} seLinuxOptions".strip()
    if (context.get("appArmorProfile") or {}).get("type", "") not in APPARMOR:
        yield f"{where} appArmorProfile".strip()
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{where} hostProcess".strip()
