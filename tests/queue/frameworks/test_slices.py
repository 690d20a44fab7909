"""An elastic job grows by a second Workload that takes the place of the first, and shrinks in place."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuecontroller.frameworks import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    Finished,
    FinishWorkload,
    ReleaseQuota,
    Setting,
    Start,
    Suspend,
    UpdateWorkload,
    elastic_pod_patch,
    framework_of,
    is_suspended,
    on_create,
    reconcile_slices,
    stop_patch,
)
from queuecontroller.frameworks.comparing import holds
from queuecontroller.frameworks.patches import at, merged
from tests.queue.frameworks.samples import pod, sample
from tests.queue.frameworks.world import World, admitted, evicted, with_condition

ELASTIC = "kueue.x-k8s.io/elastic-job"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"


class Slices:
    """A world for each Workload, over one document."""

    def __init__(self) -> None:
        document = sample("batch/job")
        document["metadata"] |= {"annotations": {ELASTIC: "true"}, "generation": 1}
        self.document = document
        self.workloads: list[dict[str, Any]] = []
        self.made = 0

    def settle(self) -> list[Action]:
        fw = framework_of(self.document)
        assert fw is not None
        done: list[Action] = []
        for _ in range(20):
            before = deepcopy(self.document)
            actions = reconcile_slices(fw, self.document, self.workloads)
            for workload, action in actions:
                self.carry_out(workload, action)
            world = World(self.document)
            world.controller()
            self.document = world.document or {}
            done += [action for _, action in actions]
            if not actions and self.document == before:
                return done
        raise AssertionError(f"no end of it: {done}")

    def carry_out(self, workload: Any, action: Action) -> None:
        where = [i for i, one in enumerate(self.workloads) if one is workload]
        world = World(self.document, self.workloads[where[0]] if where else None)
        if isinstance(action, CreateWorkload):
            names = [one["metadata"]["name"] for one in self.workloads]
            assert action.document["metadata"]["name"] not in names
            world.workload = None
        spec = self.document["spec"]
        world.carry_out(action)
        self.document = world.document or {}
        self.document["metadata"]["generation"] += int(self.document["spec"] != spec)
        if isinstance(action, CreateWorkload):
            assert world.workload is not None
            self.made += 1
            world.workload["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{self.made:02}Z"
            self.workloads.append(world.workload)
        elif where and world.workload is None:
            del self.workloads[where[0]]
        elif where:
            assert world.workload is not None
            self.workloads[where[0]] = world.workload

    def scale(self, pods: int) -> None:
        self.document["spec"]["parallelism"] = pods
        self.document["metadata"]["generation"] += 1

    @property
    def counts(self) -> list[int]:
        return [
            at(one, ("spec", "podSets", 0, "count"))
            for one in self.workloads
            if not holds(one, "Finished")
        ]

    @property
    def suspended(self) -> bool:
        fw = framework_of(self.document)
        assert fw is not None
        return is_suspended(fw, self.document)

    def admit_newest(self) -> None:
        """Admit the newest slice as the engine does: the slice that is replaced becomes
        finished."""
        alive = [i for i, one in enumerate(self.workloads) if not holds(one, "Finished")]
        for i in alive[:-1]:
            self.workloads[i] = with_condition(self.workloads[i], "Finished", True)
        if alive:
            self.workloads[alive[-1]] = admitted(self.workloads[alive[-1]])


def running() -> Slices:
    slices = Slices()
    slices.settle()
    slices.admit_newest()
    assert Start in [type(one) for one in slices.settle()]
    return slices


def test_more_pods_wait_in_a_slice_of_their_own_while_the_others_run() -> None:
    slices = running()
    slices.scale(6)
    (created,) = slices.settle()
    assert isinstance(created, CreateWorkload)
    first = slices.workloads[0]["metadata"]["name"]
    assert created.document["metadata"]["annotations"][REPLACES] == f"team/{first}"
    assert not slices.suspended
    assert slices.counts == [4, 6]
    slices.admit_newest()
    assert slices.settle() == []
    assert slices.counts == [6]
    assert not slices.suspended


def test_fewer_pods_give_back_their_quota_at_once() -> None:
    slices = running()
    slices.scale(2)
    (updated,) = slices.settle()
    assert isinstance(updated, UpdateWorkload)
    assert slices.counts == [2]
    assert not slices.suspended


def test_a_slice_that_waits_follows_the_job_and_goes_when_it_is_not_wanted() -> None:
    slices = running()
    slices.scale(6)
    slices.settle()
    slices.scale(7)
    assert [type(one) for one in slices.settle()] == [UpdateWorkload]
    assert slices.counts == [4, 7]
    slices.scale(4)
    assert [type(one) for one in slices.settle()] == [DeleteWorkload]
    assert slices.counts == [4]


def test_an_evicted_job_goes_on_with_the_slice_that_waits() -> None:
    slices = running()
    slices.scale(6)
    slices.settle()
    slices.workloads[0] = evicted(slices.workloads[0])
    done = slices.settle()
    assert done[0] == FinishWorkload(
        Finished(False, "OutOfSync", "the Workload slice is out of step with its job")
    )
    assert Suspend in [type(one) for one in done]
    assert slices.counts == [6]
    assert slices.suspended


def test_a_finished_job_finishes_both() -> None:
    slices = running()
    slices.scale(6)
    slices.settle()
    slices.document["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    assert [type(one) for one in slices.settle()] == [FinishWorkload, FinishWorkload]


def test_pods_of_an_elastic_job_are_gated_until_they_are_counted() -> None:
    slices = Slices()
    slices.document["spec"]["suspend"] = False
    fw = framework_of(slices.document)
    assert fw is not None
    held = merged(slices.document, on_create(fw, slices.document))
    gates = held["spec"]["template"]["spec"]["schedulingGates"]
    assert gates == [{"name": ELASTIC}]
    one = {"spec": pod(schedulingGates=[*gates, {"name": "other"}])["spec"]}
    free = merged(one, elastic_pod_patch(one))
    assert free["spec"]["schedulingGates"] == [{"name": "other"}]
    assert elastic_pod_patch(free) == {}
    assert stop_patch(fw, held) == {}


def test_a_second_workload_of_a_job_that_is_not_elastic_is_deleted() -> None:
    document = sample("batch/job")
    fw = framework_of(document)
    assert fw is not None
    world = World(document)
    world.settle()
    assert world.workload is not None
    second = {**world.workload, "metadata": {**world.workload["metadata"], "name": "z"}}
    ((about, action),) = reconcile_slices(fw, document, [second, world.workload])
    assert about is second
    assert isinstance(action, DeleteWorkload)
    every = reconcile_slices(fw, None, [second, world.workload])
    assert [type(action) for _, action in every] == [DeleteWorkload, DeleteWorkload]


EVENTS = st.lists(st.sampled_from([1, 2, 5, 7, "admit", "evict", "drop"]), max_size=10)


@pytest.mark.parametrize("start", [Slices, running], ids=["from the start", "while it runs"])
@settings(max_examples=150)
@given(events=EVENTS)
def test_it_comes_to_an_end_whatever_happens(start: Any, events: list[Any]) -> None:
    slices = start()
    slices.settle()
    for event in events:
        if isinstance(event, int):
            slices.scale(event)
        elif event == "admit":
            slices.admit_newest()
        elif event == "evict":
            for i, one in enumerate(slices.workloads):
                if holds(one, "Admitted") and not holds(one, "Finished"):
                    slices.workloads[i] = evicted(one)
        elif slices.workloads:
            slices.workloads.pop()
        slices.settle()
        alive = [one for one in slices.workloads if not holds(one, "Finished")]
        assert len(alive) in (1, 2)
        quota = [one for one in alive if holds(one, "Admitted") and not holds(one, "Evicted")]
        assert slices.suspended or quota
        assert slices.counts[-1] == slices.document["spec"]["parallelism"]


def test_an_elastic_cluster_grows_by_a_slice_and_gates_all_its_pods() -> None:
    document = sample("ray.io/raycluster")
    document["metadata"] |= {"annotations": {ELASTIC: "true"}, "generation": 1}
    fw = framework_of(document)
    assert fw is not None
    document = merged(document, on_create(fw, document))
    groups = document["spec"]["workerGroupSpecs"]
    templates = [
        document["spec"]["headGroupSpec"]["template"],
        *(one["template"] for one in groups),
    ]
    gate = {"name": "kueue.x-k8s.io/elastic-job"}
    assert [one["spec"]["schedulingGates"] for one in templates] == [[gate]] * 3

    world = World(document)
    world.settle()
    assert world.workload is not None
    first = world.workload = admitted(world.workload)
    world.settle()
    document = world.document or {}
    document["spec"]["workerGroupSpecs"][0]["replicas"] = 5
    document["metadata"]["generation"] = 2
    ((_, action),) = [
        one for one in reconcile_slices(fw, document, [first]) if isinstance(one[1], CreateWorkload)
    ]
    assert isinstance(action, CreateWorkload)
    sizes = {one["name"]: one["count"] for one in action.document["spec"]["podSets"]}
    assert sizes == {"head": 1, "small": 5, "large": 8}
    assert action.document["metadata"]["annotations"][REPLACES].endswith(first["metadata"]["name"])


def cluster_of(document: dict[str, Any], name: str, small: int, generation: int = 1) -> Any:
    """The RayCluster that KubeRay makes of a RayJob or RayService; its autoscaler resizes it."""
    spec = document["spec"].get("rayClusterSpec") or document["spec"]["rayClusterConfig"]
    groups = deepcopy(spec["workerGroupSpecs"])
    groups[0]["replicas"] = small
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": "team", "generation": generation},
        "spec": {**deepcopy(spec), "workerGroupSpecs": groups},
    }


def sizes_of(workload: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one["count"] for one in workload["spec"]["podSets"]}


def started(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """An elastic RayJob or RayService that runs, and its Workload."""
    document = sample(name)
    document["metadata"] |= {"annotations": {ELASTIC: "true"}, "generation": 1}
    fw = framework_of(document)
    assert fw is not None
    world = World(merged(document, on_create(fw, document)))
    world.settle()
    assert world.workload is not None
    assert world.workload["metadata"]["annotations"][ELASTIC] == "true"
    workload = world.workload = admitted(world.workload)
    world.settle()
    return world.document or {}, workload


def next_of(document: dict[str, Any], workload: dict[str, Any], *clusters: Any) -> list[Action]:
    fw = framework_of(document)
    assert fw is not None
    around = Setting(clusters=clusters)
    return [one for _, one in reconcile_slices(fw, document, [workload], around)]


@pytest.mark.parametrize("name", ["ray.io/rayjob", "ray.io/rayservice"])
def test_a_job_grows_and_shrinks_with_the_cluster_that_it_made(name: str) -> None:
    document, first = started(name)
    rest = {"submitter": 1} if name == "ray.io/rayjob" else {}
    assert sizes_of(first) == {"head": 1, "small": 3, "large": 8, **rest}

    assert CreateWorkload not in map(type, next_of(document, first, cluster_of(document, "c", 3)))
    (created,) = (
        one
        for one in next_of(document, first, cluster_of(document, "c", 5, 2))
        if isinstance(one, CreateWorkload)
    )
    assert sizes_of(created.document) == {"head": 1, "small": 5, "large": 8, **rest}
    head = created.document["metadata"]
    assert head["name"] != first["metadata"]["name"]
    assert head["annotations"][REPLACES].endswith(first["metadata"]["name"])

    (updated, *_) = next_of(document, first, cluster_of(document, "c", 1, 3))
    assert isinstance(updated, UpdateWorkload)
    counts = {one["name"]: one["count"] for one in updated.patch["spec"]["podSets"]}
    assert counts == {"head": 1, "small": 1, "large": 8, **rest}


def test_each_size_of_a_cluster_is_another_slice() -> None:
    """A name that a finished slice still has could not be created again."""
    document, first = started("ray.io/rayjob")
    names = set()
    for name, generation in (("c", 2), ("c", 3), ("d", 2), ("d", 3)):
        for one in next_of(document, first, cluster_of(document, name, 7, generation)):
            if isinstance(one, CreateWorkload):
                names.add(one.document["metadata"]["name"])
    assert len(names) == 4


def test_both_clusters_of_a_service_that_is_upgraded_count() -> None:
    document, first = started("ray.io/rayservice")
    old, new = (cluster_of(document, one, 3) for one in ("old", "new"))
    (created,) = (
        one for one in next_of(document, first, old, new) if isinstance(one, CreateWorkload)
    )
    assert sizes_of(created.document) == {"head": 2, "small": 6, "large": 16}
    second = admitted({**created.document, "spec": created.document["spec"]})
    (updated, *_) = next_of(document, second, new)
    assert isinstance(updated, UpdateWorkload)
    counts = {one["name"]: one["count"] for one in updated.patch["spec"]["podSets"]}
    assert counts == {"head": 1, "small": 3, "large": 8}


def test_an_evicted_job_keeps_its_quota_until_its_cluster_is_gone() -> None:
    """Also one whose cluster was smaller than the job says: its Workload is not made anew."""
    document, first = started("ray.io/rayjob")
    fw = framework_of(document)
    assert fw is not None
    cluster = cluster_of(document, "c", 1)
    (shrunk, *_) = next_of(document, first, cluster)
    assert isinstance(shrunk, UpdateWorkload)
    small = evicted(merged(first, shrunk.patch))
    stopping = {"spec": {"suspend": True}, "status": {"jobDeploymentStatus": "Suspending"}}
    running = merged(document, stopping)
    stopped = merged(running, {"status": {"jobDeploymentStatus": "Suspended"}})
    assert next_of(running, small, cluster) == []
    assert ReleaseQuota() in next_of(stopped, small)
    free = with_condition(small, "QuotaReserved", False)
    (updated, *_) = next_of(stopped, free)
    assert isinstance(updated, UpdateWorkload)


@pytest.mark.parametrize("name", ["jobset.x-k8s.io/jobset", "kubeflow.org/tfjob"])
def test_a_kind_whose_pods_have_no_gate_is_not_elastic(name: str) -> None:
    """Pods of a larger size would run before there is quota for them."""
    document = sample(name)
    document["metadata"]["annotations"] = {ELASTIC: "true"}
    fw = framework_of(document)
    assert fw is not None
    assert "schedulingGates" not in str(on_create(fw, document))
    world = World(document)
    world.settle()
    assert world.workload is not None
    assert ELASTIC not in world.workload["metadata"].get("annotations", {})
    world.workload = admitted(world.workload)
    world.settle()
    world.document = merged(world.document or {}, OTHER_SIZES[name])
    (action,) = [act for _, act in reconcile_slices(fw, world.document, [world.workload])][:1]
    assert isinstance(action, Suspend)


OTHER_SIZES: dict[str, dict[str, Any]] = {
    "jobset.x-k8s.io/jobset": {
        "spec": {"replicatedJobs": sample("jobset.x-k8s.io/jobset")["spec"]["replicatedJobs"][:1]}
    },
    "kubeflow.org/tfjob": {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 9}}}},
}
