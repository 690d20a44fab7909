"""Small definitions of the frameworks' kinds for an API server in tests, from the frameworks' table.

Only what the table names has a type; all else is stored as it comes. What the frameworks' own
webhooks would refuse is not refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuecontroller.frameworks import Framework, Holding, frameworks
from queuecontroller.frameworks.table import (
    Components,
    RayGroups,
    ReplicaSpecs,
    ReplicatedJobs,
    Roles,
)

BUILT_IN = ("", "apps", "batch")
Schema = dict[str, Any]


def crd_for_tests(fw: Framework) -> Schema:
    names = {
        "kind": fw.kind,
        "listKind": f"{fw.kind}List",
        "plural": fw.plural,
        "singular": fw.kind.lower(),
    }
    root = _open()
    for path, leaf in _typed(fw):
        at = root
        for step in path[:-1]:
            at = at.setdefault("properties", {}).setdefault(step, _open())
        at.setdefault("properties", {})[path[-1]] = leaf
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{fw.plural}.{fw.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": fw.group,
            "names": names,
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == fw.versions[0],
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": root},
                }
                for version in fw.versions
            ],
        },
    }


def crds_for_tests() -> list[Schema]:
    return [
        crd_for_tests(one)
        for one in frameworks()
        if one.holding is Holding.SUSPEND and one.group not in BUILT_IN
    ]


def cluster_crd_for_tests(like: Mapping[str, Any], plural: str) -> Schema:
    """Schema of a cluster-scoped object, all of it stored as it comes."""
    group, _, version = like["apiVersion"].rpartition("/")
    kind = like["kind"]
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _open() -> Schema:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _typed(fw: Framework) -> list[tuple[tuple[str, ...], Schema]]:
    entries = {"type": "array", "items": _open()}
    found: list[tuple[tuple[str, ...], Schema]] = [
        (("spec",), _open()),
        (("status",), _open()),
    ]
    if fw.suspend:
        found.append((_texts(fw.suspend), {"type": "boolean"}))
    if fw.managed_by:
        found.append((_texts(fw.managed_by), {"type": "string"}))
    match fw.pods:
        case ReplicaSpecs(at):
            found.append((_texts(at), {"type": "object", "additionalProperties": _open()}))
        case ReplicatedJobs(at) | Components(at):
            found.append((_texts(at), entries))
        case RayGroups(at):
            found.append(((*_texts(at), "workerGroupSpecs"), entries))
        case Roles():
            found += [(("spec", role), _open()) for role in ("driver", "executor")]
        case _:
            pass
    return found


def _texts(path: tuple[str | int, ...]) -> tuple[str, ...]:
    return tuple(str(step) for step in path)
