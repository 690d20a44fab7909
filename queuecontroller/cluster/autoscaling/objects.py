"""Objects that ask an autoscaler for one new node each, as documents. No I/O.

A placeholder is a pod that requests all GPUs of a node. No scheduler serves its schedulerName, so
it never runs and holds nothing; its condition says that it is unschedulable, which is what Cluster
Autoscaler and Karpenter look for. A ProvisioningRequest says the same to Cluster Autoscaler alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.requests import POD_TEMPLATES, REQUESTS, has
from queuecontroller.cluster.autoscaling.templates import Template
from queuecontroller.cluster.cache.objects import Document, labels_of
from sluicecommon.kubernetes.resources import PODS

NEW_NODE: Final = "sluice.dev/new-node"
"""Label of these objects: the name of the template."""
SCHEDULER: Final = "sluice-new-nodes"
"""schedulerName of placeholders; no scheduler has it."""
IMAGE: Final = "registry.k8s.io/pause:3.10"
"""Image of placeholders; it is never pulled."""
FINISHED: Final = ("Failed", "BookingExpired", "CapacityRevoked")
"""Conditions of a ProvisioningRequest that brings no node any more."""
UNSCHEDULABLE: Final = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "pending GPU shares need a new node",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller's Lease: without it the objects are removed."""

    name: str
    uid: str
    namespace: str

    @property
    def reference(self) -> dict[str, Any]:
        api = "coordination.k8s.io/v1"
        return {"apiVersion": api, "kind": "Lease", "name": self.name, "uid": self.uid}


def object_name(template: str, number: int) -> str:
    return f"sluice-new-node-{template}-{number}"


def placeholder(template: Template, name: str, owner: Owner) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": PODS.kind,
        "metadata": _head(template, name, owner),
        "spec": _pod_spec(template),
    }


def provisioning_request(
    template: Template, name: str, owner: Owner, class_name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The PodTemplate, and the ProvisioningRequest that names it."""
    head = _head(template, name, owner)
    pods = {"apiVersion": "v1", "kind": POD_TEMPLATES.kind, "metadata": head}
    pods["template"] = {"metadata": {}, "spec": _pod_spec(template)}
    spec = {
        "provisioningClassName": class_name,
        "podSets": [{"podTemplateRef": {"name": name}, "count": 1}],
    }
    request = {"apiVersion": REQUESTS.api_version, "kind": REQUESTS.kind, "metadata": head}
    return pods, {**request, "spec": spec}


def _head(template: Template, name: str, owner: Owner) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": {"app.kubernetes.io/part-of": "sluice", NEW_NODE: template.name},
        "ownerReferences": [owner.reference],
    }


def _pod_spec(template: Template) -> dict[str, Any]:
    taints = template.node.capacity.taints
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "placeholder",
        "image": IMAGE,
        "resources": {"requests": dict(template.requests), "limits": dict(template.requests)},
        "securityContext": security,
    }
    return {
        "schedulerName": SCHEDULER,
        "nodeSelector": template.selector,
        "tolerations": [
            {"key": one.key, "operator": "Exists", "effect": one.effect} for one in taints
        ],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }


@dataclass(frozen=True, slots=True)
class Change:
    create: tuple[tuple[str, str], ...] = ()
    """Template and name of each object to create."""
    delete: tuple[Document, ...] = ()


def compare(
    wanted: Mapping[str, int],
    there: Collection[Document],
    most_new: int,
    is_over: Mapping[str, bool],
) -> Change:
    """The difference between the nodes that are needed, by template, and the objects that ask for
    them; `is_over` is True for the UID of one that brings no node any more and may be replaced. At
    most `most_new` are created, and first those are deleted whose node has come."""
    create: list[tuple[str, str]] = []
    delete: list[Document] = []
    of: dict[str, list[Document]] = {}
    for one in there:
        if one["metadata"].get("deletionTimestamp"):
            continue
        if is_over.get(str(one["metadata"]["uid"])):
            delete.append(one)
        else:
            of.setdefault(str(labels_of(one).get(NEW_NODE)), []).append(one)
    taken = {str(one["metadata"]["name"]) for one in there}
    for template in sorted(wanted.keys() | of.keys()):
        have, need = of.get(template, []), wanted.get(template, 0)
        if len(have) > need:
            delete += _by_usefulness(have)[: len(have) - need]
        number = 0
        for _ in range(need - len(have)):
            while object_name(template, number) in taken:
                number += 1
            name = object_name(template, number)
            taken.add(name)
            create.append((template, name))
    return Change(tuple(create[:most_new]), tuple(delete))


def _by_usefulness(there: Collection[Document]) -> list[Document]:
    """In the order of deletion: those whose node has come, then the newest."""

    def age(one: Document) -> tuple[str, str]:
        return str(one["metadata"].get("creationTimestamp") or ""), str(one["metadata"]["name"])

    newest = sorted(there, key=age, reverse=True)
    return sorted(newest, key=lambda one: not has(one, "Provisioned"))


def is_finished(request: Document) -> bool:
    """True for a ProvisioningRequest that brings no node any more."""
    return any(has(request, one) for one in FINISHED)


def needs_condition(pod: Document) -> bool:
    """True for a placeholder without its condition: the process ended in between."""
    conditions: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    return not any(
        one.get("type") == "PodScheduled" and one.get("reason") == "Unschedulable"
        for one in conditions
    )
