"""The roles that administrators and users of queues are bound to, as the API server's own controller aggregates them and its
authorizer applies them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import apply
from tests.kit.node import until
from tests.kit.places import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
RBAC = "rbac.authorization.k8s.io"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def bound(kind: str, role: str, user: str, **place: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": user, **place},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as plane,
    ):
        roles = REPO / "packaging" / "kubernetes" / "kueue-user-roles.yaml"
        plane.kubectl("apply", "--server-side", "-f", str(roles))
        apply(
            plane,
            bound("ClusterRoleBinding", "kueue-batch-admin-role", "ada"),
            bound("RoleBinding", "kueue-batch-user-role", "bob", namespace="default"),
            bound("ClusterRoleBinding", "kueue-metrics-reader", "scraper"),
        )
        path = f"/apis/{RBAC}/v1/clusterroles/kueue-batch"
        for one in ("admin", "user"):
            until(f"{one} has rules", lambda one=one: plane.api.get(f"{path}-{one}-role").get("rules"), 60)  # fmt: skip
        yield plane


def may(plane: ControlPlane, user: str, **what: Any) -> bool:
    spec = {"user": user, **what}
    document = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    found = plane.api.call("POST", REVIEWS, {**document, "spec": spec})
    return bool(found["status"]["allowed"])


KUEUE = "kueue.x-k8s.io"
CASES = [
    ("ada", "create", KUEUE, "clusterqueues", "", True),
    ("ada", "patch", KUEUE, "resourceflavors", "", True),
    ("ada", "delete", KUEUE, "workloads", "default", True),
    ("ada", "create", KUEUE, "localqueues", "other", True),
    ("ada", "get", f"visibility.{KUEUE}", "clusterqueues/pendingworkloads", "", True),
    ("ada", "patch", KUEUE, "workloads/status", "default", False),
    ("bob", "create", "batch", "jobs", "default", True),
    ("bob", "create", "ray.io", "rayjobs", "default", True),
    ("bob", "list", KUEUE, "workloads", "default", True),
    ("bob", "list", KUEUE, "localqueues", "default", True),
    ("bob", "get", f"visibility.{KUEUE}", "localqueues/pendingworkloads", "default", True),
    ("bob", "create", "batch", "jobs", "other", False),
    ("bob", "delete", KUEUE, "workloads", "default", False),
    ("bob", "create", KUEUE, "localqueues", "default", False),
    ("bob", "create", KUEUE, "clusterqueues", "", False),
]


@pytest.mark.parametrize(("user", "verb", "group", "resource", "namespace", "allowed"), CASES)
def test_a_user_may_what_the_bound_role_says(
    plane: ControlPlane,
    user: str,
    verb: str,
    group: str,
    resource: str,
    namespace: str,
    allowed: bool,
) -> None:
    plural, _, part = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": part}
    given = may(plane, user, resourceAttributes={**attributes, "namespace": namespace})
    assert given is allowed


def test_the_metrics_reader_may_read_metrics_and_nothing_else(plane: ControlPlane) -> None:
    path = {"path": "/metrics", "verb": "get"}
    assert may(plane, "scraper", nonResourceAttributes=path)
    assert not may(plane, "scraper", nonResourceAttributes={**path, "path": "/healthz/etcd"})
    pods = {"verb": "list", "resource": "pods", "namespace": "default"}
    assert not may(plane, "scraper", resourceAttributes=pods)
