"""Kueue's objects on their way from one queue to another: the fields of each that are imported, in
v1beta2, and the reasons why one cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from queuecontroller.cluster.cache.job_context import kind_of
from queuecontroller.cluster.cache.objects import Document, has_condition
from queuecontroller.kueueapi.conversion import ConversionError, convert
from queuecontroller.kueueapi.fields import STORED
from queuecontroller.kueueapi.manifests.checking import check_kind
from queuecontroller.kueueapi.manifests.kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_local_queue,
    read_topology_levels,
)
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.kueueapi.table import GROUP, KINDS
from sluicecommon.reader import ManifestError

ORDER: Final = (
    "ResourceFlavor",
    "Topology",
    "WorkloadPriorityClass",
    "MultiKueueCluster",
    "MultiKueueConfig",
    "ProvisioningRequestConfig",
    "AdmissionCheck",
    "Cohort",
    "ClusterQueue",
    "LocalQueue",
    "Workload",
)
"""Kinds in an order in which each object comes after those that it refers to."""
API_VERSION: Final = f"{GROUP}/{STORED}"
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
_VARIANT: Final = "kueue.x-k8s.io/concurrent-admission-parent"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_BODY: Final = ("spec", "value", "description")
_HEAD: Final = ("name", "namespace", "labels", "annotations")
_OF_WORKLOADS: Final = ("uid", "creationTimestamp", "ownerReferences")
"""Metadata kept for Workloads only: the owner, and since when it is pending."""


class Name(NamedTuple):
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


def name_of(document: Document) -> Name:
    head = document.get("metadata") or {}
    kind = str(document.get("kind") or "")
    row = KINDS.get(kind)
    namespace = str(head.get("namespace") or "default") if row and row.namespaced else ""
    return Name(kind, namespace, str(head.get("name") or ""))


def carried(document: Document) -> dict[str, Any]:
    """The object to write into the target: the user's fields, and of a Workload also its status.
    Raises ConversionError."""
    made = convert(_in_group(document), API_VERSION)
    head = made.get("metadata") or {}
    is_workload = made["kind"] == "Workload"
    names = (*_HEAD, *_OF_WORKLOADS) if is_workload else _HEAD
    kept = {name: head[name] for name in names if head.get(name)}
    if (noted := dict(kept.get("annotations") or {})) and noted.pop(_LAST_APPLIED, None):
        kept["annotations"] = noted
    if kept.get("annotations") == {}:
        del kept["annotations"]
    found = {"apiVersion": API_VERSION, "kind": made["kind"], "metadata": kept}
    found |= {name: made[name] for name in _BODY if name in made}
    if is_workload and made.get("status"):
        found["status"] = made["status"]
    return found


def _in_group(document: Document) -> Document:
    """The object with v1alpha1 replaced: Cohort and Topology had v1beta1's fields there."""
    if document.get("apiVersion") == f"{GROUP}/v1alpha1":
        return {**document, "apiVersion": f"{GROUP}/v1beta1"}
    return document


def in_order(documents: Iterable[Document]) -> list[Document]:
    """Objects of Kueue's kinds, referenced ones first; Workloads the oldest first."""
    found = [one for one in documents if one.get("kind") in ORDER]
    return sorted(
        found,
        key=lambda one: (
            ORDER.index(str(one["kind"])),
            str((one.get("metadata") or {}).get("creationTimestamp") or "")
            if one["kind"] == "Workload"
            else "",
            name_of(one),
        ),
    )


def is_over(workload: Document) -> bool:
    return has_condition(workload, "Finished")


def runs(workload: Document) -> bool:
    """True if it holds quota and has not finished."""
    return bool((workload.get("status") or {}).get("admission")) and not is_over(workload)


def owner_of(workload: Document) -> Mapping[str, Any]:
    """The owner reference; empty if it has none. A group of pods has many owners, none of which is
    its controller."""
    owners = (workload.get("metadata") or {}).get("ownerReferences") or ()
    for one in (*(each for each in owners if each.get("controller")), *owners):
        found: Mapping[str, Any] = one
        return found
    return {}


def why_not(document: Document, known: Mapping[Name, Document]) -> list[str]:
    """The reasons why an object cannot be imported, each with its field; empty if it can.
    `document` is made by `carried`; `known` are all objects of the same import."""
    kind = str(document["kind"])
    found = list(_unreadable(kind, document))
    spec, status = document.get("spec") or {}, document.get("status") or {}
    if kind == "ClusterQueue":
        for check in _checks(spec):
            named = known.get(Name("AdmissionCheck", "", check))
            if named is not None and _controller(named) == MULTIKUEUE:
                found.append(
                    f"spec.admissionChecksStrategy: {check} is a MultiKueue check, which is not"
                    " imported: add it again once the workers are named here"
                )
        if spec.get("concurrentAdmissionPolicy"):
            found.append("spec.concurrentAdmissionPolicy: is not supported: remove it")
    if kind == "Workload":
        if status.get("clusterName"):
            where = status["clusterName"]
            found.append(f"status.clusterName: it runs in the cluster {where}: let it finish there")
        if _VARIANT in (document["metadata"].get("labels") or {}):
            found.append(f"metadata.labels: {_VARIANT}: workload variants are not supported")
        owner = owner_of(document)
        if owner and kind_of(owner) is None:
            what = f"{owner.get('kind')} of {owner.get('apiVersion')}"
            found.append(
                f"metadata.ownerReferences: its owner is a {what}, which is not a supported"
                " framework: add it to integrations.externalFrameworks, or let it finish"
            )
    return found


def _unreadable(kind: str, document: Document) -> Iterator[str]:
    reader = _READERS.get(kind)
    try:
        if reader is None:
            check_kind(kind, document)
        else:
            reader(document, "")
    except ManifestError as error:
        yield from map(str, error.problems)


_READERS: Final[Mapping[str, Callable[[Document, str], object]]] = {
    "ResourceFlavor": read_flavor,
    "Topology": read_topology_levels,
    "Cohort": read_cohort,
    "ClusterQueue": read_cluster_queue,
    "LocalQueue": read_local_queue,
    "Workload": read_workload,
}


def _checks(spec: Mapping[str, Any]) -> list[str]:
    rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return [str(one.get("name")) for one in rules]


def _controller(check: Document) -> str:
    return str((check.get("spec") or {}).get("controllerName") or "")


__all__ = [
    "API_VERSION",
    "ORDER",
    "ConversionError",
    "Name",
    "carried",
    "in_order",
    "is_over",
    "name_of",
    "owner_of",
    "runs",
    "why_not",
]
