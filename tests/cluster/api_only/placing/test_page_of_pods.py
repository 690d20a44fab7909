"""The page in mode kubernetes names the pods that hold GPUs, queued or not, and the places reserved for a queued job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.api_only.placing.queued import (
    CARDS,
    NODES,
    make_fleet,
    make_pods,
    objects,
    queue_job,
)
from tests.cluster.api_only.users.viewer import Viewer
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import apply, define, suspended, workload_of
from tests.cluster.scheduling import PODS, gpu_pod, replicas, scheduler, wait_bound
from tests.kit.node import until
from tests.kit.workplace import free_port

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
MIB = 1 << 20


def admin(plane: ControlPlane, port: int) -> Viewer:
    head = {"name": "admin", "namespace": "default"}
    group = "rbac.authorization.k8s.io"
    apply(
        plane,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "page-admin"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **head}],
        },
    )
    return Viewer(port, plane.token("default", "admin"))


def test_every_holder_has_a_name(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plane, place = control_plane, tmp_path_factory.mktemp("page")
    define(plane)
    port = free_port()
    with replicas(plane, place, 1, f"page.listen=127.0.0.1:{port}") as (replica,):
        fleet = make_fleet(plane, {place / "0.sock": replica})
        until("it decides", replica.leads, 60)
        objects(plane)
        viewer = admin(plane, port)
        with fleet, scheduler(plane, place, replica.asked_port):
            until("all report", lambda: fleet.sessions_total >= NODES, 60)
            plane.api.create("jobs", "default", queue_job("train", 2, gpumem=50_000, gpucores=50))
            until("train is started", lambda: not suspended(plane, "train"), 60)
            make_pods(plane, "train", range(1))
            plane.api.call("POST", PODS, gpu_pod("plain", gpumem=20_000, gpucores=30))
            for name in ("train-0", "plain"):
                wait_bound(plane, name)
            workload = f"default/{(workload_of(plane, 'train') or {})['metadata']['name']}"

            def works() -> dict[str, dict[str, Any]]:
                found = viewer.documents()
                return {
                    one.get("pod") or f"no pod, {one['state']}": one
                    for (kind, _, _), one in found.items()
                    if kind == "Work"
                }

            until("all are shown", lambda: len(works()) == 3, 60)
            shown = works()
            assert shown.keys() == {"train-0", "plain", "no pod, reserved"}
            assert {shown[one]["workload"] for one in ("train-0", "no pod, reserved")} == {workload}
            assert "workload" not in shown["plain"]
            assert shown["train-0"]["cq"] == "gpus"
            cards = [one for (kind, _, _), one in viewer.documents().items() if kind == "Gpu"]
            assert len(cards) == NODES * CARDS
            assert sum(one["given"] for one in cards) == (2 * 50_000 + 20_000) * MIB
            assert round(sum(one["share"] for one in cards), 3) == 1.3
            assert sum(one["grants"] for one in cards) == 3
            assert not [one for one in cards if one.get("outside") or one.get("outsideShare")]
            key = ("Workload", "default", workload.partition("/")[2])
            document = viewer.documents()[key]
            assert document["phase"] == "Admitted"
            assert set(document["node"].split(", ")) == {
                one["node"] for one in shown.values() if one.get("workload")
            }

            def texts() -> list[str]:
                found = viewer.documents().items()
                return [str(one["text"]) for (kind, _, _), one in found if kind == "Event"]

            until("its event is shown", lambda: any(text.startswith("by gpus; gpu-") for text in texts()), 30)  # fmt: skip
            plane.api.delete(f"{PODS}/plain", grace_s=0)
            until("the pod is gone from the page", lambda: "plain" not in works(), 60)
