"""How long Workloads that are over are kept, and what goes then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache, key_of
from queuecontroller.cluster.cache.policy import Policy, Retention
from queuecontroller.cluster.reconcilers.retention import Due, RetentionSweeper, due_of
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.status.events import KubernetesEvent
from sluicecommon.kubernetes.resources import PODS, Resource

AT = "2026-11-22T10:00:00Z"
AT_S = 1_795_341_600.0
BOTH = Retention(after_finished_s=60, after_deactivated_s=10)
GROUP = {"annotations": {"kueue.x-k8s.io/is-group-workload": "true"}}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": True}


def workload(condition: str, reason: str, active: bool = True, **head: Any) -> dict[str, Any]:
    told = {"type": condition, "status": "True", "reason": reason, "lastTransitionTime": AT}
    return {
        "metadata": {"name": "w", "namespace": "n", "uid": "u", "resourceVersion": "5", **head},
        "spec": {"active": active},
        "status": {"conditions": [told]},
    }


@pytest.mark.parametrize(
    ("document", "retention", "due"),
    [
        pytest.param(workload("Finished", "Succeeded"), BOTH, Due(AT_S + 60, False), id="it has ended"),
        pytest.param(workload("Finished", "Succeeded"), Retention(after_finished_s=0), Due(AT_S, False), id="at once"),
        pytest.param(workload("Finished", "Succeeded"), Retention(after_deactivated_s=0), None, id="those that end are kept"),
        pytest.param(workload("Evicted", "DeactivatedDueToRequeuingLimitExceeded", False), BOTH, Due(AT_S + 10, True), id="it was deactivated for what became of it"),
        pytest.param(workload("Evicted", "DeactivatedDueToAdmissionCheck", True), BOTH, None, id="it was activated again"),
        pytest.param(workload("Evicted", "Deactivated", False), BOTH, None, id="a user deactivated it"),
        pytest.param(workload("Evicted", "Preempted"), BOTH, None, id="it waits"),
        pytest.param(workload("Finished", "Succeeded", deletionTimestamp=AT), BOTH, None, id="it goes already"),
        pytest.param(workload("Finished", "Succeeded"), Retention(), None, id="nothing is said"),
    ],
)  # fmt: skip
def test_when_it_is_to_go(document: Document, retention: Retention, due: Due | None) -> None:
    assert due_of(document, retention) == due


def test_a_time_that_cannot_be_read_keeps_it() -> None:
    document = workload("Finished", "Succeeded")
    for wrong in ("yesterday", "2026-11-22T10:00:00", None, 5):
        document["status"]["conditions"][0]["lastTransitionTime"] = wrong
        assert due_of(document, BOTH) is None


class Doing:
    """Hands that note what they do."""

    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.done: list[tuple[str, ...]] = []

    async def delete(self, document: Document) -> None:
        self.done.append(("workload", key_of(document)))

    async def remove(self, kind: Resource, document: Document, propagation: str = "") -> None:
        self.done.append((kind.kind, key_of(document), propagation))

    def record(self, about: Document, kind: Resource, told: KubernetesEvent) -> None:
        self.done.append(("told", kind.kind, told.reason))


def carried_out(document: dict[str, Any], *others: tuple[Resource, dict[str, Any]]) -> Any:
    """After a second in which it is a minute later than AT."""
    cache = ObjectCache(Policy(retention=BOTH))
    cache.take(WORKLOADS, document)
    for kind, one in others:
        cache.take(kind, one)
    doing = Doing(cache)
    retention = RetentionSweeper(cast(WorkloadActions, doing), lambda: True, lambda: AT_S + 59.95)

    async def run() -> None:
        retention.add_all()
        task = asyncio.create_task(retention.work_queue.run())
        retention._now_s = lambda: AT_S + 60.0
        for _ in range(100):
            if doing.done:
                break
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(run())
    return doing.done


def named(name: str, uid: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": "1"}}


def test_one_that_has_ended_goes_alone() -> None:
    document = workload("Finished", "Succeeded", ownerReferences=[JOB])
    assert carried_out(document) == [("workload", "n/w"), ("told", "Workload", "Deleted")]


def test_one_that_was_deactivated_goes_with_its_job_and_the_jobs_pods() -> None:
    reason = "DeactivatedDueToMaximumExecutionTimeExceeded"
    kind = Resource("batch", "v1", "jobs", "Job")
    document = workload("Evicted", reason, False, ownerReferences=[JOB])
    assert carried_out(document, (kind, named("j", "uid-j"))) == [
        ("Job", "n/j", "Background"),
        ("told", "Job", "Deleted"),
    ]
    assert carried_out(workload("Evicted", reason, False)) == [], "it belongs to no job"


def test_of_a_group_all_pods_go() -> None:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": one, "uid": one} for one in ("a", "b")]
    document = workload(
        "Evicted", "DeactivatedDueToAdmissionCheck", False, ownerReferences=owners, **GROUP
    )
    done = carried_out(document, *((PODS, named(one, one)) for one in ("a", "b")))
    assert [one for one in done if one[0] == "Pod"] == [
        ("Pod", "n/a", "Background"),
        ("Pod", "n/b", "Background"),
    ]
