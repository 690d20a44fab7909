"""Values and refusals of the chart that depend on the cluster that it is installed on."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import apply
from tests.packages.chart import CHART, HELM, needs_helm, objects_of

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), needs_helm]
CLAIM = "/api/v1/namespaces/gpu/persistentvolumeclaims/s-queue"


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    apply(control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}})
    return control_plane


def rendered(plane: ControlPlane, *values: str) -> subprocess.CompletedProcess[str]:
    words = [word for one in (*values, "agent.runtimeClassName=") for word in ("--set", one)]
    command = [str(HELM), "template", "s", str(CHART), "-n", "gpu", "--dry-run=server"]
    command += ["--kube-version", "1.31.0", *words]
    return subprocess.run(
        [*command, "--kubeconfig", str(plane.kubeconfig)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def replicas(plane: ControlPlane, *values: str) -> Any:
    done = rendered(plane, "queue.mode=kubernetes", *values)
    assert done.returncode == 0, done.stderr
    (found,) = [
        one
        for one in objects_of(done.stdout)
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "s-queue"
    ]
    return found["spec"]["replicas"]


def test_there_are_two_controllers_where_there_are_two_nodes(plane: ControlPlane) -> None:
    assert replicas(plane) == 1
    for name in ("n1", "n2"):
        apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    assert replicas(plane) == 2
    assert replicas(plane, "queue.replicas=1") == 1


def test_a_switch_of_mode_that_deletes_the_queues_volume_is_refused(plane: ControlPlane) -> None:
    standalone = ("queue.mode=standalone", "queue.persistence.storageClass=fast")
    done = rendered(plane, *standalone)
    assert done.returncode == 0, done.stderr
    (claim,) = [one for one in objects_of(done.stdout) if one["kind"] == "PersistentVolumeClaim"]
    plane.kubectl("apply", "-f", "-", given=yaml.safe_dump(claim))
    for values in (("queue.mode=kubernetes",), ("queue.enabled=false",)):
        refused = rendered(plane, *values)
        assert refused.returncode != 0
        assert "this upgrade deletes the volume claim s-queue" in refused.stderr
        away = rendered(plane, *values, "queue.persistence.enabled=false")
        assert away.returncode == 0, away.stderr
    assert rendered(plane, *standalone).returncode == 0, "it stays in standalone"
    plane.api.patch(CLAIM, {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}})
    kept = rendered(plane, "queue.mode=kubernetes")
    assert kept.returncode == 0, kept.stderr
