"""What the API server asks about new jobs: AdmissionReview to AdmissionReview, from what is known.

A job that has to wait is suspended as it is created, so that nothing of it runs before. Where this
is away the job is created as it is, and suspended a moment later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from queuecontroller.jobs import on_create
from queuecontroller.reader import ManifestError

from .around import KINDS, kind_of, setting
from .world import World

MUTATE_PATH: Final = "/mutate"
CONFIGURATION: Final = "sluice-jobs"


def mutating(client: Callable[[str], Mapping[str, Any]], namespace: str) -> dict[str, Any]:
    """The MutatingWebhookConfiguration; `client` makes the clientConfig of a path."""
    groups: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        groups.setdefault((kind.group, kind.version), []).append(kind.plural)
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": [version],
            "operations": ["CREATE"],
            "resources": sorted(plurals),
            "scope": "Namespaced",
        }
        for (group, version), plurals in sorted(groups.items())
    ]
    apart = ["kube-system", namespace]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/part-of": "sluice"}},
        "webhooks": [
            {
                "name": "jobs.kueue.sluice.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": dict(client(MUTATE_PATH)),
                # What it misses is mended by the controller; a cluster must not stand still for it.
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "timeoutSeconds": 5,
                "matchPolicy": "Equivalent",
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": apart,
                        }
                    ]
                },
                "rules": rules,
            }
        ],
    }


def patch_of(world: World, document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The merge patch of a job that is being created; empty: it is taken as it is."""
    kind = kind_of(document)
    if kind is None:
        return {}
    whole = {**document, "metadata": {"namespace": namespace, **(document.get("metadata") or {})}}
    try:
        return on_create(KINDS[kind], whole, setting(world, whole, namespace))
    except ManifestError:
        return {}  # the controller says what is wrong, as an event at the job


def operations(
    document: Mapping[str, Any], patch: Mapping[str, Any], path: str = ""
) -> Iterator[dict[str, Any]]:
    """A merge patch as a JSON patch (RFC 6902), which is all that an answer may hold."""
    for name, value in patch.items():
        at = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        known = document.get(name)
        if value is None:
            if name in document:
                yield {"op": "remove", "path": at}
        elif isinstance(value, Mapping) and isinstance(known, Mapping):
            yield from operations(known, value, at)
        else:
            yield {"op": "add", "path": at, "value": value}


def json_patch(document: Mapping[str, Any], patch: Mapping[str, Any]) -> bytes:
    return json.dumps(list(operations(document, patch)), separators=(",", ":")).encode()
