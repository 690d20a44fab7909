"""The webhook of jobs: what it changes in new ones, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import setting
from queuecontroller.cluster.cache.kinds import CHECKS, CLUSTER_QUEUES, LOCAL_QUEUES
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.setup.job_webhooks import (
    Missed,
    json_patch,
    mutating,
    patch_of,
    problems_of,
)
from queuecontroller.frameworks import framework_of, on_create
from queuecontroller.frameworks.patches import merged
from queuecontroller.server.web.reviews import patched
from tests.queue.frameworks.samples import QUEUE, job, pod


def running(**head: Any) -> dict[str, Any]:
    spec = {"parallelism": 1, "suspend": False, "template": pod()}
    return job("batch/v1", "Job", spec, **head)


def answered(document: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    cache = ObjectCache()

    def patch(one: dict[str, Any], before: dict[str, Any] | None, namespace: str) -> bytes:
        return json_patch(one, patch_of(cache, one, before, namespace))

    request = {"uid": "7", "namespace": "team", "object": document, "oldObject": old}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    made = patched(json.dumps(body).encode(), patch, partial(problems_of, cache))
    found: dict[str, Any] = json.loads(made)["response"]
    return found


def test_a_new_job_is_suspended_and_a_running_one_is_left_as_it_is() -> None:
    assert "patch" in answered(running())
    changed = running(labels={QUEUE: "queue", "more": "labels"})
    assert answered(changed, running()) == {"uid": "7", "allowed": True}


def test_a_running_job_that_leaves_its_queue_is_forbidden() -> None:
    answer = answered(running(labels={}), running())
    assert answer["allowed"] is False
    assert (answer["status"]["code"], answer["status"]["reason"]) == (403, "Forbidden")
    assert QUEUE in answer["status"]["message"]


def test_what_is_being_deleted_is_not_judged() -> None:
    going = running(labels={}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert answered(going, running())["allowed"] is True


def test_the_controllers_own_writes_to_jobs_are_not_sent() -> None:
    made = mutating(lambda path: {"url": path}, "sluice", "system:serviceaccount:sluice:queue")
    by_name = {one["name"]: one for one in made["webhooks"]}
    jobs, pods = by_name["jobs.kueue.sluice.dev"], by_name["pods.kueue.sluice.dev"]
    mine = "request.userInfo.username != 'system:serviceaccount:sluice:queue'"
    for one in (jobs, pods):
        assert mine in [each["expression"] for each in one["matchConditions"]]
    changed = {each["name"]: each["expression"] for each in pods["matchConditions"]}
    assert "'kueue.x-k8s.io/managed' in oldObject.metadata.labels" in changed["made-or-queued"]
    assert all("UPDATE" in one["operations"] for one in jobs["rules"])
    other = mutating(lambda path: {}, "sluice")["webhooks"]
    for one in (by_name["templates.kueue.sluice.dev"], *other):
        assert "by-others" not in [each["name"] for each in one.get("matchConditions", ())]


def test_only_new_objects_that_name_a_queue_are_refused_while_no_replica_answers() -> None:
    made = mutating(lambda path: {"url": path}, "sluice")
    by_name = {one["name"].partition(".")[0]: one for one in made["webhooks"]}
    for kind in ("jobs", "pods", "templates"):
        queued, rest = by_name[f"queued-{kind}"], by_name[kind]
        assert (queued["failurePolicy"], queued["timeoutSeconds"]) == ("Fail", 10)
        assert all(one["operations"] == ["CREATE"] for one in queued["rules"])
        assert rest["failurePolicy"] == "Ignore"
        (named,) = [one["expression"] for one in queued["matchConditions"]]
        assert rest["matchConditions"][0]["expression"] == f"!({named})"
        kinds = [one["resources"] for one in queued["rules"]]
        assert kinds == [one["resources"] for one in rest["rules"]]


def test_failure_policies_and_timeouts_are_settings() -> None:
    missed = Missed("Ignore", 7, "Fail", 4, ("a.io/memory",))
    made = mutating(lambda path: {}, "sluice", "", missed)["webhooks"]
    found = {one["name"]: (one["failurePolicy"], one["timeoutSeconds"]) for one in made}
    assert found.pop("objects.kueue.sluice.dev") == ("Ignore", 5)
    refused = {name for name in found if name.startswith(("queued-", "new-shares"))}
    assert len(refused) == 4
    assert {found[name] for name in refused} == {("Ignore", 7)}
    assert {way for name, way in found.items() if name not in refused} == {("Fail", 4)}


def test_new_pods_that_request_shares_are_refused_while_no_replica_answers() -> None:
    missed = Missed(shares=("a.io/memory", "a.io/cores"))
    by_name = {
        one["name"]: one
        for one in mutating(lambda path: {"url": path}, "sluice", "", missed)["webhooks"]
    }
    made, rest = by_name["new-shares.sluice.dev"], by_name["shares.sluice.dev"]
    assert (made["failurePolicy"], made["timeoutSeconds"]) == ("Fail", 10)
    assert [(one["operations"], one["resources"]) for one in made["rules"]] == [(["CREATE"], ["pods"])]  # fmt: skip
    assert made["namespaceSelector"] == rest["namespaceSelector"]
    named = made["matchConditions"][-1]["expression"]
    assert '["a.io/memory", "a.io/cores"]' in named
    assert rest["failurePolicy"] == "Ignore"
    assert rest["matchConditions"][-1]["expression"] == f"!({named})"
    order = [one for one in by_name if "shares" in one]
    assert order == ["shares.sluice.dev", "new-shares.sluice.dev"], "the first may add amounts"
    assert "!('sluice.dev/admitted-as' in " in named, "and no pod is admitted twice"
    assert rest["rules"][0]["operations"] == ["CREATE", "UPDATE"]


def test_without_a_scheduler_of_ours_pods_with_shares_are_asked_about_as_all_others() -> None:
    made = [one["name"] for one in mutating(lambda path: {"url": path}, "sluice")["webhooks"]]
    assert [one for one in made if "shares" in one] == ["shares.sluice.dev"]


@pytest.mark.parametrize(
    ("queue", "given", "wanted"),
    [
        ("far", None, "kueue.x-k8s.io/multikueue"),
        ("far", "jobset.sigs.k8s.io/jobset-controller", "kueue.x-k8s.io/multikueue"),
        ("far", "a.io/mine", "a.io/mine"),
        ("near", None, None),
        ("missing", None, None),
    ],
)
def test_a_new_job_of_a_queue_with_workers_is_multikueues(
    queue: str, given: str | None, wanted: str | None
) -> None:
    cache = ObjectCache()
    head = {"uid": "u", "resourceVersion": "1"}
    for kind, name, namespace, spec in (
        (CHECKS, "mk", "", {"controllerName": "kueue.x-k8s.io/multikueue"}),
        (CHECKS, "other", "", {"controllerName": "a.io/check"}),
        (CLUSTER_QUEUES, "fleet", "", _checked("other", "mk")),
        (CLUSTER_QUEUES, "here", "", _checked("other")),
        (LOCAL_QUEUES, "far", "team", {"clusterQueue": "fleet"}),
        (LOCAL_QUEUES, "near", "team", {"clusterQueue": "here"}),
    ):
        cache.take(kind, {"metadata": {"name": name, "namespace": namespace, **head}, "spec": spec})
    document = job(
        "batch/v1", "Job", {"template": pod(), **({"managedBy": given} if given else {})}
    )
    document["metadata"]["labels"][QUEUE] = queue
    framework = framework_of(document)
    assert framework is not None
    made = merged(document, on_create(framework, document, setting(cache, document, "team")))
    assert made["spec"]["suspend"] is True
    assert made["spec"].get("managedBy") == wanted


def _checked(*names: str) -> dict[str, Any]:
    return {"admissionChecksStrategy": {"admissionChecks": [{"name": one} for one in names]}}
