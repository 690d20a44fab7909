"""Where objects of every kind in the cases lie at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.frameworks import frameworks
from queuecontroller.kueueapi import KINDS
from queuecontroller.kueueapi.table import ALPHA_KINDS
from sluicecommon.kubernetes.resources import Resource

_BUILT_IN: Final = {
    "Namespace": "namespaces",
    "LimitRange": "limitranges",
    "Node": "nodes",
    "RuntimeClass": "runtimeclasses",
    "PriorityClass": "priorityclasses",
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "DeviceClass": "deviceclasses",
    "ResourceClaimTemplate": "resourceclaimtemplates",
}
_PLURALS: Final = {
    **_BUILT_IN,
    **{one.kind: one.plural for one in frameworks()},
    **{one.name: one.plural for one in (*KINDS.values(), *ALPHA_KINDS)},
}
_CLUSTER_WIDE: Final = {
    *("Namespace", "Node", "RuntimeClass", "PriorityClass"),
    *("ClusterTrainingRuntime", "DeviceClass"),
    *(one.name for one in (*KINDS.values(), *ALPHA_KINDS) if not one.namespaced),
}


def is_namespaced(kind: str) -> bool:
    return kind not in _CLUSTER_WIDE


def collection_of(document: Mapping[str, Any]) -> str:
    """Path at which objects like this are created."""
    group, _, version = str(document["apiVersion"]).rpartition("/")
    namespace = ""
    if is_namespaced(document["kind"]):
        namespace = document["metadata"].get("namespace") or "default"
    return Resource(group, version, _PLURALS[document["kind"]]).path(namespace)


def path_of(document: Mapping[str, Any]) -> str:
    return f"{collection_of(document)}/{document['metadata']['name']}"
