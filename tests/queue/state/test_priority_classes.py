"""Jobs that are applied name a WorkloadPriorityClass that exists."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.objects import WorkloadKey
from sluicecommon.reader import ManifestError
from tests.queue.state.world import World

JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: j
  namespace: team-a
  labels: {kueue.x-k8s.io/queue-name: q, kueue.x-k8s.io/priority-class: pressing}
spec:
  parallelism: 1
  template: {spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}
"""
CLASS = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: pressing}
value: 7
"""
KEY = WorkloadKey("team-a/job-j")


def test_a_job_of_a_class_that_does_not_exist_is_refused() -> None:
    world = World()
    with pytest.raises(ManifestError, match="there is no WorkloadPriorityClass 'pressing'"):
        world.apply(JOB)
    assert KEY not in world.book.workloads.records


@pytest.mark.parametrize("texts", [(CLASS, JOB), (JOB + CLASS,)], ids=["before", "together"])
def test_its_class_may_come_with_it(texts: tuple[str, ...]) -> None:
    world = World()
    for text in texts:
        world.apply(text)
    assert world.book.workloads.records[KEY].workload.priority == 7


def test_a_job_that_was_applied_before_its_class_was_deleted_stays_applied() -> None:
    world = World()
    world.apply(JOB + CLASS)
    identity = ("WorkloadPriorityClass", "", "pressing")
    world.step("forget", lambda book, now: book.forget_object(identity, now))
    (applied,) = world.apply(JOB)
    assert applied.action == "unchanged"
    assert world.book.workloads.records[KEY].workload.priority == 7
