"""Pods of the RayCluster that an elastic RayJob made: they wait for the RayJob's slices."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

from queuecontroller.cluster.cache.job_context import KINDS, RAY_CLUSTERS, setting
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import key_of
from queuecontroller.cluster.reconcilers.units import Unit, unit_of
from queuecontroller.frameworks import framework_of, workload_of
from sluicecommon.kubernetes.resources import PODS, Resource
from tests.queue.cluster.reconcilers.world import World
from tests.queue.frameworks.samples import sample

RAY_JOBS = next(kind for kind in KINDS if kind.kind == "RayJob")
ELASTIC = "kueue.x-k8s.io/elastic-job"
GATES = [{"name": ELASTIC}]


class Cluster:
    """An admitted elastic RayJob, the RayCluster that it made, and that cluster's pods."""

    def __init__(self, pods: int) -> None:
        self.world = World()
        self.job = sample("ray.io/rayjob")
        self.job["metadata"] |= {
            "name": "j",
            "namespace": "n",
            "uid": "u-j",
            "resourceVersion": "1",
            "annotations": {ELASTIC: "true"},
        }
        self.job["spec"]["suspend"] = False
        self.world.cache.take(RAY_JOBS, self.job)
        fw = framework_of(self.job)
        assert fw is not None
        self.workload = {**workload_of(fw, self.job, queue="q")}
        sets = self.workload["spec"]["podSets"]
        given = [{"name": one["name"], "count": one["count"]} for one in sets]
        done = {"reason": "r", "message": "", "lastTransitionTime": "2026-11-22T10:00:00Z"}
        held = [{**done, "type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        self.workload["metadata"] |= {"uid": "u-w", "resourceVersion": "1"}
        self.workload["status"] = {
            "admission": {"clusterQueue": "cq", "podSetAssignments": given},
            "conditions": held,
        }
        spec = deepcopy(self.job["spec"]["rayClusterSpec"])
        self.cluster = self.made(RAY_CLUSTERS, "c", RAY_JOBS, "j", spec=spec)
        self.pods = [self.pod(f"small-{i}", "small") for i in range(pods)]

    def made(self, kind: Resource, name: str, above: Resource, owner: str, **more: Any) -> Any:
        reference = {"apiVersion": above.api_version, "kind": above.kind, "name": owner}
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": name,
                "namespace": "n",
                "uid": f"u-{name}",
                "resourceVersion": "1",
                "ownerReferences": [{**reference, "uid": f"u-{owner}", "controller": True}],
            },
            **more,
        }

    def pod(self, name: str, group: str) -> Any:
        pod = self.made(PODS, name, RAY_CLUSTERS, "c", spec={"schedulingGates": GATES})
        pod["metadata"]["labels"] = {"sluice.dev/elastic": "true", "kueue.x-k8s.io/podset": group}
        return pod

    def reconcile(self, *units: Unit) -> list[Any]:
        """Patches of pods."""

        async def run() -> None:
            self.world.add(WORKLOADS, self.workload)
            for pod in self.pods:
                self.world.cache.take(PODS, pod)
                self.world.reconcilers.pod_changed(key_of(pod), pod)
            queue = self.world.reconcilers.work_queue
            for unit in units:
                queue.add(unit)
            running = asyncio.create_task(queue.run())
            for _ in range(200):
                await asyncio.sleep(0)
            running.cancel()

        asyncio.run(run())
        return [one for one in self.world.server.patches if "schedulingGates" in str(one)]


def test_its_pods_run_as_far_as_the_job_has_quota() -> None:
    made = Cluster(pods=5)
    made.world.cache.take(RAY_CLUSTERS, made.cluster)
    assert len(made.reconcile(unit_of(RAY_CLUSTERS, "n/c"))) == 3


def test_pods_that_are_seen_before_their_cluster_wait_for_it() -> None:
    made = Cluster(pods=2)
    assert made.reconcile(unit_of(RAY_JOBS, "n/j")) == []
    made.world.cache.take(RAY_CLUSTERS, made.cluster)
    made.world.reconcilers.job_changed(RAY_CLUSTERS, "n/c", made.cluster)
    assert len(made.reconcile()) == 2


def test_only_an_elastic_job_is_as_large_as_what_it_made() -> None:
    made = Cluster(pods=5)
    made.world.cache.take(RAY_CLUSTERS, made.cluster)
    assert setting(made.world.cache, made.job, "n").clusters == (made.cluster,)
    assert setting(made.world.cache, made.cluster, "n").clusters == ()
    del made.job["metadata"]["annotations"]
    assert setting(made.world.cache, made.job, "n").clusters == ()
