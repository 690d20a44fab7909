"""The chart's policy for NVIDIA_VISIBLE_DEVICES (shares.visibleDevices: refuse) at a real API server, without the controller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import apply
from tests.kit.node import until
from tests.kit.places import REPO

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
ALL = [{"name": "OTHER", "value": "all"}, {"name": VARIABLE, "value": "all"}]
REFERENCE = [{"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
NONE = [{"name": VARIABLE, "value": "none"}]
SPACES = ("team", "drivers", "sluice")


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    for name in SPACES:
        labels = {"hami.io/webhook": "ignore"} if name == "drivers" else {}
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": name},
        }
        space = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }
        apply(control_plane, space, account)
    text = (REPO / "packaging" / "helm" / "sluice" / "files" / "visible-devices.yaml").read_text()
    control_plane.kubectl("apply", "-f", "-", given=text.replace("$NAMESPACE", "sluice"))
    until("the policy is in force", lambda: said(control_plane, "team", main=ALL) != "", 60)
    return control_plane


def said(
    plane: ControlPlane,
    space: str,
    main: list[dict[str, Any]],
    first: list[dict[str, Any]] | None = None,
) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": space},
        "spec": {
            "containers": [{"name": "main", "image": "none", "env": main}],
            "initContainers": [{"name": "first", "image": "none", "env": first or []}],
        },
    }
    try:
        plane.api.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", document)
    except ApiError as error:
        return str(error)
    return ""


def test_pods_that_show_themselves_gpus_are_refused_by_the_containers_name(
    plane: ControlPlane,
) -> None:
    refused = f"env {VARIABLE}: shows GPUs that no resource gives to the container: take it out"
    assert f"container main: {refused}" in said(plane, "team", ALL)
    assert f"container main: {refused}" in said(plane, "team", REFERENCE)
    assert f"container first: {refused}" in said(plane, "team", [], ALL)
    assert said(plane, "team", NONE, NONE) == ""
    assert said(plane, "team", []) == ""


def test_namespaces_of_drivers_and_of_the_agent_are_left_out(plane: ControlPlane) -> None:
    assert [said(plane, space, ALL) for space in SPACES[1:]] == ["", ""]


def test_a_container_that_is_added_to_debug_a_pod_is_refused_too(plane: ControlPlane) -> None:
    head = {"name": "debugged", "namespace": "team"}
    container = {"name": "main", "image": "none"}
    made = plane.api.create(
        "pods",
        "team",
        {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {"containers": [container]}},
    )
    made["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "none", "env": ALL}]
    path = "/api/v1/namespaces/team/pods/debugged/ephemeralcontainers"
    with pytest.raises(ApiError, match=f"container debugger: env {VARIABLE}"):
        plane.api.call("PUT", path, made)
    made["spec"]["ephemeralContainers"][0]["env"] = NONE
    plane.api.call("PUT", path, made)
