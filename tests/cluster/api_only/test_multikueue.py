"""MultiKueue with three real API servers: a manager and two workers, each with a queue controller of its own.

No pods run: what the workers' Job controller would write into a Job's status the tests write.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import DISPATCHED, KINDS
from queuecontroller.cluster.cache.job_context import JOBS as JOB
from queuecontroller.frameworks import Framework
from queuecontroller.frameworks.patches import ABSENT, Change
from queuecontroller.frameworks.patches import at as at_path
from sluicecommon.kubernetes.resources import Resource
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kueue.multikueue import (
    CHECK,
    CONTROLLER,
    MANAGER,
    STRATEGY,
    Fleet,
    kubeconfig,
    member,
    running_fleet,
    secret,
)
from tests.cluster.queueing import (
    DEADLINE_S,
    JOBS,
    KUEUE,
    WORKLOADS,
    apply,
    condition,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    quota,
    serves,
    suspended,
    workload_of,
)
from tests.kit.node import until
from tests.queue.frameworks.crds import cluster_crd_for_tests, crds_for_tests
from tests.queue.frameworks.samples import RUNTIME, sample

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
LOST_S = 8
SEEN = {
    "type": "Seen",
    "status": "True",
    "reason": "Here",
    "message": "",
    "lastTransitionTime": "2026-11-28T10:00:00Z",
}
QUOTA_OF_NONE: dict[str, Any] = quota("team", 0, stopPolicy="None")
CONFIGURATION = f"""
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
multiKueue: {{gcInterval: 2s, workerLostTimeout: {LOST_S}s, origin: fleet}}
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(prefix="multikueue-", ignore_cleanup_errors=True) as directory,
        running_fleet(Path(directory), CONFIGURATION, prepare, ("bad", "hung")) as found,
    ):
        yield found


@pytest.fixture(autouse=True)
def nothing_left(fleet: Fleet) -> Iterator[None]:
    """A test that failed leaves nothing to the next one."""
    yield
    for kind in sorted(DISPATCHED, key=lambda kind: kind.kind):
        fleet.manager.api.call("DELETE", kind.path("default"))
    for one in fleet.workers.values():
        apply(one, QUOTA_OF_NONE)
    for name in fleet.workers:
        until(f"{name} has nothing left", lambda name=name: fleet.copies(name) == [], 60)  # type: ignore[misc]


def prepare(plane: ControlPlane, name: str) -> None:
    made = [*crds_for_tests(), cluster_crd_for_tests(RUNTIME, "clustertrainingruntimes")]
    apply(plane, *made)
    until("every kind is served", partial(all_served, plane, made), DEADLINE_S)
    apply(plane, RUNTIME)
    team, wide = {MANAGER: (10, 1000), "w1": (0, 1000), "w2": (0, 0)}[name]
    sent: dict[str, Any] = STRATEGY if name == MANAGER else {}
    apply(plane, quota("team", team, **sent), door("team", "team"))
    apply(plane, spacious(wide, **sent), door("wide", "wide"))


def spacious(amount: int, **spec: Any) -> dict[str, Any]:
    """A ClusterQueue of CPU and memory: the submitter of a RayJob requests both."""
    made = quota("wide", amount, **spec)
    (group,) = made["spec"]["resourceGroups"]
    group["coveredResources"].append("memory")
    group["flavors"][0]["resources"].append({"name": "memory", "nominalQuota": f"{amount}Gi"})
    return made


def all_served(plane: ControlPlane, made: list[dict[str, Any]]) -> bool:
    return all(serves(plane, one) for one in made)


def is_started(plane: ControlPlane, path: str, framework: Framework) -> bool:
    return at_path(plane.api.get(path), framework.suspend) is not True


def has_copy(fleet: Fleet, worker: str) -> bool:
    return len(fleet.copies(worker)) == 1


def at(fleet: Fleet, name: str, worker: str) -> bool:
    return fleet.cluster(name) == worker


def nominated(plane: ControlPlane, name: str) -> list[str] | None:
    status = (workload_of(plane, name) or {}).get("status") or {}
    return status.get("nominatedClusterNames")


def dispatched(name: str, **spec: Any) -> dict[str, Any]:
    return job(name, "team", managedBy=CONTROLLER, **spec)


def run(plane: ControlPlane, name: str, active: int = 1) -> None:
    """Write what the Job controller writes for a Job with pods."""
    status = {"active": active, "ready": active, "startTime": "2026-11-22T10:00:00Z"}
    plane.api.patch(f"{JOBS}/{name}/status", {"status": status})


def test_both_workers_are_connected_and_the_check_is_active(fleet: Fleet) -> None:
    found = condition(fleet.manager.api.get(CHECK), "Active")
    until(
        "all workers count",
        lambda: condition(fleet.manager.api.get(CHECK), "Active")["reason"] == "Active",
        DEADLINE_S,
    )
    assert found["status"] == "True"
    for name in ("w1", "w2"):
        active = condition(fleet.manager.api.get(f"{KUEUE}/multikueueclusters/{name}"), "Active")
        assert (active["status"], active["reason"], active["message"]) == (
            "True",
            "Active",
            "Connected",
        )


def test_the_first_worker_that_admits_gets_the_job_and_its_end_comes_back(fleet: Fleet) -> None:
    plane = fleet.manager
    apply(plane, dispatched("first"))
    for name in ("w1", "w2"):
        until(f"{name} has a copy", partial(has_copy, fleet, name), 60)
    until("both are nominated", lambda: nominated(plane, "first") == ["w1", "w2"], 60)
    waits = workload_of(plane, "first")
    assert waits is not None
    assert fleet.check("first")["state"] == "Pending"
    copy = fleet.workers["w1"].api.get(WORKLOADS)["items"][0]
    assert copy["metadata"]["name"] == waits["metadata"]["name"]
    assert copy["metadata"]["labels"][ORIGIN] == "fleet"
    assert not any(fleet.is_at(name, "first") for name in ("w1", "w2"))

    fleet.limit("w2", 2)
    until("it is at w2", lambda: fleet.cluster("first") == "w2", 60)
    until("w1's copy is gone", lambda: fleet.copies("w1") == [], 60)
    assert fleet.check("first")["state"] == "Ready"
    assert fleet.check("first")["message"] == 'The workload was admitted on "w2"'
    there = fleet.workers["w2"].api.get(f"{JOBS}/first")
    labels = there["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/prebuilt-workload-name"] == waits["metadata"]["name"]
    assert labels[ORIGIN] == "fleet"
    assert "managedBy" not in there["spec"] or there["spec"]["managedBy"] != CONTROLLER
    until("it runs there", lambda: not suspended(fleet.workers["w2"], "first"), 60)
    until("it is not suspended here", lambda: not suspended(plane, "first"), 60)
    run(fleet.workers["w2"], "first")
    until(
        "its status comes back",
        lambda: plane.api.get(f"{JOBS}/first")["status"].get("active") == 1,
        60,
    )
    finish(fleet.workers["w2"], "first")
    until("it is done here", lambda: is_true(plane.api.get(f"{JOBS}/first"), "Complete"), 60)
    until("so is its Workload", lambda: is_true(workload_of(plane, "first"), "Finished"), 60)
    until(
        "nothing is left there",
        lambda: not fleet.is_at("w2", "first") and fleet.copies("w2") == [],
        60,
    )


def test_a_job_that_is_not_multikueues_is_rejected(fleet: Fleet) -> None:
    apply(fleet.manager, job("mine", "team"))
    wanted = f'Expecting spec.managedBy to be "{CONTROLLER}" not ""'
    until(
        "it is deactivated",
        lambda: (workload_of(fleet.manager, "mine") or {})["spec"].get("active") is False,
        60,
    )
    evicted = condition(workload_of(fleet.manager, "mine"), "Evicted")
    assert evicted["reason"] == "DeactivatedDueToAdmissionCheck"
    events = json.loads(fleet.manager.kubectl("get", "events", "-o", "json"))["items"]
    assert any(wanted in one["message"] for one in events)
    assert fleet.copies("w1") == []


def test_a_job_deleted_here_is_deleted_there(fleet: Fleet) -> None:
    fleet.limit("w1", 2)
    apply(fleet.manager, dispatched("dropped"))
    until("it is at w1", lambda: fleet.cluster("dropped") == "w1", 60)
    fleet.manager.api.delete(f"{JOBS}/dropped")
    until(
        "nothing is left there",
        lambda: not fleet.is_at("w1", "dropped") and fleet.copies("w1") == [],
        60,
    )


def test_an_eviction_in_a_worker_dispatches_the_job_again(fleet: Fleet) -> None:
    fleet.limit("w1", 2)
    apply(fleet.manager, dispatched("moved"))
    until("it is at w1", lambda: fleet.cluster("moved") == "w1", 60)
    until("it runs there", lambda: not suspended(fleet.workers["w1"], "moved"), 60)
    run(fleet.workers["w1"], "moved")
    until(
        "its status comes back",
        lambda: fleet.manager.api.get(f"{JOBS}/moved")["status"].get("active") == 1,
        60,
    )
    fleet.limit("w2", 2)
    stopped = quota("team", 0)
    stopped["spec"]["stopPolicy"] = "HoldAndDrain"
    apply(fleet.workers["w1"], stopped)
    until("it is at w2", lambda: fleet.cluster("moved") == "w2", 120)
    until("w1 has nothing", lambda: not fleet.is_at("w1", "moved") and fleet.copies("w1") == [], 60)
    evictions = (workload_of(fleet.manager, "moved") or {})["status"]["schedulingStats"][
        "evictions"
    ]
    assert [one["reason"] for one in evictions] == ["AdmissionCheck"]
    fleet.manager.api.delete(f"{JOBS}/moved")
    until("nothing is left there", lambda: fleet.copies("w2") == [], 60)


@pytest.mark.parametrize("kind", sorted(DISPATCHED - {JOB}), ids=lambda kind: kind.kind)
def test_jobs_of_each_kind_run_in_a_worker(fleet: Fleet, kind: Resource) -> None:
    """The operators are absent: their status is what the test writes."""
    plane, worker, framework = fleet.manager, fleet.workers["w1"], KINDS[kind]
    name = f"each-{kind.kind.lower()}"
    document = sample(framework.name)
    document["apiVersion"] = kind.api_version
    document["metadata"] = {
        "name": name,
        "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": "wide"},
    }
    change = Change(document)
    change.put(framework.managed_by, CONTROLLER)
    change.put(framework.suspend, True)
    apply(plane, dict(change.document))
    path = kind.path("default", name)
    until("it is at w1", lambda: fleet.cluster(name) == "w1", 60)
    there = worker.api.get(path)
    assert at_path(there, framework.managed_by) is ABSENT
    assert there["metadata"]["labels"][ORIGIN] == "fleet"
    for one in (worker, plane):
        until("it runs", partial(is_started, one, path, framework), 60)
    worker.api.patch(f"{path}/status", {"status": {"conditions": [SEEN]}})
    until(
        "its status comes back",
        lambda: plane.api.get(path).get("status", {}).get("conditions") == [SEEN],
        60,
    )
    plane.api.delete(path)
    until(
        "nothing is left there",
        lambda: worker.api.find(path) is None and fleet.copies("w1") == [],
        60,
    )


def test_a_worker_that_hangs_and_kubeconfigs_that_are_refused_stop_no_other(fleet: Fleet) -> None:
    plane = fleet.manager
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hung = kubeconfig({"server": f"https://127.0.0.1:{port}"}, {"token": "t"})
        login = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/true"}}
        bad = kubeconfig({"server": "https://127.0.0.1:1"}, login)
        apply(plane, secret("hung", hung), secret("bad", bad), member("hung"), member("bad"))
        clusters = {"clusters": ["hung", "bad", "w1", "w2"]}
        apply(plane, of_kueue("MultiKueueConfig", "fleet", clusters))

        def active(name: str) -> dict[str, Any]:
            return condition(plane.api.get(f"{KUEUE}/multikueueclusters/{name}"), "Active")

        until("it says so", lambda: active("bad").get("reason") == "InsecureKubeConfig", 60)
        until(
            "it waits for it", lambda: active("hung").get("reason") == "ClientConnectionFailed", 60
        )
        until(
            "the others count",
            lambda: condition(plane.api.get(CHECK), "Active")["reason"] == "SomeActiveClusters",
            60,
        )
        assert is_true(plane.api.get(CHECK), "Active")
        fleet.limit("w1", 4)
        for i in range(4):
            apply(plane, dispatched(f"beside-{i}"))
        for i in range(4):
            until("it is at w1", partial(at, fleet, f"beside-{i}", "w1"), 60)
            plane.api.delete(f"{JOBS}/beside-{i}")
        until("nothing is left there", lambda: fleet.copies("w1") == [], 60)
    apply(plane, of_kueue("MultiKueueConfig", "fleet", {"clusters": ["w1", "w2"]}))
    for name in ("hung", "bad"):
        plane.api.delete(f"{KUEUE}/multikueueclusters/{name}")


def test_a_lost_worker_loses_its_jobs_and_is_cleaned_when_it_returns(fleet: Fleet) -> None:
    plane, lost = fleet.manager, fleet.workers["w2"]
    fleet.limit("w2", 4)
    apply(plane, dispatched("stays"), dispatched("ends"))
    for name in ("stays", "ends"):
        until(f"{name} is at w2", partial(at, fleet, name, "w2"), 60)
    lost.kill("kube-apiserver")
    until(
        "it is noticed",
        lambda: not is_true(plane.api.get(f"{KUEUE}/multikueueclusters/w2"), "Active"),
        60,
    )
    # This one is an orphan there: no manager could delete it.
    plane.api.delete(f"{JOBS}/ends")
    fleet.limit("w1", 2)
    until("the other is at w1", lambda: fleet.cluster("stays") == "w1", 120)
    lost.start("kube-apiserver")
    lost.wait_until_ready()

    def cleaned() -> bool:
        try:
            left = [fleet.is_at("w2", name) for name in ("stays", "ends")]
            return not any(left) and fleet.copies("w2") == []
        except (ApiError, OSError):
            return False

    until("what it had is gone", cleaned, 120)
    assert fleet.is_at("w1", "stays"), "only one cluster has it"
    until(
        "it is connected",
        lambda: is_true(plane.api.get(f"{KUEUE}/multikueueclusters/w2"), "Active"),
        60,
    )
    finish(fleet.workers["w1"], "stays")
    until("its end comes back", lambda: is_true(workload_of(plane, "stays"), "Finished"), 60)
