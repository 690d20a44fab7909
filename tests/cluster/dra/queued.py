"""Queued jobs whose pods have claims made of templates, and what is counted for them."""

from __future__ import annotations

from typing import Any

from sluicecommon.kubernetes.quantity import value
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import condition, is_true, job, workload_of
from tests.kit.node import until


def template(name: str, memory: str | None, selector: str = "", **exactly: Any) -> dict[str, Any]:
    asked_for: dict[str, Any] = {"deviceClassName": "gpu.sluice.dev", **exactly}
    if memory:
        asked_for["capacity"] = {"requests": {"memory": memory}}
    if selector:
        asked_for["selectors"] = [{"cel": {"expression": selector}}]
    requests = [{"name": "gpu", "exactly": asked_for}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }


def claimed(spec: dict[str, Any], name: str) -> None:
    """The pods of `spec` come with a claim of the template, to a node without a kubelet."""
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    spec["tolerations"] = [{"operator": "Exists"}]


def claiming(name: str, of: str, queue: str = "claims") -> dict[str, Any]:
    made = job(name, queue, cpu="100m")
    claimed(made["spec"]["template"]["spec"], of)
    return made


def usage(plane: ControlPlane, name: str) -> dict[str, int]:
    """Resource usage that the Workload's admission counts."""
    found: Any = until(
        f"{name} is admitted",
        lambda: (one := workload_of(plane, name)) and is_true(one, "Admitted") and one,
        60,
    )
    (given,) = found["status"]["admission"]["podSetAssignments"]
    return {key: value(amount) for key, amount in given["resourceUsage"].items()}


def why(plane: ControlPlane, name: str, text: str) -> dict[str, Any]:
    """Its condition, once that says so."""

    def said() -> dict[str, Any]:
        found = condition(workload_of(plane, name), "QuotaReserved")
        return found if text in found.get("message", "") else {}

    return until(f"the condition of {name} says: {text}", said, 60)
