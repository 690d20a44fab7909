"""MultiKueue with Kueue 0.19.2 on the other side: its workers under a manager of ours, and our workers under its manager.

Kubernetes' own controllers make the pods of Jobs; no kubelet runs them: the tests say that they have ended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kueue.multikueue import (
    CONTROLLER,
    MANAGER,
    STRATEGY,
    WORKERS,
    Fleet,
    running_fleet,
)
from tests.cluster.queueing import (
    JOBS,
    WORKLOADS,
    apply,
    condition,
    door,
    is_true,
    job,
    quota,
    suspended,
    workload_of,
)
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
KUEUES = {"Kueue's workers": WORKERS, "Kueue's manager": (MANAGER,)}
CONFIGURATION = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
multiKueue: {gcInterval: 2s, origin: fleet}
"""
PODS = "/api/v1/namespaces/default/pods"
SEEN_S = 90
PREEMPTING = {"withinClusterQueue": "LowerPriority"}


@pytest.fixture(scope="module", params=sorted(KUEUES))
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(prefix="multikueue-", ignore_cleanup_errors=True) as directory,
        running_fleet(
            Path(directory),
            CONFIGURATION,
            prepare,
            kueues=KUEUES[request.param],
            controllers=True,
        ) as found,
    ):
        yield found


@pytest.fixture(autouse=True)
def nothing_left(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.manager.api.call("DELETE", f"{JOBS}?propagationPolicy=Background")
    for name, one in fleet.workers.items():
        apply(one, quota("team", 0, stopPolicy="None"))
        until(f"{name} has nothing left", partial(is_empty, fleet, name), SEEN_S)


def prepare(plane: ControlPlane, name: str) -> None:
    sent: dict[str, Any] = STRATEGY if name == MANAGER else {}
    apply(plane, quota("team", 10 if name == MANAGER else 0, **sent), door("team", "team"))
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    for priority, value in (("low", -1), ("high", 100)):
        apply(plane, {**head, "metadata": {"name": priority}, "value": value})


def is_empty(fleet: Fleet, worker: str) -> bool:
    return fleet.copies(worker) == [] and not fleet.workers[worker].api.get(JOBS)["items"]


def dispatched(name: str) -> dict[str, Any]:
    return job(name, "team", managedBy=CONTROLLER)


def active(plane: ControlPlane, name: str) -> int:
    return int((plane.api.get(f"{JOBS}/{name}").get("status") or {}).get("active") or 0)


def run_at(fleet: Fleet, worker: str, name: str) -> None:
    """Wait until the worker has let the job run, and until the manager's job says so."""
    plane = fleet.workers[worker]
    until(f"{name} is at {worker}", lambda: fleet.is_at(worker, name), SEEN_S)
    until("it is let run there", lambda: not suspended(plane, name), SEEN_S)
    until("its status comes back", lambda: active(fleet.manager, name) == 1, SEEN_S)


def succeed(plane: ControlPlane, name: str) -> None:
    """End the pods of a Job, as the kubelet would say."""
    for pod in plane.api.get(f"{PODS}?labelSelector=job-name={name}")["items"]:
        path = f"{PODS}/{pod['metadata']['name']}/status"
        plane.api.patch(path, {"status": {"phase": "Succeeded"}})


def test_the_worker_that_admits_gets_the_job_and_its_end_comes_back(fleet: Fleet) -> None:
    apply(fleet.manager, dispatched("first"))
    for name in WORKERS:
        until(f"{name} has a copy", lambda name=name: len(fleet.copies(name)) == 1, SEEN_S)  # type: ignore[misc]
    assert fleet.check("first")["state"] == "Pending"
    fleet.limit("w2", 2)
    until("it is at w2", lambda: fleet.cluster("first") == "w2", SEEN_S)
    until("w1's copy is gone", lambda: fleet.copies("w1") == [], SEEN_S)
    run_at(fleet, "w2", "first")
    assert fleet.check("first")["state"] == "Ready"
    assert fleet.check("first")["message"] == 'The workload was admitted on "w2"'
    succeed(fleet.workers["w2"], "first")
    until("it is done here", lambda: is_true(fleet.manager.api.get(f"{JOBS}/first"), "Complete"), SEEN_S)  # fmt: skip
    until("so is its Workload", lambda: is_true(workload_of(fleet.manager, "first"), "Finished"), SEEN_S)  # fmt: skip
    until("nothing is left there", partial(is_empty, fleet, "w2"), SEEN_S)


def test_a_job_deleted_here_is_deleted_there(fleet: Fleet) -> None:
    fleet.limit("w1", 2)
    apply(fleet.manager, dispatched("dropped"))
    run_at(fleet, "w1", "dropped")
    fleet.manager.api.delete(f"{JOBS}/dropped")
    until("nothing is left there", partial(is_empty, fleet, "w1"), SEEN_S)


def test_an_eviction_in_a_worker_dispatches_the_job_again(fleet: Fleet) -> None:
    fleet.limit("w1", 2)
    apply(fleet.manager, dispatched("moved"))
    run_at(fleet, "w1", "moved")
    fleet.limit("w2", 2)
    apply(fleet.workers["w1"], quota("team", 0, stopPolicy="HoldAndDrain"))
    until("it is at w2", lambda: fleet.cluster("moved") == "w2", 2 * SEEN_S)
    until("w1 has nothing", partial(is_empty, fleet, "w1"), SEEN_S)
    run_at(fleet, "w2", "moved")


def test_only_one_worker_preempts_for_a_job(fleet: Fleet) -> None:
    """Both are full of work of a lower priority: each says that it would preempt, and one may."""
    for name, plane in fleet.workers.items():
        apply(plane, quota("team", 1, preemption=PREEMPTING), labelled(job("low", "team"), "low"))
        until(f"{name} runs its own", lambda plane=plane: not suspended(plane, "low"), SEEN_S)  # type: ignore[misc]
    apply(fleet.manager, labelled(dispatched("urgent"), "high"))
    until("it is at one of them", lambda: fleet.cluster("urgent") in WORKERS, SEEN_S)
    winner = fleet.cluster("urgent")
    run_at(fleet, winner, "urgent")
    (other,) = set(WORKERS) - {winner}
    ended = {name: suspended(plane, "low") for name, plane in fleet.workers.items()}
    assert ended == {winner: True, other: False}
    assert evictions(fleet.workers[other], "low") == []
    assert evictions(fleet.workers[winner], "low") == ["Preempted"]
    for plane in fleet.workers.values():
        plane.api.delete(f"{JOBS}/low")


def labelled(document: dict[str, Any], priority: str) -> dict[str, Any]:
    document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return document


def evictions(plane: ControlPlane, name: str) -> list[str]:
    status = (workload_of(plane, name) or {})["status"]
    found = (status.get("schedulingStats") or {}).get("evictions") or ()
    return [one["reason"] for one in found]


def test_a_job_that_the_manager_stops_leaves_the_worker(fleet: Fleet) -> None:
    fleet.limit("w1", 2)
    apply(fleet.manager, dispatched("stopped"))
    run_at(fleet, "w1", "stopped")
    workload = workload_of(fleet.manager, "stopped")
    assert workload is not None
    path = f"{WORKLOADS}/{workload['metadata']['name']}"
    fleet.manager.api.patch(path, {"spec": {"active": False}})
    until("nothing is left there", partial(is_empty, fleet, "w1"), SEEN_S)
    until("it is suspended here", lambda: suspended(fleet.manager, "stopped"), SEEN_S)
    assert condition(workload_of(fleet.manager, "stopped"), "Evicted")["reason"] == "Deactivated"
