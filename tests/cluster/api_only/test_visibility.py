"""Pending workloads in their order: the visibility API through the API server, for users with the
right to read it, and refused to callers that bypass the API server."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.status.visibility import GROUP
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    Replica,
    apply,
    define,
    door,
    job,
    of_kueue,
    quota,
    workload_of,
)
from tests.kit.node import until
from tests.kit.workplace import free_ports
from tests.queue.kueueapi.serving import certify

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
ROOT = f"/apis/{GROUP}"
NAMES = ["most", "next-a", "next-b", "last"]


class Served:
    """Two replicas, of which one leads; the API server finds the first by its Service, which leads to this machine."""

    def __init__(self, plane: ControlPlane, place: Path) -> None:
        self.plane = plane
        certify(place)
        self.authority = next(one for one in place.glob("*.crt") if one.name != "server.crt")
        self.ports = free_ports(2)
        self.replicas = []
        for number, port in enumerate(self.ports):
            settings = (
                f"kubernetes.visibility_listen=127.0.0.1:{port}",
                f"kubernetes.webhooks_certificate={place}/server.crt",
                f"kubernetes.webhooks_key={place}/server.key",
                f"kubernetes.webhooks_ca={self.authority}",
            )
            self.replicas.append(Replica(plane, place / f"queue-{number}.log", settings))

    def ask(self, number: int) -> bool:
        """Make the API server send requests to that replica from now on."""
        for version in ("v1beta2", "v1beta1"):
            spec = {"service": {"port": self.ports[number]}}
            path = f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{GROUP}"
            self.plane.api.patch(path, {"spec": spec})
        return True


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    define(control_plane)
    head = {"name": "sluice-queue-visibility", "namespace": "sluice"}
    spec = {"type": "ExternalName", "externalName": "localhost"}
    apply(control_plane, {"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": spec})
    made = Served(control_plane, tmp_path_factory.mktemp("queue"))
    first, second = made.replicas
    try:
        first.start()
        until("it decides", first.leads, 60)
        second.start()
        until("it is registered", lambda: made.ask(0), 60)
        until("it is served", lambda: is_served_by_us(control_plane), 60)
        queues = [quota("small", 1), door("one", "small"), door("other", "small")]
        apply(control_plane, of_kueue("ResourceFlavor", "plain", {}), *queues)
        for name, value in (("high", 100), ("low", -1)):
            kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
            apply(control_plane, {**kind, "metadata": {"name": name}, "value": value})
        for name, queue, of_class in (
            ("runs", "one", ""),
            ("last", "one", "low"),
            ("next-a", "one", ""),
            ("next-b", "other", ""),
            ("most", "other", "high"),
        ):
            document = job(name, queue)
            if of_class:
                document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = of_class
            control_plane.api.create("jobs", "default", document)
            until(f"{name} is known", lambda n=name: workload_of(control_plane, n), 60)  # type: ignore[misc]
            if name == "next-a":
                until_a_second_later(control_plane, "next-a")
        yield made
        for one in made.replicas:
            assert "Traceback" not in one.text, one.text[-4000:]
            assert "Forbidden" not in one.text, one.text[-4000:]
    finally:
        for one in made.replicas:
            if one.process is not None:
                one.end(signal.SIGKILL)


def until_a_second_later(plane: ControlPlane, name: str) -> None:
    """Ages are told in whole seconds."""
    made = workload_of(plane, name)
    assert made is not None
    since = made["metadata"]["creationTimestamp"]

    def later() -> bool:
        probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "clock"}}
        path = "/api/v1/namespaces/default/configmaps?dryRun=All"
        answer = plane.api.call("POST", path, probe)
        return bool(answer["metadata"]["creationTimestamp"] > since)

    until("a second has passed", later, 30)


def is_served_by_us(plane: ControlPlane) -> bool:
    try:
        return all(
            len(plane.api.get(f"{ROOT}/{one}")["resources"]) == 4 for one in ("v1beta1", "v1beta2")
        )
    except ApiError:
        return False


def test_a_queue_tells_who_waits_in_it(served: Served) -> None:
    path = f"{ROOT}/v1beta2/clusterqueues/small/pendingworkloads"

    def items() -> list[dict[str, Any]]:
        text = served.plane.kubectl("get", "--raw", path)
        return list(json.loads(text)["items"])

    until("all four wait with a reason", lambda: sum("reason" in one for one in items()) == 4, 60)
    found = items()
    owners = [one["metadata"]["ownerReferences"][0]["name"] for one in found]
    assert owners == NAMES, "by priority, then by age"
    assert all(one["metadata"].keys() == {"name", "namespace", "creationTimestamp", "ownerReferences"} for one in found)  # fmt: skip
    of_owners = [one["metadata"]["ownerReferences"][0].keys() for one in found]
    assert all(one == {"apiVersion", "kind", "name", "uid"} for one in of_owners)
    assert [one["positionInClusterQueue"] for one in found] == [0, 1, 2, 3]
    assert [one["positionInLocalQueue"] for one in found] == [0, 0, 1, 1]
    assert [one["localQueueName"] for one in found] == ["other", "one", "other", "one"]
    assert [one["priority"] for one in found] == [100, 0, 0, -1]
    assert found[0]["reason"] == "WaitingForQuota"
    assert "insufficient unused quota for cpu" in found[0]["message"]


def test_pages_of_a_local_queue(served: Served) -> None:
    path = f"{ROOT}/v1beta1/namespaces/default/localqueues/other/pendingworkloads"
    (second,) = served.plane.api.get(f"{path}?offset=1&limit=1")["items"]
    assert second["metadata"]["ownerReferences"][0]["name"] == "next-b"
    assert (second["positionInClusterQueue"], second["positionInLocalQueue"]) == (2, 1)
    assert served.plane.api.get(f"{path}?offset=2")["items"] == []
    assert served.plane.api.get(f"{path}?limit=0")["items"] == []


def test_kubectl_get_shows_rows(served: Served) -> None:
    words = ("get", f"clusterqueues.v1beta2.{GROUP}", "small", "--subresource=pendingworkloads")
    lines = served.plane.kubectl(*words).splitlines()
    assert lines[0].split() == [
        "NAME",
        "NAMESPACE",
        "QUEUE",
        "PRIORITY",
        "POSITION",
        "ESTIMATE",
        "REASON",
    ]
    assert [line.split()[-2] for line in lines[1:]] == ["0", "1", "2", "3"]
    assert lines[1].split()[1:] == ["default", "other", "100", "0", "WaitingForQuota"]


def test_kueues_own_names_still_mean_kueues_kinds(served: Served) -> None:
    assert "small" in served.plane.kubectl("get", "clusterqueues")
    assert "one" in served.plane.kubectl("get", "localqueues", "-n", "default")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("v1beta2/clusterqueues/none/pendingworkloads", 404, '"none" not found'),
        ("v1beta2/namespaces/default/localqueues/none/pendingworkloads", 404, '"none" not found'),
        (
            "v1beta2/clusterqueues/small/pendingworkloads?limit=-1",
            400,
            "limit: expected a whole number from 0",
        ),
        ("v1beta2/clusterqueues/small/pendingworkloads?limit=20000", 400, "more than 10000"),
        ("v1beta2/clusterqueues/small", 404, "could not find"),
    ],
)
def test_what_cannot_be_answered_says_why(
    served: Served, path: str, status: int, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        served.plane.api.get(f"{ROOT}/{path}")
    assert refused.value.status == status


def test_a_replica_that_does_not_lead_has_the_same_order(served: Served) -> None:
    path = f"{ROOT}/v1beta2/clusterqueues/small/pendingworkloads"
    keys = served.plane.pki
    front = (keys / "front-client.crt", keys / "front-client.key")
    master = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}

    def from_objects() -> bool:
        status, document = direct(served, front, path, master, 1)
        assert status == 200, document
        names = [one["metadata"]["ownerReferences"][0]["name"] for one in document["items"]]
        assert names in (NAMES, [])
        return len(names) == 4 and all("reason" in one for one in document["items"])

    until("the reasons are written", from_objects, 60)
    assert "deciding" not in served.replicas[1].life


def test_rights_are_the_api_servers(served: Served) -> None:
    """Rights of a person who may read one queue. The requests bypass the API server's own check,
    which has the same result: they carry a certificate of its front proxy, as requests that it
    passes on do."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "looks"},
        "rules": [
            {
                "apiGroups": [GROUP],
                "resources": ["clusterqueues/pendingworkloads"],
                "resourceNames": ["small"],
                "verbs": ["get"],
            }
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "looks"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "looks",
        },
        "subjects": [{"kind": "Group", "name": "lookers", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    apply(served.plane, role, binding)
    path = f"{ROOT}/v1beta2/clusterqueues/small/pendingworkloads"
    as_looker = ("--as=ada", "--as-group=lookers")
    assert json.loads(served.plane.kubectl("get", "--raw", path, *as_looker))["items"]
    with pytest.raises(ControlPlaneError, match="forbidden"):
        served.plane.kubectl("get", "--raw", path, "--as=eve")
    keys = served.plane.pki
    front = (keys / "front-client.crt", keys / "front-client.key")
    assert direct(served, front, path, ada())[0] == 200
    status, said = direct(served, front, path, {"X-Remote-User": "eve"})
    assert status == 403
    assert 'User "eve" cannot get resource "clusterqueues/pendingworkloads"' in said["message"]
    assert direct(served, front, path, {})[0] == 401, "it names no user"


def test_who_comes_by_himself_is_nobody(served: Served) -> None:
    path = f"{ROOT}/v1beta2/clusterqueues/small/pendingworkloads"
    assert direct(served, None, path, ada())[0] == 401
    keys = served.plane.pki
    with pytest.raises(OSError):  # the handshake ends, or the connection under the question
        direct(served, (keys / "admin.crt", keys / "admin.key"), path, ada())


def ada() -> dict[str, str]:
    return {"X-Remote-User": "ada", "X-Remote-Group": "lookers"}


def direct(
    served: Served,
    shown: tuple[Path, Path] | None,
    path: str,
    headers: dict[str, str],
    number: int = 0,
) -> tuple[int, dict[str, Any]]:
    """Status and document, past the API server."""
    context = ssl.create_default_context(cafile=str(served.authority))
    if shown is not None:
        context.load_cert_chain(*shown)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", served.ports[number], timeout=30, context=context
    )
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
