"""A stream of queued jobs and plain pods that ask for shares of GPUs while leaders are killed: no card is promised twice, and each
job's pods get what was noted for them."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.api_only.placing.queued import (
    NODES,
    kept,
    make_fleet,
    make_pods,
    objects,
    queue_job,
    shares,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import JOBS, WORKLOADS, Replica, define, finish, is_true
from tests.cluster.scheduling import (
    PODS,
    Accountant,
    Service,
    bound,
    gpu_pod,
    placement,
    replicas,
    scheduler,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
JOBS_AT_ONCE = 24
KILLS = 4
KINDS: list[dict[str, Any]] = [
    {"gpumem": 20_000, "gpucores": 25},
    {"gpumem": 50_000, "gpucores": 50},
    {"gpucores": 100},
    {"gpumem": 8_000},
]


def is_leading(replica: Replica) -> bool:
    """It placed pods last, in this life."""
    return replica.process is not None and "placing pods" in replica.life


def create(plane: ControlPlane, document: dict[str, Any]) -> None:
    """Create a job, again and again while no replica answers its webhook: it is refused then."""

    def is_created() -> bool:
        try:
            plane.api.create("jobs", "default", document)
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return False
        return True

    until(f"{document['metadata']['name']} is created", is_created, 60)


def test_no_card_is_promised_twice_while_leaders_are_killed(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    define(plane)
    with replicas(plane, tmp_path, 2) as both:
        fleet = make_fleet(plane, {tmp_path / f"{n}.sock": one for n, one in enumerate(both)})
        until("one decides", lambda: any(map(is_leading, both)), 60)
        objects(plane)
        with (
            fleet,
            Service([one.asked_port for one in both]) as service,
            scheduler(plane, tmp_path, service.port),
            Accountant(plane, fleet.memory) as accountant,
        ):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            done: set[str] = set()
            made: set[str] = set()
            for n in range(JOBS_AT_ONCE):
                kind = KINDS[n % len(KINDS)]
                create(plane, queue_job(f"job-{n}", 1 + n % 3, **kind))
                plane.api.call("POST", PODS, gpu_pod(f"plain-{n}", **KINDS[(n + 1) % 4]))
                if n % (JOBS_AT_ONCE // KILLS) == 3:
                    kill_the_leader(both)
                go_on(plane, made, done)
            ends_s = time.monotonic() + 600
            while len(done) < JOBS_AT_ONCE and time.monotonic() < ends_s:
                go_on(plane, made, done)
                for one in plane.api.get(PODS)["items"]:  # plain pods end some day
                    name = one["metadata"]["name"]
                    if name.startswith("plain-") and bound(one):
                        plane.api.delete(f"{PODS}/{name}", grace_s=0)
                time.sleep(0.5)
            assert len(done) == JOBS_AT_ONCE, (sorted(made), sorted(done))
            assert accountant.wrong == []


def go_on(plane: ControlPlane, made: set[str], done: set[str]) -> None:
    """Play the controller-manager and the kubelets: make pods for jobs that run, and end the jobs
    whose pods are all placed."""
    check(plane)
    for document in plane.api.get(JOBS)["items"]:
        name, count = document["metadata"]["name"], document["spec"]["parallelism"]
        if name in done or document["spec"].get("suspend"):
            continue
        if name not in made:
            made.add(name)
            make_pods(plane, name, range(count))
            continue
        pods = [plane.api.get(f"{PODS}/{name}-{n}") for n in range(count)]
        if not all(map(bound, pods)):
            continue
        (workload,) = (
            one
            for one in plane.api.get(WORKLOADS)["items"]
            if one["metadata"]["ownerReferences"][0]["name"] == name
        )
        given = sorted(one for pod in pods for one in shares(placement(pod)))
        assert given == kept(workload), name
        for one in pods:
            plane.api.delete(f"{PODS}/{one['metadata']['name']}", grace_s=0)
        finish(plane, name)
        done.add(name)


def check(plane: ControlPlane) -> None:
    """Check the shares in Workloads' status, and those of plain pods besides, from the API server's
    objects alone. Pods are read first: a pod bound later may hold shares that were given back in
    between."""
    pods = plane.api.get(PODS)["items"]
    workloads = [one for one in plane.api.get(WORKLOADS)["items"] if not is_true(one, "Finished")]
    over = {
        one["metadata"]["name"] for one in plane.api.get(JOBS)["items"] if is_true(one, "Complete")
    }
    memory: Counter[str] = Counter()
    time_: Counter[str] = Counter()
    for one in workloads:
        if one["metadata"]["ownerReferences"][0]["name"] in over:
            continue  # what a job that is over had may be given before that is written
        for _, uuid, each, part in kept(one):
            memory[uuid] += each
            time_[uuid] += part
    known = {one["metadata"]["name"] for one in plane.api.get(PODS)["items"]}
    for pod in pods:
        place = placement(pod)
        if not place or place.get("workload") or pod["metadata"]["name"] not in known:
            continue
        for _, uuid, each, part in shares(place):
            memory[uuid] += each
            time_[uuid] += part
    assert not [one for one in memory if memory[one] > 80 << 30], memory
    assert not [one for one in time_ if time_[one] > 1_000_000], time_


def kill_the_leader(both: list[Replica]) -> None:
    leader = next(one for one in both if is_leading(one))
    other = next(one for one in both if one is not leader)
    leader.end(signal.SIGKILL)
    until("the other takes over", lambda: is_leading(other), 120)
    leader.start()
