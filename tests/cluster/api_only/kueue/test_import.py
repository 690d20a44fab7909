"""A cluster in which the real Kueue decided is taken over: what runs goes on, untouched, and what waits waits for us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.kueue.manager import define_kueue, kueue_runs
from tests.cluster.queueing import (
    JOBS,
    WORKLOADS,
    apply,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    quota,
    serving,
    suspended,
    workload_of,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
WAIT_S = 180


def sluice(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queuecontroller", words[0], "--kubeconfig", plane.kubeconfig]
    return subprocess.run(
        [*map(str, command), *words[1:]], capture_output=True, text=True, timeout=180
    )


def versions(plane: ControlPlane) -> dict[str, Any]:
    every = [*plane.api.get(JOBS)["items"], *plane.api.get(WORKLOADS)["items"]]
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in every}


def identity(plane: ControlPlane, name: str) -> tuple[Any, ...]:
    found = plane.api.get(f"{JOBS}/{name}")
    pods = found["spec"]["template"]["spec"].get("nodeSelector")
    return (
        found["metadata"]["uid"],
        found["status"].get("startTime"),
        found["spec"]["suspend"],
        pods,
    )


def test_kueue_ends_and_what_it_started_goes_on(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    define_kueue(plane)
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sluice"}})
    flavor = of_kueue("ResourceFlavor", "plain", {"nodeLabels": {"pool": "plain"}})
    high = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100}  # fmt: skip
    with kueue_runs(plane, tmp_path) as kueue:
        apply(plane, flavor, high, quota("team", 2), door("team", "team"))
        apply(plane, job("runs", "team", "2"))
        until("Kueue starts it", lambda: not suspended(plane, "runs"), WAIT_S)
        running = {"active": 1, "ready": 1, "startTime": "2026-11-22T10:00:00Z"}
        plane.api.patch(f"{JOBS}/runs/status", {"status": running})
        late, urgent = job("late", "team", "2"), job("urgent", "team", "2")
        urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
        apply(plane, late, urgent)
        until("both wait", lambda: workload_of(plane, "late") and workload_of(plane, "urgent"), WAIT_S)  # fmt: skip
        refused = sluice(plane, "import")
        assert refused.returncode == 1
        assert "Kueue still runs in this cluster" in refused.stderr
        kueue.end()
    before, its = versions(plane), identity(plane, "runs")
    given = (workload_of(plane, "runs") or {})["status"]["admission"]

    dry = sluice(plane, "import", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "it runs, and continues" in dry.stdout
    assert "change CustomResourceDefinition/workloads.kueue.x-k8s.io" in dry.stdout
    assert versions(plane) == before
    done = sluice(plane, "import")
    assert done.returncode == 0, done.stderr
    until("its objects are served again", lambda: versions(plane), WAIT_S)
    assert versions(plane) == before, "no object is written"
    again = sluice(plane, "import")
    assert again.returncode == 0
    assert "to change" not in again.stdout, "it is done once"

    exported = sluice(plane, "export")
    assert exported.returncode == 0
    for name in ("kind: ClusterQueue", "kind: WorkloadPriorityClass", "kind: Workload"):
        assert name in exported.stdout
    file = tmp_path / "export.yaml"
    file.write_text(exported.stdout)
    into = sluice(plane, "import", "-f", str(file))
    assert into.returncode == 0, into.stderr
    assert "create" not in into.stdout
    assert versions(plane) == before

    with serving(plane, tmp_path) as replica:
        until("it decides", replica.leads, WAIT_S)
        name = (workload_of(plane, "late") or {})["metadata"]["name"]
        until("those who wait are told why by us", lambda: "more needed" in str(plane.api.get(f"{WORKLOADS}/{name}")["status"]), WAIT_S)  # fmt: skip
        assert identity(plane, "runs") == its
        assert (workload_of(plane, "runs") or {})["status"]["admission"] == given
        assert is_true(workload_of(plane, "runs"), "Admitted")
        finish(plane, "runs")
        until("the more important is next", lambda: not suspended(plane, "urgent"), WAIT_S)
        assert suspended(plane, "late")
