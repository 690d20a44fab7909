"""The StatefulSet behind pods, and behind the Workload that they had."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import FRAMEWORKS, set_of_group, set_of_pod, setting
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.frameworks import group_of_set
from sluicecommon.kubernetes.resources import STATEFUL_SETS

OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db"}


def world(replicas: int = 1, uid: str = "u-db", **head: str) -> ObjectCache:
    made = ObjectCache()
    metadata = {"name": "db", "namespace": "n", "uid": uid, "resourceVersion": "1", **head}
    made.take(STATEFUL_SETS, {"metadata": metadata, "spec": {"replicas": replicas}})
    return made


def owned(group: str = "", **more: Any) -> dict[str, Any]:
    head = {
        "name": "x",
        "namespace": "n",
        "ownerReferences": [{**OWNER, **more}],
        "labels": {"kueue.x-k8s.io/pod-group-name": group or group_of_set("db", "u-db")},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": head}


def test_a_pod_has_the_size_and_the_owner_that_its_set_says() -> None:
    found = setting(world(3), owned(controller=True), "n")
    assert (found.group_total, found.group_owner) == (3, OWNER)
    of_before = owned(group_of_set("db"), controller=True)
    assert setting(world(3), of_before, "n").group_total == 3, "from before it had the UID"
    assert set_of_pod(world(uid="another"), owned(controller=True), "n") is None
    assert setting(world(), {"metadata": {"name": "x", "namespace": "n"}}, "n").group_owner is None


@pytest.mark.parametrize(("namespace", "selected"), [("kueue-system", False), ("n", True)])
def test_the_selector_of_namespaces_counts_for_jobs_with_a_queue_too(
    namespace: str, selected: bool
) -> None:
    found = setting(ObjectCache(), {"metadata": {"name": "x", "namespace": namespace}}, namespace)
    assert found.namespace_selected is selected
    assert not found.without_queue


def test_the_statefulset_of_a_leaderworkerset_says_nothing_about_its_group() -> None:
    """Its controller makes one for the leaders, of as many replicas as there are groups, and one
    for each group's workers."""
    pod = owned(controller=True)
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "leaderworkerset-db-0-1b2c3"}
    found = setting(world(2), pod, "n")
    assert (found.group_total, found.group_owner) == (None, None)


@pytest.mark.parametrize(
    ("around", "kept"),
    [
        pytest.param(world(), True, id="it makes its pods anew"),
        pytest.param(world(0), True, id="it wants none for now"),
        pytest.param(world(uid="another"), False, id="it is another by that name"),
        pytest.param(world(deletionTimestamp="2026-01-01T00:00:00Z"), False, id="it goes"),
        pytest.param(ObjectCache(), False, id="it is gone"),
    ],
)
def test_a_workload_without_pods_is_kept_for_its_set(around: ObjectCache, kept: bool) -> None:
    assert (set_of_group(around, owned()) is not None) is kept


@pytest.mark.parametrize(("uid", "follows"), [("u-set", True), ("u-of-before", False)])
def test_a_reference_to_a_queued_owner_of_another_uid_is_none(uid: str, follows: bool) -> None:
    """Otherwise a job that names the UID of an owner which was deleted would run uncounted."""
    cache = ObjectCache()
    (kind,) = [one for one in FRAMEWORKS if one.kind == "JobSet"]
    head = {"name": "set", "namespace": "n", "uid": "u-set", "resourceVersion": "1"}
    queue = {"kueue.x-k8s.io/queue-name": "q"}
    names = {"apiVersion": kind.api_version, "kind": kind.kind}
    cache.take(kind, {**names, "metadata": {**head, "labels": queue}, "spec": {}})
    owner = {**names, "name": "set", "uid": uid, "controller": True}
    made = {"name": "set-a", "namespace": "n", "ownerReferences": [owner]}
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": made}
    assert setting(cache, document, "n").parent_managed is follows
