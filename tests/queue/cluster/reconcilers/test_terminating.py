"""Evicted jobs of kinds whose status counts no terminating pods: their pods are looked up before the quota is released."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.objects import ObjectCache, key_of
from queuecontroller.cluster.reconcilers.jobs import Jobs
from queuecontroller.cluster.reconcilers.units import Unit, unit_of
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.frameworks import ReleaseQuota, Setting, framework_of, workload_of
from tests.queue.frameworks.samples import sample
from tests.queue.frameworks.world import admitted, evicted

TF_JOBS = next(kind for kind in KINDS if kind.kind == "TFJob")


class Actions:
    def __init__(self, cache: ObjectCache, pods: bool) -> None:
        self.cache, self.pods = cache, pods
        self.done: list[object] = []
        self.looked: list[tuple[str, ...]] = []

    def setting(self, document: Any) -> Setting:
        return Setting()

    async def is_any(self, kind: Any, namespace: str, selector: str, fields: str) -> bool:
        self.looked.append((namespace, selector, fields))
        return self.pods

    async def do(self, action: object, *_: object) -> None:
        self.done.append(action)


@pytest.mark.parametrize("pods", [True, False])
def test_the_quota_of_an_evicted_job_waits_for_its_pods(pods: bool) -> None:
    document = sample("kubeflow.org/tfjob")
    document["metadata"]["resourceVersion"] = "1"
    fw = framework_of(document)
    assert fw is not None
    workload = evicted(admitted(workload_of(fw, document, queue="queue")))
    cache = ObjectCache()
    cache.take(TF_JOBS, document)
    actions = Actions(cache, pods)
    again: list[Unit] = []
    jobs = Jobs(cast(WorkloadActions, actions), again.append)
    asyncio.run(jobs.reconcile(unit_of(TF_JOBS, key_of(document)), [workload]))
    fields = "status.phase!=Succeeded,status.phase!=Failed"
    assert actions.looked == [("team", "training.kubeflow.org/job-name=sample", fields)]
    assert actions.done == ([] if pods else [ReleaseQuota()])
