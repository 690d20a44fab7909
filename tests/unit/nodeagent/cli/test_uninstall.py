"""Actions of `helm uninstall`: agents end when no program uses their GPUs, nodes keep no trace of
ours and everything of others', the counted objects go, and a node that is down does not delay the
rest."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.host import left_on_node
from nodeagent.cli.session import Failed
from nodeagent.cli.uninstall import COUNTED, end_agents, end_nodes, end_test, patiently
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import DAEMON_SETS, NODES, PODS, Resource


class FakeApi:
    """An API server as far as it is asked: selectors, pages, and a DaemonSet whose pods follow it."""

    def __init__(self) -> None:
        self.daemonsets: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.looks_until_gone = 2

    def pod(self, name: str, node: str = "n1", ready: bool = True, **facts: Any) -> None:
        limits = facts.pop("limits", {})
        self.pods.append(
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "labels": facts.pop("labels", {}),
                    **facts.pop("metadata", {}),
                },
                "spec": {
                    "nodeName": node,
                    "containers": [{"resources": {}}, {"resources": {"limits": limits}}],
                },
                "status": {
                    "phase": facts.pop("phase", "Running"),
                    "conditions": [{"type": "Ready", "status": str(ready)}],
                },
            }
        )

    def node(self, name: str, ready: bool = True, counted: str | None = None) -> None:
        self.nodes.append(
            {
                "metadata": {"name": name, "annotations": {COUNTED: counted} if counted else {}},
                "status": {
                    "conditions": [{"type": "Ready", "status": str(ready)}],
                    "capacity": {"cpu": "2", "nvidia.com/gpumem": "100"},
                    "allocatable": {"cpu": "2", "nvidia.com/gpumem": "100"},
                },
            }
        )

    def daemonset(self, name: str, desired: int = 1, ready: int = 1) -> None:
        self.daemonsets[name] = {
            "metadata": {"name": name, "generation": 1},
            "spec": {"selector": {"matchLabels": {"component": name}}},
            "status": {
                "observedGeneration": 1,
                "desiredNumberScheduled": desired,
                "numberReady": ready,
            },
        }

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        assert resource is DAEMON_SETS
        if name not in self.daemonsets:
            raise ApiRefused(404, "NotFound", name)
        return self.daemonsets[name]

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", uid: str = ""
    ) -> dict[str, Any]:
        if resource is PODS:
            gone = [pod for pod in self.pods if pod["metadata"]["name"] == name]
            if not gone:
                raise ApiRefused(404, "NotFound", name)
            self.pods.remove(gone[0])
            return gone[0]
        return self.daemonsets.pop(name)

    async def list_page(
        self, resource: Resource, parameters: Any = (), namespace: str = ""
    ) -> bytes:
        asked = dict(parameters)
        found = {PODS: self.pods, NODES: self.nodes}[resource]
        if label := asked.get("labelSelector"):
            key, _, value = label.partition("=")
            if value not in self.daemonsets:
                self.looks_until_gone -= 1
            found = [
                one
                for one in found
                if one["metadata"]["labels"].get(key) == value
                and (value in self.daemonsets or self.looks_until_gone > 0)
            ]
        if asked.get("fieldSelector"):
            found = [one for one in found if one["status"]["phase"] not in ("Succeeded", "Failed")]
        at = int(asked.get("continue", 0))
        head = {"continue": str(at + 1)} if at + 1 < len(found) else {}
        return json.dumps({"metadata": head, "items": found[at : at + 1]}).encode()

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
    ) -> dict[str, Any]:
        assert (resource, subresource) == (NODES, "status")
        (node,) = [one for one in self.nodes if one["metadata"]["name"] == name]
        merge(node, patch)
        return node


def merge(into: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def late_after(looks: int) -> Any:
    left = [looks]

    async def late() -> bool:
        left[0] -= 1
        return left[0] < 0

    return late


def agents(api: FakeApi, looks: int = 10) -> list[str]:
    said: list[str] = []
    asyncio.run(
        end_agents(api, "sluice", "agent", "nvidia.com/gpu", late_after(looks), said.append)
    )
    return said


def nodes(api: FakeApi, looks: int = 3) -> list[str]:
    said: list[str] = []
    asyncio.run(end_nodes(api, "sluice", "cleanup", late_after(looks), said.append))
    return said


@pytest.mark.parametrize(
    ("handshake", "counted", "left"),
    [
        ("Reported 2026-11-27 10:00:00 +0000 UTC sluice", None, set()),
        ("Reported 2026-11-27 10:00:00 +0000 UTC sluice", "nvidia.com/gpumem", set()),
        ("Deleted_2026.11.27 10:00:00", "nvidia.com/gpumem", set()),
        ("Requesting_2026.11.27 10:00:00", "nvidia.com/gpumem", {"handshake", "nvidia-register"}),
        ("Deleted_2026.11.27 10:00:00", None, {"handshake", "nvidia-register"}),
    ],
    ids=["ours", "ours, counted", "ours, ended", "HAMi's", "HAMi's, ended"],
)
def test_hamis_register_goes_where_it_is_ours(
    handshake: str, counted: str | None, left: set[str]
) -> None:
    api = FakeApi()
    api.daemonset("cleanup")
    api.node("n1", counted=counted)
    annotations = api.nodes[0]["metadata"]["annotations"]
    annotations |= {
        "hami.io/node-handshake": handshake,
        "hami.io/node-nvidia-register": "[]",
        "x": "y",
    }
    nodes(api)
    kept = api.nodes[0]["metadata"]["annotations"]
    assert kept.keys() - {"x"} == {f"hami.io/node-{one}" for one in left}
    assert kept["x"] == "y"


def test_agents_end_and_their_pods_are_waited_for() -> None:
    api = FakeApi()
    api.daemonset("agent")
    api.pod("agent-x", labels={"component": "agent"})
    api.pod("done", phase="Succeeded", limits={"nvidia.com/gpu": 1})
    api.pod("waits", node="", limits={"nvidia.com/gpu": 1})
    assert agents(api) == ["the agents have ended"]
    assert api.daemonsets == {}
    assert agents(api) == ["sluice/agent is gone already"], "twice is no error"


def test_the_pod_of_helm_test_goes_first_and_need_not_be_there() -> None:
    api = FakeApi()
    api.pod("sluice-test", limits={"nvidia.com/gpu": "1"})
    api.pod("train", phase="Succeeded")
    asyncio.run(end_test(api, "team", "sluice-test"))
    asyncio.run(end_test(api, "team", "sluice-test"))
    assert [pod["metadata"]["name"] for pod in api.pods] == ["train"]


def test_pods_that_use_gpus_keep_the_agents() -> None:
    api = FakeApi()
    api.daemonset("agent")
    for number in range(12):
        api.pod(f"train-{number:02}", limits={"nvidia.com/gpu": "1"})
    api.pod("cpu-only")
    with pytest.raises(Failed, match=r"12 pods use GPUs of Sluice: team/train-00, .* and 2 more"):
        agents(api)
    assert "agent" in api.daemonsets


def test_pods_that_end_already_are_waited_for_and_named_when_they_do_not() -> None:
    api = FakeApi()
    api.daemonset("agent")
    api.pod("ends", limits={"nvidia.com/gpu": "1"}, metadata={"deletionTimestamp": "now"})
    with pytest.raises(Failed, match="1 pods use GPUs of Sluice: team/ends"):
        agents(api, looks=3)
    api.looks_until_gone = 2

    async def it_has_ended() -> bool:
        api.pods.clear()
        return False

    said: list[str] = []
    asyncio.run(end_agents(api, "sluice", "agent", "nvidia.com/gpu", it_has_ended, said.append))
    assert said == ["the agents have ended"]


@pytest.mark.parametrize(
    ("trouble", "looks", "looks_for_rights", "tries"),
    [
        (ApiAway("nobody answers"), 3, 0, 4),
        (ApiRefused(403, "Forbidden", "no rights yet"), 0, 3, 4),
        (ApiRefused(422, "Invalid", "never"), 3, 3, 1),
    ],
)
def test_a_step_is_done_again_until_the_api_server_knows_our_rights(
    trouble: Exception, looks: int, looks_for_rights: int, tries: int
) -> None:
    done: list[str] = []

    async def step() -> None:
        done.append("tried")
        raise trouble

    with pytest.raises(type(trouble)):
        asyncio.run(
            patiently(step, late_after(looks), late_after(looks_for_rights), lambda line: None)
        )
    assert len(done) == tries


def test_agents_that_do_not_end_are_named() -> None:
    api = FakeApi()
    api.daemonset("agent")
    api.pod("agent-x", labels={"component": "agent"})
    api.looks_until_gone = 100
    with pytest.raises(Failed, match="do not end: agent-x"):
        agents(api, looks=3)


def test_what_was_counted_on_nodes_goes_and_what_others_count_stays() -> None:
    api = FakeApi()
    api.daemonset("cleanup", desired=2, ready=2)
    api.node("n1", counted="nvidia.com/gpumem, nvidia.com/gpucores")
    api.node("n2")
    assert nodes(api) == ["all nodes are clean; GPU sums were removed from 1"]
    first, second = api.nodes
    assert first["metadata"]["annotations"] == {}
    assert first["status"]["capacity"] == first["status"]["allocatable"] == {"cpu": "2"}
    assert second["status"]["capacity"]["nvidia.com/gpumem"] == "100", "not ours"


def test_a_node_that_is_down_holds_up_nobody_and_one_that_is_up_does() -> None:
    api = FakeApi()
    api.daemonset("cleanup", desired=2, ready=1)
    api.node("n1")
    api.node("n2", ready=False)
    api.pod("c1", node="n1", labels={"component": "cleanup"})
    api.pod("c2", node="n2", ready=False, labels={"component": "cleanup"})
    assert nodes(api)[0].startswith("node n2 is down")
    api.pod("c3", node="n1", ready=False, labels={"component": "cleanup"})
    with pytest.raises(Failed, match="not clean in time: n1"):
        nodes(api)


# --- a node ---


def host(root: Path) -> left_on_node.Host:
    (root / "mounts").touch()
    return left_on_node.Host(
        root / "kubelet",
        root / "cdi",
        tuple(root / name for name in ("run", "lib", "libraries")),
        root / "mounts",
    )


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def test_everything_of_ours_goes_and_nothing_of_others(tmp_path: Path) -> None:
    ours = ["run/grants/a/policy.shm", "lib/ledger.sqlite", "libraries/1/libcuda.so.1"]
    ours += [f"cdi/sluice.dev-{kind}_x.json" for kind in ("grant", "driver")]
    ours += ["cdi/sluice-sim.json", "kubelet/device-plugins/sluice-nvidia-com-gpu-1.sock"]
    others = {"kubelet/device-plugins/kubelet.sock", "kubelet/config", "mounts"}
    for name in [*ours, *others]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "kubelet" / "pods-api").mkdir()
    (tmp_path / "lib" / "link").symlink_to(tmp_path / "kubelet")
    assert left_on_node.remove(host(tmp_path)) == []
    assert files(tmp_path) == others
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "kubelet" / "pods-api").exists()
    assert (tmp_path / "cdi").is_dir(), "runtimes watch it"
    assert left_on_node.remove(host(tmp_path)) == [], "twice is no error"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_mounts_of_ours_are_taken_away_and_nothing_is_removed_across_one(tmp_path: Path) -> None:
    region, foreign = tmp_path / "run" / "grants" / "a", tmp_path / "lib" / "disk"
    precious = tmp_path / "precious"
    for directory in (region, foreign, precious):
        directory.mkdir(parents=True)
    (precious / "data").touch()
    subprocess.run(["mount", "-t", "tmpfs", "sluice", region], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "disk", foreign], check=True)
    (foreign / "data").touch()
    try:
        place = host(tmp_path)
        # The other is not known of.
        place.mount_table.write_text(f"36 35 0:45 / {region} rw - tmpfs sluice rw\n")
        told = left_on_node.remove(place)
        assert told == [f"{foreign}: a file system is mounted there"]
        assert not region.exists()
        assert (foreign / "data").exists()
    finally:
        subprocess.run(["umount", foreign], check=True)
        subprocess.run(["umount", region], check=False, capture_output=True)
