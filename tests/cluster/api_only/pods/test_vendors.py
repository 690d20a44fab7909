"""Other vendors' devices, a node each: a simulated plugin registers, a stock kube-scheduler places pods by the extender, and the
plugin reads back what its pod was given. Quota and metrics know of them."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from queuecontroller.gpushares.vendors import ROWS
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, apply, define
from tests.cluster.scheduling import PODS, replicas, scheduler
from tests.kit.node import NodeError, until
from tests.queue.gpushares.vendors.plugins import NODE, PLUGINS, Simulated

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
Lab = tuple[ControlPlane, Replica]


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    define(control_plane)
    place = tmp_path_factory.mktemp("vendors")
    resources = [name for row in ROWS for name in row.resources]
    with replicas(control_plane, place, 1, "shares.scheduler=sluice-scheduler") as (replica,):
        until("it decides", replica.leads, 60)
        account = {"name": "default", "namespace": "default"}
        apply(control_plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        for plugin in PLUGINS:
            register(control_plane, plugin)
        with scheduler(control_plane, place, replica.asked_port, more=resources):
            yield control_plane, replica


def name_of(plugin: Simulated) -> str:
    return f"of-{plugin.word.lower()}"


def register(plane: ControlPlane, plugin: Simulated) -> None:
    """Write the objects that the vendor's plugin and its kubelet would write."""
    node = plugin.node()
    node["metadata"] = {**node["metadata"], "name": name_of(plugin)}
    node["metadata"]["labels"] = {**plugin.labels, "vendor": plugin.word.lower()}
    capacity = {**node.pop("status")["capacity"], "memory": "64Gi", "pods": "110"}
    plane.api.create("nodes", "", node)
    path = f"/api/v1/nodes/{name_of(plugin)}"
    plane.api.patch(f"{path}/status", {"status": {"capacity": capacity, "allocatable": capacity}})
    plane.api.patch(path, {"spec": {"taints": None}})


def create(plane: ControlPlane, plugin: Simulated, name: str) -> None:
    document = replace(plugin, limits={k: str(v) for k, v in plugin.limits.items()}).pod(name)
    document["spec"]["nodeSelector"] = {"vendor": plugin.word.lower()}
    plane.api.call("POST", PODS, document)


def events(plane: ControlPlane, name: str) -> str:
    found = plane.api.items("events", "default", fieldSelector=f"involvedObject.name={name}")
    return "; ".join(str(one.get("message")) for one in found)


def wait_bound(plane: ControlPlane, name: str) -> dict[str, Any]:
    def bound() -> bool:
        return bool(plane.api.get(f"{PODS}/{name}")["spec"].get("nodeName"))

    try:
        until(f"{name} is bound", bound, 60)
    except NodeError as error:
        raise AssertionError(f"{error}: {events(plane, name)}") from error
    return dict(plane.api.get(f"{PODS}/{name}"))


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_a_vendors_pod_is_placed_and_its_plugin_reads_what_it_was_given(
    lab: Lab, plugin: Simulated
) -> None:
    plane, replica = lab
    row = next(one for one in ROWS if one.word == plugin.word)
    fills = min(plugin.fills, 4)
    names = [f"{name_of(plugin)}-{i}" for i in range(fills)]
    create(plane, plugin, names[0])
    first = wait_bound(plane, names[0])
    given = first["metadata"]["annotations"]
    expected = repr(plugin.gets).replace(NODE, name_of(plugin))
    assert repr(plugin.reads(given)) == expected
    assert given["hami.io/vgpu-node"] == first["spec"]["nodeName"] == name_of(plugin)
    for name in names[1:]:
        create(plane, plugin, name)
        wait_bound(plane, name)
    text = page(replica)
    assert "hami_gpu_shared_count{" in text
    assert f'node="{name_of(plugin)}"' in text
    until("its devices count for quota", lambda: used(replica, row.count) >= fills, 30)
    if fills == plugin.fills:
        create(plane, plugin, "too-many")
        until("it waits", lambda: row.title in events(plane, "too-many"), 60)
        plane.api.delete(f"{PODS}/{names[0]}", grace_s=0)
        wait_bound(plane, "too-many")
        names.append("too-many")
    for name in names:
        plane.api.delete(f"{PODS}/{name}", grace_s=0)
    until("all is given back", lambda: not shared(replica, name_of(plugin)), 30)


def page(replica: Replica) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def used(replica: Replica, resource: str) -> float:
    lines = [line for line in page(replica).splitlines() if f'quota_name="{resource}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def shared(replica: Replica, node: str) -> float:
    """How many parts its devices have given. ValueError while the node is not there, as on a replica that has just begun to
    lead again."""
    lines = [
        line
        for line in page(replica).splitlines()
        if line.startswith("hami_gpu_shared_count{") and f'node="{node}"' in line
    ]
    if not lines:
        raise ValueError(f"{node} is not on the page")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_quota_holds_for_them_too(lab: Lab) -> None:
    plane, _ = lab
    plugin = next(one for one in PLUGINS if one.word == "DCU")
    head = {"name": "dcu", "namespace": "default"}
    hard = {"limits.hygon.com/dcumem": "20000"}
    # It comes after the first pod was made: the second is refused as it is made.
    create(plane, plugin, "within")
    wait_bound(plane, "within")
    apply(
        plane,
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": head, "spec": {"hard": hard}},
    )

    def refused() -> bool:
        document = replace(plugin, limits={k: str(v) for k, v in plugin.limits.items()}).pod("over")
        try:
            plane.api.call("POST", f"{PODS}?dryRun=All", document)
        except OSError as error:
            return "hygon.com/dcumem: 16000 are requested, 16000 of 20000 are used" in str(error)
        return False

    until("a second is refused", refused, 30)
    plane.api.delete(f"{PODS}/within", grace_s=0)
    until("then it is let in", lambda: not refused(), 30)
