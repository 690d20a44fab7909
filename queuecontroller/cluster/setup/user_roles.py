"""ClusterRoles for the users of the queue, by the names under which Kueue's manual binds them.

`kueue-batch-admin-role` is for administrators of queues, `kueue-batch-user-role` for those who
submit jobs. Both are aggregated by label from a role for editing and one for viewing each kind, so
that a role of another job framework joins them by its label alone.
"""

from __future__ import annotations

from typing import Any, Final

from queuecontroller.cluster.cache.job_context import FRAMEWORKS
from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, of_kueue
from queuecontroller.cluster.status.visibility import GROUP as VISIBILITY
from queuecontroller.cluster.status.visibility import PART
from queuecontroller.kueueapi.table import KINDS
from sluicecommon.kubernetes.resources import PODS, Resource

ADMIN: Final = "batch-admin"
USER: Final = "batch-user"
_LABEL: Final = "rbac.kueue.x-k8s.io"
_VIEW: Final = ("get", "list", "watch")
_EDIT: Final = ("create", "delete", *_VIEW, "patch", "update")
_NO_JOBS: Final = (PODS.kind, "Deployment", "StatefulSet")
"""Kinds that Kubernetes' own roles `edit` and `view` have."""


def user_roles() -> list[dict[str, Any]]:
    """Return the roles in the order of their names."""
    made = [_aggregated(ADMIN), _aggregated(USER)]
    for name in KINDS:
        kind = of_kueue(name)
        viewers = (ADMIN, USER) if kind in (LOCAL_QUEUES, WORKLOADS) else (ADMIN,)
        made += _pair(kind, (ADMIN,), viewers)
    for kind in FRAMEWORKS:
        if kind.kind not in _NO_JOBS:
            made += _pair(kind, (ADMIN, USER), (ADMIN, USER))
    for short, kind, roles in (
        ("cq", CLUSTER_QUEUES, (ADMIN,)),
        ("lq", LOCAL_QUEUES, (ADMIN, USER)),
    ):
        rule = {
            "apiGroups": [VISIBILITY],
            "resources": [f"{kind.plural}/{PART}"],
            "verbs": ["get"],
        }
        made.append(_role(f"pending-workloads-{short}-viewer-role", [rule], roles))
    metrics = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    made.append(_role("metrics-reader", [metrics], ()))
    return sorted(made, key=lambda one: str(one["metadata"]["name"]))


def _pair(
    kind: Resource, editors: tuple[str, ...], viewers: tuple[str, ...]
) -> list[dict[str, Any]]:
    name = kind.kind.lower()
    status = _rule(kind, f"{kind.plural}/status", "get")
    return [
        _role(f"{name}-editor-role", [_rule(kind, kind.plural, *_EDIT), status], editors),
        _role(f"{name}-viewer-role", [_rule(kind, kind.plural, *_VIEW), status], viewers),
    ]


def _rule(kind: Resource, plural: str, *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [kind.group], "resources": [plural], "verbs": list(verbs)}


def _role(name: str, rules: list[dict[str, Any]], members: tuple[str, ...]) -> dict[str, Any]:
    labels = {f"{_LABEL}/{one}": "true" for one in members}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": f"kueue-{name}",
            "labels": {"app.kubernetes.io/part-of": "sluice", **labels},
        },
        "rules": rules,
    }


def _aggregated(member: str) -> dict[str, Any]:
    selectors = [{"matchLabels": {f"{_LABEL}/{member}": "true"}}]
    role = _role(f"{member}-role", [], ())
    # The API server's controller fills the rules in.
    del role["rules"]
    return {**role, "aggregationRule": {"clusterRoleSelectors": selectors}}
