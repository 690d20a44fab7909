"""Webhooks for new jobs: AdmissionReview to AdmissionReview, from the cache.

A job that has to be queued is suspended as it is created, so that none of its pods starts. While
no replica answers, the API server refuses a new object that names a queue and a new pod that
requests GPU shares, and creates all others unchanged; `Missed` has the settings of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import FRAMEWORKS, kind_of, setting
from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, FLAVORS, IN_USE
from queuecontroller.cluster.cache.objects import ObjectCache, is_leaving
from queuecontroller.frameworks import Holding, job_problems, on_create, queue_of, resizing
from queuecontroller.frameworks.names import MANAGED, QUEUE_NAME, SUSPENDING_PARENT
from queuecontroller.frameworks.patches import TOO_DEEP
from queuecontroller.gpushares.admission.names import ADMITTED_AS
from queuecontroller.kueueapi import GROUP
from sluicecommon.hami.names import IGNORE, OPT_OUT
from sluicecommon.kubernetes.resources import KUBE_SYSTEM, STATEFUL_SETS
from sluicecommon.reader import ManifestError, Problem

MUTATE_PATH: Final = "/mutate"
SHARES_PATH: Final = "/shares"
CONFIGURATION: Final = "sluice-jobs"
POD_WEBHOOK: Final = "pods.kueue.sluice.dev"
_NEW_WITH_QUEUE: Final = (
    "request.operation == 'CREATE'"
    f" && (has(object.metadata.labels) && '{QUEUE_NAME}' in object.metadata.labels"
    " || has(object.metadata.annotations)"
    f" && '{SUSPENDING_PARENT}' in object.metadata.annotations)"
)
"""New objects that name a queue, and pods of an object that does: those of a LeaderWorkerSet have
no label of their own."""
_CONTAINERS: Final = (
    "(object.?spec.?containers.orValue([]) + object.?spec.?initContainers.orValue([]))"
)
_NEW_WITH_DEVICES: Final = (
    f"request.operation == 'CREATE' && {_CONTAINERS}.exists(c,"
    " c.?resources.?limits.orValue({}).exists(r, r.contains('/'))"
    " || c.?resources.?requests.orValue({}).exists(r, r.contains('/')))"
)
"""New pods that request anything but CPU, memory and the like. The chart's admission policy allows
`Fail` for a webhook with this condition; names of resources can be configured."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Behaviour of the API server while no replica answers its webhooks in time."""

    queued_policy: str = "Fail"
    """failurePolicy for new objects that name a queue, and for new pods that request `shares`.
    Fail: they are refused. Ignore: the pods of the former may run without being counted until a
    replica answers again, and no scheduler places the latter."""
    queued_timeout_s: int = 10
    """As long as Kueue's."""
    policy: str = "Ignore"
    """failurePolicy for all other jobs and pods. Ignore: they are created unchanged."""
    timeout_s: int = 3
    shares: tuple[str, ...] = ()
    """Names of resources that no node advertises, so that pods which request them are placed by
    the scheduler that the webhook gives them, or not at all."""


MISSED: Final = Missed()


def mutating(
    client: Callable[[str], Mapping[str, Any]],
    namespace: str,
    unless_by: str = "",
    missed: Missed = MISSED,
) -> dict[str, Any]:
    """Return the MutatingWebhookConfiguration; `client` makes the clientConfig of a path.
    `unless_by`: user name of the controller, whose own writes to jobs are not sent."""
    apart = [KUBE_SYSTEM, namespace]
    expression = f"request.userInfo.username != '{unless_by}'"
    by_others = [{"name": "by-others", "expression": expression}]
    kinds = (
        # What a running job may not change is refused.
        ("jobs", Holding.SUSPEND, ["CREATE", "UPDATE"]),
        ("pods", Holding.GATE, ["CREATE", "UPDATE"]),
        # Any write may replace their templates.
        ("templates", Holding.PODS, ["CREATE", "UPDATE"]),
    )
    # An update is never refused for lack of an answer: Kubernetes' own controllers and its garbage
    # collector write to these objects, too.
    ways = (
        ("", f"!({_NEW_WITH_QUEUE})", missed.policy, missed.timeout_s),
        ("queued-", _NEW_WITH_QUEUE, missed.queued_policy, missed.queued_timeout_s),
    )
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/part-of": "sluice"}},
        "webhooks": [
            {
                "name": f"{prefix}{name}.kueue.sluice.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": dict(client(MUTATE_PATH)),
                "failurePolicy": policy,
                "sideEffects": "None",
                "timeoutSeconds": seconds,
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
                "rules": _rules(holding, ["CREATE"] if prefix else operations),
                "matchConditions": [
                    {"name": "names-a-queue" if prefix else "all-others", "expression": matches},
                    *((_QUEUED_PODS,) if holding is Holding.GATE and not prefix else ()),
                    *(by_others if unless_by and holding is not Holding.PODS else ()),
                ],
            }
            for prefix, matches, policy, seconds in ways
            for name, holding, operations in kinds
        ]
        + [_objects(client), *_shares(client, apart, missed)],
    }


def _objects(client: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the webhook for new queues and flavors, which get their finalizer."""
    return {
        "name": "objects.kueue.sluice.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": dict(client(MUTATE_PATH)),
        "failurePolicy": "Ignore",  # The controller adds what the webhook misses.
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "matchPolicy": "Equivalent",
        "rules": [
            {
                "apiGroups": [GROUP],
                "apiVersions": [CLUSTER_QUEUES.version],
                "operations": ["CREATE"],
                "resources": sorted(one.plural for one in (CLUSTER_QUEUES, FLAVORS)),
                "scope": "Cluster",
            }
        ],
    }


_QUEUED_PODS: Final = {
    "name": "made-or-queued",
    "expression": "request.operation == 'CREATE' || (has(oldObject.metadata.labels)"
    f" && '{MANAGED}' in oldObject.metadata.labels)",
}
"""New pods, and those that are queued: others may be changed without being sent."""
_ANNOTATIONS_CHANGE: Final = (
    "has(object.metadata.annotations) != has(oldObject.metadata.annotations)"
    " || (has(object.metadata.annotations)"
    " && object.metadata.annotations != oldObject.metadata.annotations)"
)


def _shares(
    client: Callable[[str], Mapping[str, Any]], apart: list[str], missed: Missed
) -> Iterator[dict[str, Any]]:
    """Yield the webhooks for pods that request GPU shares, queued or not; HAMi's label opts out."""
    webhook: dict[str, Any] = {
        "name": "shares.sluice.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": dict(client(SHARES_PATH)),
        # Without it such a pod stays Pending, or gets exactly the resources it names.
        "failurePolicy": missed.policy,
        # Admitted pods are counted for seconds; a dry run is not.
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": missed.timeout_s,
        "matchPolicy": "Equivalent",
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": apart},
                {"key": OPT_OUT, "operator": "NotIn", "values": [IGNORE]},
            ]
        },
        "matchConditions": [
            {
                "name": "made-annotated-or-debugged",
                "expression": "request.operation == 'CREATE'"
                f" || request.subResource == 'ephemeralcontainers' || {_ANNOTATIONS_CHANGE}",
            }
        ],
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["pods", "pods/ephemeralcontainers"],
                "scope": "Namespaced",
            }
        ],
    }
    if not missed.shares:
        yield webhook
        return
    named = _new_with_shares(missed.shares)
    others = {"name": "all-others", "expression": f"!({named})"}
    yield {**webhook, "matchConditions": [*webhook["matchConditions"], others]}
    yield {
        **webhook,
        "name": "new-shares.sluice.dev",
        "failurePolicy": missed.queued_policy,
        "timeoutSeconds": missed.queued_timeout_s,
        "matchConditions": [
            {"name": "new-with-devices", "expression": _NEW_WITH_DEVICES},
            {"name": "requests-shares", "expression": named},
        ],
        "rules": [{**webhook["rules"][0], "operations": ["CREATE"], "resources": ["pods"]}],
    }


def _new_with_shares(names: Sequence[str]) -> str:
    """Return the CEL expression for a new pod that requests one of the resources, has not the label
    that leaves it as it is, and was not admitted by the other webhook, which may have added them.
    """
    return (
        "request.operation == 'CREATE'"
        f" && !('{ADMITTED_AS}' in object.metadata.?annotations.orValue({{}}))"
        f" && object.metadata.?labels[?'{OPT_OUT}'].orValue('') != '{IGNORE}'"
        f" && {_CONTAINERS}.exists(c, {json.dumps(list(names))}.exists(r,"
        " r in c.?resources.?limits.orValue({}) || r in c.?resources.?requests.orValue({})))"
    )


def _rules(holding: Holding, operations: list[str]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, framework in FRAMEWORKS.items():
        if framework.holding is holding:
            plurals = groups.setdefault((kind.group, kind.version), [])
            plurals.append(kind.plural)
            if kind == STATEFUL_SETS:
                plurals.append(f"{kind.plural}/scale")
    return [
        {
            "apiGroups": [group],
            "apiVersions": [version],
            "operations": operations,
            "resources": sorted(plurals),
            "scope": "Namespaced",
        }
        for (group, version), plurals in sorted(groups.items())
    ]


def patch_of(
    cache: ObjectCache,
    document: Mapping[str, Any],
    old: Mapping[str, Any] | None,
    namespace: str,
) -> dict[str, Any]:
    """Return the merge patch for an object being written; empty if it stays as it is. `old` is the
    object that it replaces."""
    if str(document.get("apiVersion")).startswith(f"{GROUP}/"):
        return _kept(document) if old is None else {}
    kind = kind_of(document)
    if kind is None or not cache.policy.wants(FRAMEWORKS[kind]):
        return {}
    if old is not None and FRAMEWORKS[kind].holding is not Holding.PODS:
        return {}  # It may run: the controller starts and stops it.
    whole = _in(namespace, document)
    try:
        around = setting(cache, whole, namespace)
        patch = on_create(FRAMEWORKS[kind], whole, around, is_new=old is None)
    except ManifestError:
        return {}  # The controller records the error as an event on the job.
    return patch


def _kept(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that adds the finalizer to a queue or a flavor: an object that is deleted a
    moment later may be in use by then."""
    known = (document.get("metadata") or {}).get("finalizers") or []
    return {} if IN_USE in known else {"metadata": {"finalizers": [*known, IN_USE]}}


def problems_of(
    cache: ObjectCache, document: Mapping[str, Any], old: Mapping[str, Any] | None, namespace: str
) -> Sequence[Problem]:
    """Return the errors of a queued object, or of a change that it may not make while it runs."""
    if document.get("kind") == "Scale":
        name = (document.get("metadata") or {}).get("name")
        known = cache.get(STATEFUL_SETS, f"{namespace}/{name}")
        counts = old is not None and known is not None and queue_of(known)
        return resizing(old, document) if old is not None and counts else ()
    kind = kind_of(document)
    if kind is None or not cache.policy.wants(FRAMEWORKS[kind]):
        return ()
    whole = _in(namespace, document)
    if is_leaving(whole):
        return ()
    before = _in(namespace, old) if old is not None else None
    try:
        return job_problems(FRAMEWORKS[kind], whole, before, setting(cache, whole, namespace))
    except RecursionError:
        return (TOO_DEEP,)


def _in(namespace: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with its namespace, which it may lack in a request."""
    return {**document, "metadata": {**(document.get("metadata") or {}), "namespace": namespace}}


def operations(
    document: Mapping[str, Any], patch: Mapping[str, Any], path: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield a merge patch as a JSON patch (RFC 6902), the only type that an answer may have."""
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
