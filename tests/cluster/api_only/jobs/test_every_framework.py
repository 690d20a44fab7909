"""A job of every framework in the table that holds jobs by a field: held, admitted, let run and finished by the queue, in a real
API server. The frameworks' operators are not there: their status is written here, by the table's own tests of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from queuecontroller.frameworks import Framework, framework_of, is_suspended
from queuecontroller.frameworks.table import Holds, Is
from sluicecommon.kubernetes.resources import Resource
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    KUEUE,
    WORKLOADS,
    apply,
    condition,
    define,
    door,
    finish,
    is_true,
    of_kueue,
    serving,
)
from tests.kit.node import until
from tests.queue.frameworks.crds import cluster_crd_for_tests, crds_for_tests
from tests.queue.frameworks.samples import RUNTIME, SAMPLES, sample

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
DEADLINE_S = 120
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    define(control_plane)
    made = [*crds_for_tests(), cluster_crd_for_tests(RUNTIME, "clustertrainingruntimes")]
    apply(control_plane, *made)
    until("every kind is served", lambda: all(served(control_plane, one) for one in made), 60)
    apply(
        control_plane, RUNTIME, of_kueue("ResourceFlavor", "plain", {"nodeLabels": {"pool": "p"}})
    )
    # The kinds are there before it starts: it looks for others only each half minute.
    with serving(control_plane, tmp_path_factory.mktemp("queue")) as replica:
        until("it decides", replica.leads, 60)
        yield control_plane


def served(plane: ControlPlane, definition: dict[str, Any]) -> bool:
    spec = definition["spec"]
    try:
        plane.api.get(
            f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        )
    except ApiError:
        return False
    return True


def closed_queue(name: str) -> dict[str, Any]:
    """A ClusterQueue with room for all that admits nothing yet."""
    quotas = [{"name": one, "nominalQuota": "1000Gi" if one == "memory" else 1000} for one in RESOURCES]  # fmt: skip
    group = {"coveredResources": [*RESOURCES], "flavors": [{"name": "plain", "resources": quotas}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}, "stopPolicy": "Hold"}
    return of_kueue("ClusterQueue", name, spec)


def status_of(fw: Framework) -> dict[str, Any]:
    """Status that the framework's operator writes when a job is done."""
    match fw.succeeded:
        case Holds(conditions):
            at = "2026-11-22T10:00:00Z"
            one = {"type": conditions[0], "status": "True", "reason": "Done", "message": "all is done", "lastTransitionTime": at}  # fmt: skip
            return {"status": {"conditions": [one]}}
        case Is(path, values):
            made: Any = values[0]
            for step in reversed(path):
                made = {step: made}
            return dict(made)
        case _:
            raise AssertionError(f"{fw.name} is never done")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_is_held_admitted_let_run_and_finished(queue: ControlPlane, name: str) -> None:
    document = sample(name)
    fw = framework_of(document)
    assert fw is not None
    own = name.replace("/", "-").replace(".", "-")
    apply(queue, closed_queue(own), door(own, own))
    document["metadata"] = {
        "name": "sample",
        "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": own},
    }
    group, _, version = document["apiVersion"].rpartition("/")
    path = Resource(group, version, fw.plural).path("default", "sample")
    queue.kubectl("create", "-f", "-", given=json.dumps(document))

    def workload() -> dict[str, Any] | None:
        for one in queue.api.get(WORKLOADS)["items"]:
            for owner in one["metadata"].get("ownerReferences", ()):
                if (owner["kind"], owner["name"]) == (fw.kind, "sample"):
                    return dict(one)
        return None

    def counts() -> tuple[Any, Any]:
        status = queue.api.get(f"{KUEUE}/clusterqueues/{own}").get("status") or {}
        return status.get("pendingWorkloads"), status.get("reservingWorkloads")

    until("it waits", lambda: condition(workload(), "QuotaReserved"), DEADLINE_S)
    assert is_suspended(fw, queue.api.get(path))
    until("its queue counts it", lambda: counts() == (1, 0), DEADLINE_S)
    queue.api.patch(f"{KUEUE}/clusterqueues/{own}", {"spec": {"stopPolicy": "None"}})
    until("it is let run", lambda: not is_suspended(fw, queue.api.get(path)), DEADLINE_S)
    admitted = workload()
    assert is_true(admitted, "Admitted")
    assert admitted is not None
    assigned = admitted["status"]["admission"]["podSetAssignments"]
    assert [(one["name"], one["count"]) for one in assigned] == SAMPLES[name][1]
    running = queue.api.get(path)
    assert json.dumps(running["spec"]).count('"pool": "p"') == len(assigned)
    until("its queue holds quota for it", lambda: counts() == (0, 1), DEADLINE_S)
    if fw.succeeded is None:  # it is a service: it ends when it is deleted
        queue.api.delete(path)
        until("its Workload is gone", lambda: workload() is None, DEADLINE_S)
    else:
        if fw.name == "batch/job":
            finish(queue, "sample")
        else:
            queue.api.patch(f"{path}/status", status_of(fw))
        until("it is finished", lambda: is_true(workload(), "Finished"), DEADLINE_S)
        assert condition(workload(), "Finished")["reason"] == "Succeeded"
        assert not is_suspended(fw, queue.api.get(path)), "what is done is left alone"
    until("its quota is free", lambda: counts() == (0, 0), DEADLINE_S)
