"""Evicted jobs of kinds whose status counts no terminating pods: their pods are looked up before the quota is released."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import FRAMEWORKS, KINDS
from queuecontroller.cluster.cache.objects import ObjectCache, key_of
from queuecontroller.cluster.reconcilers.jobs import Jobs
from queuecontroller.cluster.reconcilers.units import Unit, unit_of
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.frameworks import ReleaseQuota, Setting, framework_of, workload_of
from sluicecommon.kubernetes.resources import PODS, Resource
from tests.queue.frameworks.samples import sample
from tests.queue.frameworks.world import admitted, evicted

TF_JOBS = next(kind for kind in KINDS if kind.kind == "TFJob")


class Actions:
    def __init__(self, cache: ObjectCache, pods: bool) -> None:
        self.cache, self.pods = cache, pods
        self.done: list[object] = []
        self.looked: list[tuple[Any, ...]] = []

    def setting(self, document: Any) -> Setting:
        return Setting()

    async def is_any(self, kind: Any, *words: Any) -> bool:
        self.looked.append(words)
        return self.pods

    async def do(self, action: object, *_: object) -> None:
        self.done.append(action)


RAY_JOBS = next(kind for kind in KINDS if kind.kind == "RayJob")
FIELDS = "status.phase!=Succeeded,status.phase!=Failed"
RAY_PODS = "kueue.x-k8s.io/podset in (head,small,large,submitter)"
LOOKS = {
    TF_JOBS: ("team", "training.kubeflow.org/job-name=sample", FIELDS),
    RAY_JOBS: ("team", RAY_PODS, FIELDS),
}


@pytest.mark.parametrize("kind", [TF_JOBS, RAY_JOBS], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("pods", [True, False])
def test_the_quota_of_an_evicted_job_waits_for_its_pods(kind: Resource, pods: bool) -> None:
    document = sample(FRAMEWORKS[kind].name)
    document["metadata"]["resourceVersion"] = "1"
    fw = framework_of(document)
    assert fw is not None
    workload = evicted(admitted(workload_of(fw, document, queue="queue")))
    cache = ObjectCache()
    cache.take(kind, document)
    actions = Actions(cache, pods)
    again: list[Unit] = []
    jobs = Jobs(cast(WorkloadActions, actions), again.append)
    asyncio.run(jobs.reconcile(unit_of(kind, key_of(document)), [workload]))
    its = ("kueue.x-k8s.io/workload", workload["metadata"]["name"])
    assert actions.looked == [LOOKS[kind] + ((its,) if kind == RAY_JOBS else ())]
    assert actions.done == ([] if pods else [ReleaseQuota()])


class Pages:
    """An API server with pods, two on a page."""

    def __init__(self, workloads: list[str]) -> None:
        self.workloads = workloads
        self.asked: list[dict[str, str]] = []

    async def list_page(self, kind: Any, parameters: Any, namespace: str) -> bytes:
        self.asked.append(dict(parameters))
        begin = int(self.asked[-1].get("continue") or 0)
        items = [
            {"metadata": {"annotations": {"kueue.x-k8s.io/workload": one}} if one else {}}
            for one in self.workloads[begin : begin + 2]
        ]
        more = {"continue": str(begin + 2)} if begin + 2 < len(self.workloads) else {}
        return json.dumps({"metadata": more, "items": items}).encode()


@pytest.mark.parametrize(
    ("there", "found", "pages"),
    [
        *(([], False, 1), (["", "other"], False, 1), (["mine"], True, 1)),
        *((["", "other", "other", "mine"], True, 2), (["a", "b", "c", "d", "e"], False, 3)),
    ],
)
def test_pods_are_found_by_the_annotation_of_their_workload(
    there: list[str], found: bool, pages: int
) -> None:
    client = Pages(there)
    actions = cast(Any, WorkloadActions.__new__(WorkloadActions))
    actions._client = client
    note = ("kueue.x-k8s.io/workload", "mine")
    assert asyncio.run(actions.is_any(PODS, "team", "a=b", FIELDS, note)) is found
    assert len(client.asked) == pages
    assert all(one["labelSelector"] == "a=b" for one in client.asked)
