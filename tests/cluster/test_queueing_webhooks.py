"""Mode kubernetes with its webhooks: old manifests count, jobs are suspended as they are made, mistakes are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from queuecontroller.kueue_api import GROUP, KINDS
from queuecontroller.kueue_api.crds import Webhook, definitions
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError, free_ports
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    apply,
    condition,
    door,
    finish,
    is_served,
    is_true,
    job,
    of_kueue,
    quota,
    serving,
    suspended,
    workload_of,
)
from tests.node import until
from tests.queue.kueue_api.serving import certify
from tests.queue.test_manifests import FOLDER, needs_manifests

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture(scope="module")
def queue(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """The definitions as a user applies them: they know of no authority, and of no address that answers."""
    place = tmp_path_factory.mktemp("queue")
    certify(place)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sluice"}}
    text = json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [*definitions(Webhook()), namespace]}
    )
    control_plane.kubectl("apply", "--server-side", "-f", "-", given=text)
    until("Kueue's kinds are served", lambda: is_served(control_plane), 60)
    (port,) = free_ports(1)
    settings = (
        f"kubernetes.webhooks_listen=127.0.0.1:{port}",
        f"kubernetes.webhooks_url=https://127.0.0.1:{port}",
        f"kubernetes.webhooks_certificate={place}/server.crt",
        f"kubernetes.webhooks_key={place}/server.key",
        f"kubernetes.webhooks_ca={next(one for one in place.glob('*.crt') if one.name != 'server.crt')}",
    )
    with serving(control_plane, place, *settings) as replica:
        until("it decides", replica.leads, 60)
        apply(control_plane, of_kueue("ResourceFlavor", "plain", {}))
        until("jobs are asked about", lambda: is_asked(control_plane), 60)
        yield control_plane


def is_asked(plane: ControlPlane) -> bool:
    """The API server takes a moment to know of a webhook and of a converter."""
    made: Any = plane.api.call("POST", f"{JOBS}?dryRun=All", job("try", "none", suspend=False))
    try:
        plane.api.get(f"/apis/{GROUP}/v1beta1/resourceflavors")
    except ApiError:
        return False
    return bool(made["spec"]["suspend"])


def test_a_job_is_suspended_as_it_is_made(queue: ControlPlane) -> None:
    made = queue.api.create("jobs", "default", job("asked", "nowhere", suspend=False))
    assert made["spec"]["suspend"] is True
    other = queue.api.create("jobs", "default", job("free", "", suspend=False))
    assert not other["spec"].get("suspend"), "it names no queue"


def test_a_job_that_names_no_queue_has_the_one_called_default(queue: ControlPlane) -> None:
    apply(queue, quota("by-default", 1), door("default", "by-default"))

    def has_it() -> bool:
        made = queue.api.call("POST", f"{JOBS}?dryRun=All", job("try", "", suspend=False))
        return made["metadata"].get("labels") == {"kueue.x-k8s.io/queue-name": "default"}

    until("its namespace has one", has_it, 30)
    queue.api.create("jobs", "default", job("by-default", "", suspend=False))
    until("it is admitted", lambda: not suspended(queue, "by-default"), 30)
    queue.api.delete(f"{KUEUE}/namespaces/default/localqueues/default")


def test_what_is_wrong_is_refused_with_the_readers_words(queue: ControlPlane) -> None:
    wrong = quota("wrong", 1)
    wrong["spec"]["resourceGroups"].append(wrong["spec"]["resourceGroups"][0])
    with pytest.raises(ControlPlaneError, match="is in two groups"):
        apply(queue, wrong)


def test_old_manifests_are_decided_upon(queue: ControlPlane) -> None:
    old = quota("old", 1)
    old["apiVersion"] = f"{GROUP}/v1beta1"
    old["spec"]["cohort"] = "shared"
    lends = quota("lends", 2, cohortName="shared")
    apply(queue, old, lends, door("old", "old"), job("borrows", "old", "3"))
    until("it is admitted with what it borrows", lambda: not suspended(queue, "borrows"), 30)

    def usage() -> Any:
        found = queue.api.get(f"{KUEUE}/clusterqueues/old").get("status") or {}
        return [one["resources"] for one in found.get("flavorsUsage") or ()]

    wanted = [[{"name": "cpu", "total": "3", "borrowed": "2"}]]
    until("the queue says what is borrowed", lambda: usage() == wanted, 30)


@needs_manifests
def test_the_owners_manifests_queue_a_job(queue: ControlPlane) -> None:
    folder = FOLDER / "basic"
    queue.kubectl("apply", "-f", str(folder / "00-queues.yaml"))
    (document,) = yaml.safe_load_all((folder / "10-job.yaml").read_text())
    names = []
    for _ in range(4):
        made = queue.kubectl("create", "-f", str(folder / "10-job.yaml"), "-o", "json")
        names.append(json.loads(made)["metadata"]["name"])
    assert document["spec"]["parallelism"] == 3
    for name in names[:3]:
        until(f"{name} is admitted", lambda name=name: not suspended(queue, name), 30)  # type: ignore[misc]
    selector = queue.api.get(f"{JOBS}/{names[0]}")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"node-type": "worker"}
    until("the fourth waits", lambda: condition(workload_of(queue, names[3]), "QuotaReserved"), 30)
    assert suspended(queue, names[3]), "nine CPUs are three times three"
    assert (
        "insufficient unused quota for cpu"
        in condition(workload_of(queue, names[3]), "QuotaReserved")["message"]
    )
    finish(queue, names[0])
    until("then it is its turn", lambda: not suspended(queue, names[3]), 30)
    assert is_true(workload_of(queue, names[0]), "Finished")


def test_the_definitions_ask_here(queue: ControlPlane) -> None:
    crds = queue.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    ours = [one for one in crds if one["spec"]["group"] == GROUP]
    assert len(ours) == len(KINDS)
    for one in ours:
        client = one["spec"]["conversion"]["webhook"]["clientConfig"]
        assert set(client) == {"url", "caBundle"}
    (configuration,) = queue.api.get(CONFIGURATIONS)["items"]
    assert configuration["webhooks"][0]["failurePolicy"] == "Ignore"
