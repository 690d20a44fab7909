"""The API server without a node: what tests of controllers rely on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.cluster.api import ApiError, path_of
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.programs import pins
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CONFIG = {"metadata": {"name": "one"}, "data": {"key": "value"}}


def test_it_is_the_release_that_the_pins_name(control_plane: ControlPlane) -> None:
    wanted = pins.required(
        pins.HERE / "kubernetes" / pins.MINORS[pins.wanted_minor()], "k8s.io/kubernetes"
    )
    assert control_plane.api.get("/version")["gitVersion"] == f"v{wanted}"
    assert f"v{wanted}" in control_plane.kubectl("version")


def test_a_watch_tells_what_another_connection_writes(control_plane: ControlPlane) -> None:
    seen: list[tuple[str, str]] = []
    path = path_of("configmaps", "default")

    def look() -> None:
        for event in control_plane.api.watch(
            f"{path}?fieldSelector=metadata.name=one&timeoutSeconds=20"
        ):
            seen.append((event["type"], event["object"]["metadata"]["name"]))
            if event["type"] == "DELETED":
                return

    thread = threading.Thread(target=look)
    thread.start()
    control_plane.api.create("configmaps", "default", CONFIG)
    until("the watch has it", lambda: ("ADDED", "one") in seen)
    control_plane.api.delete(f"{path}/one")
    thread.join(timeout=30)
    assert seen == [("ADDED", "one"), ("DELETED", "one")]


def test_a_stale_write_is_refused(control_plane: ControlPlane) -> None:
    made = control_plane.api.create(
        "configmaps", "default", {**CONFIG, "metadata": {"name": "fence"}}
    )
    path = path_of("configmaps", "default", "fence")
    version = made["metadata"]["resourceVersion"]
    control_plane.api.patch(path, {"data": {"key": "newer"}})
    with pytest.raises(ApiError, match="409"):
        control_plane.api.patch(
            path, {"metadata": {"resourceVersion": version}, "data": {"key": "late"}}
        )
    assert control_plane.api.get(path)["data"]["key"] == "newer"


def test_a_service_account_may_do_nothing_until_a_role_says_so(control_plane: ControlPlane) -> None:
    control_plane.api.create("serviceaccounts", "default", {"metadata": {"name": "nobody"}})
    token = control_plane.token("default", "nobody")
    assert token.count(".") == 2, "a bound token"
    who = "--as=system:serviceaccount:default:nobody"
    assert "pods" not in control_plane.kubectl("auth", "can-i", "--list", who)
    names = ("--verb=get,list", "--resource=pods")
    control_plane.kubectl("create", "clusterrole", "reads-pods", *names)
    bound = ("--clusterrole=reads-pods", "--serviceaccount=default:nobody")
    control_plane.kubectl("create", "clusterrolebinding", "reads-pods", *bound)
    assert "pods" in control_plane.kubectl("auth", "can-i", "--list", who)


def test_a_killed_server_comes_back_with_what_it_had(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane", durable=True) as plane:
        plane.api.create("configmaps", "default", CONFIG)
        plane.kill("kube-apiserver")
        with pytest.raises(OSError):
            plane.api.get("/readyz")
        plane.kill("etcd")
        plane.start("etcd")
        plane.start("kube-apiserver")
        plane.wait_until_ready()
        assert plane.api.get(path_of("configmaps", "default", "one"))["data"] == CONFIG["data"]


def test_with_controllers_a_job_makes_its_pods(tmp_path: Path) -> None:
    job = {
        "metadata": {"name": "work"},
        "spec": {
            "completions": 2,
            "parallelism": 2,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
            },
        },
    }
    with ControlPlane(tmp_path / "plane", controllers=True) as plane:
        plane.api.create("jobs", "default", job)
        until("it has made both", lambda: len(plane.api.items("pods", "default")) == 2)
