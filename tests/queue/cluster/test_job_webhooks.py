"""The webhook of jobs: what it changes in new ones, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.setup.job_webhooks import json_patch, mutating, patch_of, problems_of
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
    (rule,) = by_name["jobs.kueue.sluice.dev"]["matchConditions"]
    assert rule["expression"] == "request.userInfo.username != 'system:serviceaccount:sluice:queue'"
    assert all("UPDATE" in one["operations"] for one in by_name["jobs.kueue.sluice.dev"]["rules"])
    assert "matchConditions" not in by_name["pods.kueue.sluice.dev"]
    assert all(
        "matchConditions" not in one for one in mutating(lambda path: {}, "sluice")["webhooks"][:4]
    )


def test_a_pod_that_names_a_queue_waits_longer_for_a_busy_controller_than_others_do() -> None:
    made = mutating(lambda path: {}, "sluice")["webhooks"]
    of_pods = [one for one in made if any(r["resources"] == ["pods"] for r in one["rules"])]
    of_queue = {
        one["objectSelector"]["matchExpressions"][0]["operator"]: one["timeoutSeconds"]
        for one in of_pods
        if "objectSelector" in one
    }
    assert of_queue == {"Exists": 10, "DoesNotExist": 2}
