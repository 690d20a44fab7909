"""The chart beside a Kueue: refused where there is none, then nothing of Kueue's is touched, and what the Deployment would run answers
under the chart's own account."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.kueue.manager import define_kueue
from tests.cluster.programs.release import DEPLOYMENT, Release
from tests.cluster.queueing import DEADLINE_S, KUEUE, apply, is_true, of_kueue
from tests.kit.node import until
from tests.kit.places import REPO

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
VALUES = ("queue.mode=beside", "agent.runtimeClassName=", "cleanup.enabled=false")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/workloads.kueue.x-k8s.io"


def test_a_release_beside_kueue(control_plane: ControlPlane, tmp_path: Path) -> None:
    plane = control_plane
    release = Release(plane, tmp_path, *VALUES)
    assert "this cluster has no Kueue" in release.tried(*release.words()).stderr
    define_kueue(plane)
    label = {"app.kubernetes.io/part-of": "sluice"}
    plane.api.patch(CRD, {"metadata": {"labels": label}})
    assert "is Sluice's own" in release.tried(*release.words()).stderr
    plane.api.patch(CRD, {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}})
    before = {one["metadata"]["name"] for one in plane.api.get(CRDS)["items"]}
    version = plane.api.get(CRD)["metadata"]["resourceVersion"]
    release.install()
    assert plane.api.get(DEPLOYMENT)["spec"]["replicas"] == 1
    log = tmp_path / "queue.log"
    with log.open("wb") as into:
        process = subprocess.Popen(
            release.command(), stdin=subprocess.DEVNULL, stdout=into, stderr=into, cwd=REPO
        )
    try:
        apply(
            plane, of_kueue("AdmissionCheck", "shares", {"controllerName": "sluice.dev/placement"})
        )
        path = f"{KUEUE}/admissionchecks/shares"
        until("our check is active", lambda: is_true(plane.api.get(path), "Active"), DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, log.read_text()[-3000:]
        assert "Forbidden" not in log.read_text(), log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    release.helm("uninstall", "s")
    assert {one["metadata"]["name"] for one in plane.api.get(CRDS)["items"]} == before
    assert plane.api.get(CRD)["metadata"]["resourceVersion"] == version
