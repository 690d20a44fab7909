"""The chart in mode kubernetes against a real API server: installed, a Job held and admitted, upgraded, uninstalled, installed
again, and all of it removed. What the Deployment would run is run here, with the chart's own account, certificate and
configuration."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.status.visibility import GROUP as VISIBILITY
from queuecontroller.kueueapi import GROUP, KINDS
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.release import DEPLOYMENT, NAMESPACE, Release
from tests.cluster.queueing import (
    DEADLINE_S,
    JOBS,
    KUEUE,
    apply,
    door,
    finish,
    is_asked,
    is_served,
    job,
    of_kueue,
    quota,
    suspended,
    workload_of,
)
from tests.kit.node import until
from tests.kit.places import REPO
from tests.kit.workplace import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
HOOKS = "/apis/admissionregistration.k8s.io/v1"
OURS = (
    f"{HOOKS}/mutatingwebhookconfigurations/sluice-jobs",
    f"{HOOKS}/validatingwebhookconfigurations/sluice-kueue-api",
)
API_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta2.{VISIBILITY}"
VALUES = ("queue.mode=kubernetes", "agent.enabled=false", "cleanup.enabled=false")


class Queue(Release):
    def lead_to(self, name: str, port: int) -> None:
        """A Service of the chart's, to this machine: what its pods' endpoints would be."""
        slice_ = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"here-{name}",
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": f"sluice-queue-{name}"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [own_address()], "conditions": {"ready": True}}],
            "ports": [{"name": name, "port": port, "protocol": "TCP"}],
        }
        apply(self.plane, slice_)

    @contextmanager
    def running(self) -> Iterator[None]:
        webhooks, visibility = free_ports(2)
        self.lead_to("webhooks", webhooks)
        self.lead_to("visibility", visibility)
        log = self.place / "queue.log"
        command = self.command(
            "kubernetes.leader_lease_s=3",
            f"kubernetes.webhooks_listen=0.0.0.0:{webhooks}",
            f"kubernetes.visibility_listen=0.0.0.0:{visibility}",
            f"extender.own_address=127.0.0.1:{webhooks}",
        )
        with log.open("ab") as into:
            begin = into.tell()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=into, stderr=into, cwd=REPO
            )

        def life() -> str:
            return log.read_bytes()[begin:].decode()

        try:
            until("it decides", lambda: "deciding" in life(), DEADLINE_S)
            until("jobs are asked about", lambda: is_asked(self.plane), DEADLINE_S)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0, life()[-3000:]
            assert 'User "system:serviceaccount' not in life(), life()[-3000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def own_address() -> str:
    """Endpoints on loopback are refused."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("192.0.2.1", 9))  # sends nothing
        return str(one.getsockname()[0])


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """It finds a Service by its endpoints: there is no kube-proxy."""
    with ControlPlane(
        tmp_path / "plane", apiserver_args=["--enable-aggregator-routing=true"]
    ) as made:
        yield made


def started(plane: ControlPlane, name: str) -> None:
    until(f"{name} is started", lambda: not suspended(plane, name), DEADLINE_S)


def test_a_release_from_its_install_to_its_end(plane: ControlPlane, tmp_path: Path) -> None:
    release = Queue(plane, tmp_path, *VALUES)
    release.install()
    until("Kueue's kinds are served", lambda: is_served(plane), DEADLINE_S)
    deployment = plane.api.get(DEPLOYMENT)
    assert deployment["spec"]["replicas"] == 1
    with release.running():
        apply(plane, of_kueue("ResourceFlavor", "plain", {}), quota("one", 1), door("one", "one"))
        plane.api.create("jobs", "default", job("first", "one", suspend=False))
        started(plane, "first")
        plane.api.create("jobs", "default", job("second", "one", suspend=False))
        until("the second waits", lambda: workload_of(plane, "second") is not None, DEADLINE_S)
        assert suspended(plane, "second")
        until("the API server tells who waits", lambda: waits(plane) == ["one"], DEADLINE_S)
        before = [plane.api.get(one)["webhooks"] for one in OURS]
        release.install("queue.replicas=2")
        after = [plane.api.get(one)["webhooks"] for one in OURS]
        assert after == before, "an upgrade leaves in place what the process has written"
        until("they are answered as before", lambda: is_asked(plane), DEADLINE_S)
        assert plane.api.get(API_SERVICE)["spec"]["caBundle"]
        deployment = plane.api.get(DEPLOYMENT)
        assert deployment["spec"]["replicas"] == 2
        finish(plane, "first")
        started(plane, "second")
    release.helm("uninstall", "s")
    for one in (*OURS, API_SERVICE):
        assert plane.api.find(one) is None, "no service would answer it"
    listed = ("/apis/apps/v1", "deployments"), ("/api/v1", "services"), ("/api/v1", "secrets")
    for prefix, kind in (*listed, ("/apis/rbac.authorization.k8s.io/v1", "roles")):
        found = plane.api.get(f"{prefix}/namespaces/{NAMESPACE}/{kind}")["items"]
        assert not found, f"{kind} are left"
    clean(plane)
    release.install()
    with release.running():
        assert plane.api.get(f"{KUEUE}/clusterqueues/one")["spec"]["resourceGroups"]
        finish(plane, "second")
        plane.api.create("jobs", "default", job("third", "one", suspend=False))
        started(plane, "third")
        plane.kubectl("delete", "crd", "-l", "app.kubernetes.io/part-of=sluice", "--wait=false")
        until("the definitions are gone", lambda: not definitions(plane), DEADLINE_S)
    release.helm("uninstall", "s")
    clean(plane)


def waits(plane: ControlPlane) -> list[str]:
    """The queues of who waits in `one`."""
    found = plane.api.get(f"/apis/{VISIBILITY}/v1beta2/clusterqueues/one/pendingworkloads")
    return [item["localQueueName"] for item in found["items"]]


def clean(plane: ControlPlane) -> None:
    """Check that cluster-scoped objects are deleted with the release, too."""
    for kind in ("clusterroles", "clusterrolebindings"):
        found = plane.api.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}")["items"]
        assert not [one for one in found if one["metadata"]["name"].startswith(NAMESPACE)]
    plane.api.patch(f"{JOBS}/second", {"metadata": {"labels": {"seen": "yes"}}})


def definitions(plane: ControlPlane) -> list[Any]:
    found = plane.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    ours = [one for one in found if one["spec"]["group"] == GROUP]
    assert len(ours) <= len(KINDS)
    return ours
