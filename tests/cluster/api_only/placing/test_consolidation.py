"""Small shares are spread over all GPUs, and a job for a whole one waits: with the moves that would make room in its status, and started after
them where they are made, also by another leader than the one that decided them. The controller-manager and the kubelets are played."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api_only.placing.queued import (
    CARDS,
    NODES,
    clear,
    kept,
    make_fleet,
    make_pods,
    objects,
    queue_job,
    shares,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    WORKLOADS,
    Replica,
    condition,
    define,
    is_served,
    is_true,
    suspended,
    workload_of,
)
from tests.cluster.scheduling import (
    PODS,
    Accountant,
    Fleet,
    placement,
    replicas,
    scheduler,
    wait_bound,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
SMALL: dict[str, Any] = {"gpumem": 30_000, "gpucores": 30}
"""Two of them fit on a card."""
FILLS: dict[str, Any] = {"gpumem": 50_000, "gpucores": 50}
"""Beside a small one nothing else fits."""
WHOLE: dict[str, Any] = {"gpucores": 100}
GUARDS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
RESTART = {"sluice.dev/consolidation": "restart"}


class Lab:
    def __init__(self, plane: ControlPlane, fleet: Fleet, replica: Replica) -> None:
        self.plane, self.fleet, self.replica = plane, fleet, replica

    def run(self, name: str, permitted: bool = True, **amounts: Any) -> str:
        """Run a job of one pod; returns its card."""
        self.submit(name, permitted, **amounts)
        self.follow(name)
        [(_, uuid, _, _)] = shares(placement(self.plane.api.get(f"{PODS}/{name}-0")))
        return uuid

    def submit(self, name: str, permitted: bool = True, **amounts: Any) -> None:
        document = queue_job(name, 1, **amounts)
        document["metadata"]["annotations"] = RESTART if permitted else {}
        document["spec"]["template"]["metadata"] = {"labels": {"app": name}}
        self.plane.api.create("jobs", "default", document)

    def follow(self, name: str) -> None:
        """Wait for a job's start, and create its pod as the Job's controller does."""
        until(f"{name} is started", lambda: not suspended(self.plane, name), 120)
        make_pods(self.plane, name, range(1))
        self.set_active(name, 1)
        wait_bound(self.plane, f"{name}-0")

    def set_active(self, name: str, pods: int) -> None:
        status = {"active": pods, **({"startTime": "2026-11-22T10:00:00Z"} if pods else {})}
        self.plane.api.patch(f"{JOBS}/{name}/status", {"status": status})

    def end_pod(self, name: str) -> None:
        """The Job's controller deletes the pods of a suspended job, and its kubelet ends them."""
        self.plane.api.delete(f"{PODS}/{name}-0", grace_s=0)
        if self.plane.api.find(f"{JOBS}/{name}") is not None:
            self.set_active(name, 0)

    def end(self, name: str) -> None:
        self.plane.api.delete(f"{JOBS}/{name}")
        self.end_pod(name)
        until(f"{name} is gone", lambda: workload_of(self.plane, name) is None, 60)

    def spread(self) -> list[str]:
        """One small job alone on each card; returns their names."""
        fillers = {self.run(f"fills-{n}", **FILLS): f"fills-{n}" for n in range(NODES * CARDS)}
        names = [f"small-{n}" for n in range(NODES * CARDS)]
        cards = [self.run(one, **SMALL) for one in names]
        assert sorted(cards) == sorted(fillers), "one beside each"
        for one in fillers.values():
            self.end(one)
        return names

    def reason(self, name: str) -> dict[str, Any]:
        return condition(workload_of(self.plane, name), "QuotaReserved")

    def evicted(self) -> list[str]:
        """Jobs whose Workload was evicted for a consolidation, and has not got quota again."""
        found = []
        for one in self.plane.api.get(WORKLOADS)["items"]:
            why = condition(one, "Preempted")
            if why.get("status") == "True" and why.get("reason") == "Consolidation":
                found.append(one["metadata"]["ownerReferences"][0]["name"])
        return found

    def mover(self) -> str:
        """Wait for a job that is stopped for another one."""
        found: list[str] = []

        def is_stopped() -> bool:
            found[:] = [one for one in self.evicted() if suspended(self.plane, one)]
            return bool(found)

        until("a job is stopped", is_stopped, 60)
        [name] = found
        return name

    def never(self, what: Callable[[], object], seconds: float = 8) -> bool:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if what():
                return False
            time.sleep(0.2)
        return True


@contextmanager
def lab_of(plane: ControlPlane, place: Path, *settings: str) -> Iterator[Lab]:
    if not is_served(plane):
        define(plane)
    with replicas(plane, place, 1, *settings) as (replica,):
        fleet = make_fleet(plane, {place / "0.sock": replica})
        until("it decides", replica.leads, 60)
        objects(plane)
        with (
            fleet,
            scheduler(plane, place, replica.asked_port),
            Accountant(plane, fleet.memory) as accountant,
        ):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            yield Lab(plane, fleet, replica)
            assert accountant.wrong == []
            clear(plane)


def test_without_moves_the_job_waits_and_its_status_says_which_would_make_room(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with lab_of(control_plane, tmp_path) as lab:
        lab.spread()
        lab.submit("whole", **WHOLE)
        until(
            "the moves are in its status",
            lambda: (
                "; it would start if default/job-small-" in str(lab.reason("whole").get("message"))
            ),
            60,
        )
        why = lab.reason("whole")
        assert why["reason"] == "WaitingForPlacement"
        assert " moved from GPU " in why["message"]
        assert lab.never(lab.evicted)


def test_small_jobs_move_and_the_whole_one_starts_on_the_planned_card(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with lab_of(control_plane, tmp_path, "engine.consolidation=true") as lab:
        names = lab.spread()
        guard = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "all"},
            "spec": {
                "minAvailable": 1,
                "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            },
        }
        lab.plane.api.call("POST", GUARDS, guard)
        lab.submit("whole", **WHOLE)
        until(
            "it says why",
            lambda: "it would start if" in str(lab.reason("whole").get("message")),
            60,
        )
        assert lab.never(lab.evicted), "the budget has no disruptions left"
        lab.plane.api.patch(f"{GUARDS}/all/status", {"status": {"disruptionsAllowed": 1}})
        mover = lab.mover()
        [(_, left, _, _)] = shares(placement(lab.plane.api.get(f"{PODS}/{mover}-0")))
        assert suspended(lab.plane, "whole"), "its GPU is not free yet"
        lab.end_pod(mover)
        lab.follow("whole")
        [(_, there, _, _)] = shares(placement(lab.plane.api.get(f"{PODS}/whole-0")))
        assert there == left
        lab.follow(mover)
        [(_, now, _, _)] = shares(placement(lab.plane.api.get(f"{PODS}/{mover}-0")))
        assert now != left
        assert [one for one in names if suspended(lab.plane, one)] == [], "no other one moved"
        lab.plane.api.delete(f"{GUARDS}/all")


def test_a_leader_that_is_killed_in_between_loses_nothing(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    with lab_of(control_plane, tmp_path, "engine.consolidation=true") as lab:
        names = lab.spread()
        lab.submit("whole", **WHOLE)
        mover = lab.mover()
        lab.replica.end(signal.SIGKILL)
        lab.replica.start()
        until("it decides again", lab.replica.leads, 120)
        until("nodes report again", lambda: lab.fleet.sessions_total >= 2 * NODES, 60)
        assert lab.never(lambda: lab.evicted() != [mover]), "no other one is stopped for it"
        lab.end_pod(mover)
        lab.follow("whole")
        lab.follow(mover)
        assert [one for one in names if suspended(lab.plane, one)] == []
        assert (
            len({place for one in ("whole", mover) for place in kept(workload_of(lab.plane, one))})
            == 2
        )
        lab.submit("second", **WHOLE)
        moved = lab.mover()
        assert moved != mover, "it rests"
        assert not is_true(workload_of(lab.plane, "second"), "Admitted")
