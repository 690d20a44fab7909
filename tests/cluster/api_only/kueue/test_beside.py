"""The real Kueue gives quota and asks us whether there are shares: nothing runs before we have said so, and where."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.kueue.manager import define_kueue, kueue_runs
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    Replica,
    apply,
    condition,
    door,
    finish,
    is_true,
    job,
    leader_of,
    of_kueue,
    running,
    suspended,
    workload_of,
)
from tests.cluster.scheduling import Fleet
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
WAIT_S = 180
CONTROLLER = "sluice.dev/placement"
GIB_MIB = 1024
NODES_LEASE_S = 6
COVERED = ("cpu", "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")


@contextmanager
def beside(plane: ControlPlane, place: Path, count: int) -> Iterator[list[Replica]]:
    made = [
        Replica(
            plane,
            place / f"queue-{n}.log",
            [f"nodes.lease_s={NODES_LEASE_S}", "nodes.report_s=2"],
            nodes_socket=str(place / f"{n}.sock"),
            mode="beside",
        )
        for n in range(count)
    ]
    with running(made):
        yield made


def queue() -> dict[str, Any]:
    """Quota for everything: room on the nodes is what is scarce."""
    resources = [{"name": name, "nominalQuota": 1_000_000_000} for name in COVERED]
    flavors = [{"name": "gpus", "resources": resources}]
    spec = {
        "resourceGroups": [{"coveredResources": list(COVERED), "flavors": flavors}],
        "namespaceSelector": {},
        "admissionChecksStrategy": {"admissionChecks": [{"name": "shares"}]},
    }
    return of_kueue("ClusterQueue", "team", spec)


def asks(name: str, gib: int, pods: int = 1) -> dict[str, Any]:
    made = job(name, "team", pods=pods)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(gib * GIB_MIB)}
    limits["nvidia.com/gpucores"] = "10"
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"requests": {"cpu": "1", **limits}, "limits": limits}
    return made


def check_of(plane: ControlPlane, name: str) -> dict[str, Any]:
    """State of our admission check on the Job's Workload; empty until Kueue requests the check."""
    found = workload_of(plane, name)
    for one in ((found or {}).get("status") or {}).get("admissionChecks") or ():
        if one["name"] == "shares":
            return dict(one)
    return {}


def says(plane: ControlPlane, name: str, state: str, words: str = "") -> bool:
    found = check_of(plane, name)
    return found.get("state") == state and words in (found.get("message") or "")


def runs(plane: ControlPlane, name: str) -> bool:
    """Kueue admitted it, and let it run, only because the check is Ready."""
    if suspended(plane, name):
        return False
    assert says(plane, name, "Ready"), check_of(plane, name)
    assert is_true(workload_of(plane, name), "Admitted")
    return True


def place_of(plane: ControlPlane, name: str) -> tuple[str, str]:
    """Node and GPUs, as Kueue wrote them into the Job."""
    template = plane.api.get(f"{JOBS}/{name}")["spec"]["template"]
    node = template["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    return node, template["metadata"]["annotations"]["nvidia.com/use-gpuuuid"]


def told(plane: ControlPlane, name: str, words: str) -> bool:
    """An event at its Workload: the status itself says Retry for a moment only, until Kueue has taken the quota back."""
    found = workload_of(plane, name)
    if found is None:
        return False
    mine = found["metadata"]["name"]
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={mine}"
    return any(words in (one.get("message") or "") for one in plane.api.get(path)["items"])


def test_kueue_admits_only_where_there_are_shares(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    define_kueue(plane)
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sluice"}})
    check = of_kueue("AdmissionCheck", "shares", {"controllerName": CONTROLLER})
    with kueue_runs(plane, tmp_path), beside(plane, tmp_path, 2) as both:
        apply(plane, of_kueue("ResourceFlavor", "gpus", {}), check, queue(), door("team", "team"))
        path = f"{KUEUE}/admissionchecks/shares"
        until("our check is active", lambda: is_true(plane.api.get(path), "Active"), WAIT_S)

        # No node has reported: quota is reserved, and nothing runs.
        apply(plane, asks("first", 50))
        until("it is asked", lambda: says(plane, "first", "Pending", "No node has"), WAIT_S)
        assert is_true(workload_of(plane, "first"), "QuotaReserved")
        assert suspended(plane, "first")
        assert not is_true(workload_of(plane, "first"), "Admitted")

        sockets = {tmp_path / f"{n}.sock": one for n, one in enumerate(both)}
        fleet = Fleet(plane, sockets, gpus=1)
        fleet.add("gpu-0")
        with fleet:
            until("it runs", lambda: runs(plane, "first"), WAIT_S)
            assert place_of(plane, "first") == ("gpu-0", "GPU-gpu-0-0")

            # There is no room beside it: Kueue takes the quota back, and says why.
            apply(plane, asks("second", 40))
            why = "GPU 0 has 30720 of 40960 MiB free"
            until("it is sent away", lambda: told(plane, "second", why), WAIT_S)
            until("Kueue has heard it", lambda: _retried(plane, "second"), WAIT_S)
            assert suspended(plane, "second")

            # One that fits on no GPU there is will not be asked about again.
            apply(plane, asks("giant", 200))
            until("it is rejected", lambda: _deactivated(plane, "giant"), WAIT_S)
            assert told(plane, "giant", "Too large for every node"), "with the reason"
            assert told(plane, "giant", "has 81920 of 204800 MiB free")
            assert suspended(plane, "giant")

            # Who leads next keeps what was promised, though no node reports any of it.
            victim = leader_of(plane, both)
            assert victim is not None
            victim.end(signal.SIGKILL)
            (other,) = [one for one in both if one is not victim]
            until("the other leads", lambda: "deciding" in other.life, WAIT_S)
            apply(plane, asks("small", 20))
            until("one that fits runs", lambda: runs(plane, "small"), WAIT_S)
            assert suspended(plane, "second")
            assert runs(plane, "first")
            victim.start()

            finish(plane, "first")
            until("its room is given on", lambda: runs(plane, "second"), WAIT_S)
            assert place_of(plane, "second") == ("gpu-0", "GPU-gpu-0-0")

            # The place is where there is room: 40 and 20 of 80 GiB are taken on one node.
            fleet.add("gpu-1")
            apply(plane, asks("third", 60))
            until("it runs elsewhere", lambda: runs(plane, "third"), WAIT_S)
            assert place_of(plane, "third") == ("gpu-1", "GPU-gpu-1-0")


def _retried(plane: ControlPlane, name: str) -> bool:
    """Its quota was taken for our Retry, which Kueue counts."""
    found = workload_of(plane, name) or {}
    evicted = condition(found, "Evicted")
    return (
        evicted.get("reason") == "AdmissionCheck" or check_of(plane, name).get("retryCount", 0) > 0
    )


def _deactivated(plane: ControlPlane, name: str) -> bool:
    found = workload_of(plane, name)
    return found is not None and found["spec"].get("active") is False
