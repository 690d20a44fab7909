"""`kubectl sluice` as a plugin of the real kubectl, against a real API server with the queue in mode kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import KUEUE, apply, define, job, serving, suspended
from tests.kit.node import until
from tests.kit.places import REPO

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def kubectl(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    place = tmp_path_factory.mktemp("plugin")
    plugin = place / "kubectl-sluice"
    plugin.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m queuecontroller.cli.kubectl.main "$@"\n'
    )
    plugin.chmod(0o755)
    shutil.copy2(control_plane.programs["kubectl"], place / "kubectl")
    environment = os.environ | {
        "PATH": f"{place}:{os.environ['PATH']}",
        "KUBECONFIG": str(control_plane.kubeconfig),
        "PYTHONPATH": str(REPO),
    }

    def call(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [place / "kubectl", "sluice", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    define(control_plane)
    with serving(control_plane, Path(place)) as replica:
        until("it decides", replica.leads, 60)
        yield call


def test_queues_are_created_filled_stopped_and_resumed(
    control_plane: ControlPlane, kubectl: Kubectl
) -> None:
    kubectl("create", "rf", "plain")
    kubectl("create", "cq", "team", "--nominal-quota", "plain:cpu=1", "--cohort", "all")
    kubectl("create", "lq", "main", "-c", "team", "-n", "default")
    assert control_plane.api.get(f"{KUEUE}/clusterqueues/team")["spec"]["cohortName"] == "all"
    apply(control_plane, job("first", "main", "1"), job("second", "main", "1"))
    until("one is admitted", lambda: kubectl("list", "wl", "--status", "admitted").count("job-") == 1, 60)  # fmt: skip
    until("one waits", lambda: "insufficient unused quota" in kubectl("list", "wl", "--status", "pending"), 60)  # fmt: skip
    assert kubectl("list", "wl", "-n", "default", "-c", "team").count("job-") == 2, (
        "also the one that waits"
    )
    admitted = kubectl(
        "list", "wl", "-n", "default", "-c", "team", "--status", "admitted"
    ).splitlines()
    assert admitted[0].split()[:4] == ["NAMESPACE", "NAME", "LOCALQUEUE", "CLUSTERQUEUE"]
    (name,) = [line.split()[1] for line in admitted[1:]]
    kubectl("stop", "wl", name, "-n", "default")
    until("the other one has its turn", lambda: name not in kubectl("list", "wl", "--status", "admitted") and "job-" in kubectl("list", "wl", "--status", "admitted"), 60)  # fmt: skip
    kubectl("stop", "cq", "team")
    until("nothing runs", lambda: suspended(control_plane, "first") and suspended(control_plane, "second"), 60)  # fmt: skip
    kubectl("resume", "cq", "team")
    until("one runs again", lambda: not (suspended(control_plane, "first") and suspended(control_plane, "second")), 60)  # fmt: skip
    assert "team" in kubectl("get", "cq")


def test_top_shows_what_is_used_of_each_quota(kubectl: Kubectl) -> None:
    kubectl("create", "rf", "seen")
    kubectl("create", "cq", "watched", "--nominal-quota", "seen:cpu=4;memory=2Gi")
    lines = kubectl("top", "--rounds", "2", "--interval", "0.2").splitlines()
    assert lines[0].split()[:4] == ["CLUSTERQUEUE", "COHORT", "PENDING", "ADMITTED"]
    mine = [line.split() for line in lines if " seen " in line]
    assert [row[-6:-1] for row in mine[:1]] == [["seen", "cpu", "0", "4", "0%"]]
    assert mine[-1][-1] == "▁▁", "two rounds"


def test_web_without_a_service_says_where_to_look(kubectl: Kubectl) -> None:
    assert "no Service of a queue" in kubectl("web", status=2)


def test_kubectls_no_is_ours(kubectl: Kubectl) -> None:
    assert "NotFound" in kubectl("resume", "wl", "nobody", "-n", "default", status=1)
    assert "unexpected argument" in kubectl("stop", "wl", "a", "b", status=2)
