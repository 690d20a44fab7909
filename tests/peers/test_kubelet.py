"""The daemon under the kubelet's own device manager and PodResources server (k8s.io/kubernetes), and under the kubelet
that other tests use: each test runs with both, so a difference between them is found here.

Of the real one only Kubernetes' scheduler, its pods' sandboxes and the Pods API are missing. Its socket has a fixed
place, so it runs in a mount namespace in which a directory of the test lies over /var/lib/kubelet.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from nodeagent.adapters.kubelet.device_plugin import KUBELET_SOCKET
from nodeagent.adapters.kubelet.records import CHECKPOINT, PODS_SOCKET
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import Node, until
from tests.kit.places import REPO, SIM
from tests.kit.workplace import workplace
from tests.peers.peer import Peer, build

pytestmark = [
    pytest.mark.peers,
    pytest.mark.full,  # a first build compiles a good part of Kubernetes: some 5 min of processor time
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="the kubelet's fixed path needs a mount namespace"
    ),
    pytest.mark.timeout(1800),
]
RESOURCE = "nvidia.com/gpu"
GPUS, SLOTS = 2, 10
IN_ITS_PLACE = 'mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --bind "$1" /var/lib/kubelet && exec "$0"'


class Refused(Exception):
    """Refusal as the kubelet shows it in the pod's events."""


class Kubelet(Protocol):
    def admit(self, uid: str, name: str, app: dict[str, int], init: dict[str, int]) -> None: ...
    def run(self, uid: str, container: str) -> list[str]:
        """The CDI devices the runtime is given, in their order."""

    def devices(self, uid: str, container: str) -> list[str]: ...
    def healthy(self) -> int: ...
    def remove(self, uid: str) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class Real:
    def __init__(self, directory: Path) -> None:
        program = build("kubelet")
        directory.mkdir(parents=True)
        (directory / ".sluice-peer").touch()
        self._peer = Peer(
            [
                "unshare",
                "--mount",
                "--propagation=private",
                "sh",
                "-c",
                IN_ITS_PLACE,
                program,
                directory,
            ],
            stderr=(directory.parent / "kubelet.log").open("ab"),
        )

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        answer = self._peer.ask(do, **more)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def admit(self, uid: str, name: str, app: dict[str, int], init: dict[str, int]) -> None:
        asks = [
            [{"name": one, "limits": {RESOURCE: count}} for one, count in containers.items()]
            for containers in (app, init)
        ]
        self._ask("admit", uid=uid, namespace="default", name=name, app=asks[0], init=asks[1])

    def run(self, uid: str, container: str) -> list[str]:
        return list(self._ask("run", uid=uid, container=container)["cdi"])

    def devices(self, uid: str, container: str) -> list[str]:
        return sorted(self._ask("run", uid=uid, container=container)["held"][RESOURCE])

    def healthy(self) -> int:
        return int(self._ask("capacity").get("allocatable", {}).get(RESOURCE, 0))

    def remove(self, uid: str) -> None:
        self._ask("remove", uid=uid)

    def places(self) -> dict[str, str]:
        return dict(self._ask("places")["places"])

    def restart(self) -> None:
        self._ask("restart")

    def close(self) -> None:
        self._peer.close()


class Ours:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._peer = Peer(
            [sys.executable, "-m", "tests.kit.fakes.kubelet", "--dir", str(directory)], cwd=REPO
        )
        assert self._peer.process.stdout is not None
        assert json.loads(self._peer.process.stdout.readline()) == {"ready": True}
        self._ids: dict[str, Any] = {}

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        answer = self._peer.ask(do, **more)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def admit(self, uid: str, name: str, app: dict[str, int], init: dict[str, int]) -> None:
        containers = [
            {"name": one, "gpus": count, "init": kind is init}
            for kind in (init, app)
            for one, count in kind.items()
        ]
        pod = {"name": name, "uid": uid, "containers": containers}
        self._ids[uid] = self._ask("admit", pod=pod)["device_ids"]

    def run(self, uid: str, container: str) -> list[str]:
        return list(
            self._ask("start_container", uid=uid, container=container)["answer"]["cdi_devices"]
        )

    def devices(self, uid: str, container: str) -> list[str]:
        return sorted(self._ids[uid][container])

    def healthy(self) -> int:
        return sum(self._ask("devices")["devices"].values())

    def remove(self, uid: str) -> None:
        self._ask("end", uid=uid)

    def restart(self) -> None:
        self._ask("restart")

    def close(self) -> None:
        self._peer.close()


class Cluster:
    def __init__(self, directory: Path, kind: type[Real] | type[Ours]) -> None:
        self.cdi_dir = directory / "cdi"
        self.kubelet: Kubelet = kind(directory / "kubelet")
        self.node = Node(
            directory,
            gpus=f"{GPUS}xh100-80gb",
            settings=f"""
[kubelet]
enabled = true
directory = "{directory}/kubelet"
cdi_dir = "{self.cdi_dir}"
slots_per_gpu = {SLOTS}
limits = ["defaults"]
default_memory_mib = 1000
default_cores_percent = 5
reconcile_s = 0.3
""",
        )
        self.pods: list[str] = []

    def start(self) -> None:
        self.node.start()
        self.install()
        until("what all share is written", lambda: list(self.cdi_dir.glob("sluice.dev-driver*")))
        until("the devices are known", lambda: self.kubelet.healthy() == GPUS * SLOTS)

    def install(self) -> None:
        gpus = [str(gpu["uuid"]) for gpu in self.node.info()["gpus"]]
        names = ("libcuda.so.1", "libnvidia-ml.so.1")
        libraries = {f"/usr/lib64/{name}": str(SIM / name) for name in names}
        write_installed(self.cdi_dir, installed_spec(gpus, libraries, version="0.6.0"))

    def admit(self, name: str, app: dict[str, int] | None = None, **init: int) -> str:
        uid = str(uuid.uuid4())
        self.kubelet.admit(uid, name, {"main": 1} if app is None else app, init)
        self.pods.append(uid)
        return uid

    def document(self, device: str) -> dict[str, Any]:
        """CDI document of a device, as the runtime reads it."""
        kind, _, name = device.partition("=")
        (path,) = self.cdi_dir.glob(f"{kind.replace('/', '-')}_{name}.json")
        (found,) = json.loads(path.read_text())["devices"]
        return dict(found)

    def run(self, uid: str, container: str = "main") -> str:
        """Starts the container; the device of its grant, which the runtime is given last."""
        *before, device = self.kubelet.run(uid, container)
        assert [one.partition("=")[0] for one in before] in ([], ["sluice.dev/driver"])
        assert device.startswith("sluice.dev/grant=")
        return device

    def end_all(self) -> None:
        for uid in self.pods:
            self.kubelet.remove(uid)
        self.pods = []
        until("the grants are over", lambda: not self.node.grants())
        until("their files are gone", lambda: not list(self.cdi_dir.glob("sluice.dev-grant*")))


@pytest.fixture(scope="module", params=[Real, Ours], ids=["kubernetes", "ours"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with workplace() as directory:
        made = Cluster(directory, request.param)
        try:
            made.start()
            yield made
        finally:
            made.kubelet.close()
            made.node.stop()


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.end_all()


def test_every_container_gets_its_own_grant_whichever_starts_first(cluster: Cluster) -> None:
    pods = {f"same-{number}": cluster.admit(f"same-{number}") for number in range(8)}
    devices = {name: cluster.run(pods[name], "main") for name in reversed(pods)}
    assert len(set(devices.values())) == len(pods)
    for name, device in devices.items():
        notes = cluster.document(device)["annotations"]
        assert notes["sluice.dev/pod"] == f"default/{name}"
        assert notes["sluice.dev/pod-uid"] == pods[name]
        grant = cluster.node.grant(f"default/{name}/main")
        assert grant is not None
        assert notes["sluice.dev/grant"] == grant["grant"]


def test_the_driver_is_named_before_the_grant_and_is_the_same_for_all(cluster: Cluster) -> None:
    until(
        "the daemon has seen what is installed",
        lambda: len(cluster.kubelet.run(cluster.admit("first"), "main")) == 2,
    )
    answers = [cluster.kubelet.run(cluster.admit(f"next-{one}"), "main") for one in range(2)]
    assert len({driver for driver, _ in answers}) == 1
    assert len({grant for _, grant in answers}) == 2
    shared, own = (cluster.document(one)["containerEdits"] for one in answers[0])
    assert "/dev/nvidiactl" in str(shared)
    assert "/dev/nvidia0" not in str(shared)
    assert {one["path"] for one in own["deviceNodes"]} <= {"/dev/nvidia0", "/dev/nvidia1"}


def test_a_container_that_starts_again_is_in_the_same_grant(cluster: Cluster) -> None:
    uid = cluster.admit("again")
    first = cluster.run(uid, "main")
    document = cluster.document(first)
    assert cluster.run(uid, "main") == first
    assert cluster.document(first) == document
    assert len(cluster.node.grants()) == 1


def test_an_init_container_hands_its_devices_on(cluster: Cluster) -> None:
    uid = cluster.admit("with-init", {"main": 1}, setup=1)
    setup = cluster.run(uid, "setup")
    main = cluster.run(uid, "main")
    assert cluster.kubelet.devices(uid, "setup") == cluster.kubelet.devices(uid, "main")
    assert setup != main
    assert len(cluster.node.grants()) == 1, "one after the other, so one grant"
    notes = [
        cluster.document(device)["annotations"]["sluice.dev/grant"] for device in (setup, main)
    ]
    assert notes[0] == notes[1]


def test_containers_side_by_side_have_grants_of_their_own(cluster: Cluster) -> None:
    uid = cluster.admit("two", {"left": 1, "right": 1})
    devices = [cluster.run(uid, name) for name in ("left", "right")]
    grants = {cluster.document(one)["annotations"]["sluice.dev/grant"] for one in devices}
    assert len(grants) == 2


def test_two_gpus_are_two_different_ones(cluster: Cluster) -> None:
    uid = cluster.admit("wide", {"main": 2})
    device = cluster.run(uid, "main")
    paths = [one["path"] for one in cluster.document(device)["containerEdits"]["deviceNodes"]]
    assert {"/dev/nvidia0", "/dev/nvidia1"} <= set(paths)
    gpus = {one.partition("::")[0] for one in cluster.kubelet.devices(uid, "main")}
    assert len(gpus) == 2, "the kubelet took our advice"


def test_what_is_more_than_there_is_is_not_admitted(cluster: Cluster) -> None:
    with pytest.raises(Refused, match="requested number of devices unavailable"):
        cluster.admit("huge", {"main": GPUS * SLOTS + 1})
    assert cluster.node.grants() == []


def test_devices_come_back_and_are_given_again(cluster: Cluster) -> None:
    for turn in range(2):
        pods = [cluster.admit(f"full-{turn}-{number}") for number in range(GPUS * SLOTS)]
        devices = {cluster.run(uid, "main") for uid in pods}
        assert len(devices) == GPUS * SLOTS
        assert len(cluster.node.grants()) == GPUS * SLOTS
        cluster.end_all()


def test_a_start_that_cannot_be_says_why_and_succeeds_later(cluster: Cluster) -> None:
    uid = cluster.admit("early")
    (cluster.cdi_dir / "nvidia.yaml").unlink()
    with pytest.raises(Refused, match="nvidia-ctk cdi generate"):
        cluster.run(uid, "main")
    cluster.install()
    assert cluster.document(cluster.run(uid, "main"))


def test_the_kubelet_restarts_and_everything_is_as_it_was(cluster: Cluster) -> None:
    uid = cluster.admit("steady")
    device = cluster.run(uid, "main")
    for turn in range(5):
        cluster.kubelet.restart()
        until("the devices are back", lambda: cluster.kubelet.healthy() == GPUS * SLOTS)
        assert cluster.run(uid, "main") == device
        other = cluster.admit(f"new-{turn}")
        assert cluster.run(other, "main") != device
    assert len(cluster.node.grants()) == 6


def test_the_daemon_is_killed_and_everything_is_as_it_was(cluster: Cluster) -> None:
    uid, waiting = cluster.admit("steady"), cluster.admit("waiting")
    device = cluster.run(uid, "main")
    cluster.node.kill_daemon()
    until("the kubelet has noticed", lambda: cluster.kubelet.healthy() == 0)
    with pytest.raises(Refused):
        cluster.run(waiting, "main")
    cluster.node.start()
    until("the devices are back", lambda: cluster.kubelet.healthy() == GPUS * SLOTS)
    assert cluster.run(uid, "main") == device
    assert cluster.document(cluster.run(waiting, "main"))
    assert len(cluster.node.grants()) == 2


def test_the_checkpoint_has_the_form_that_the_daemon_reads(cluster: Cluster) -> None:
    uid = cluster.admit("written")
    device = cluster.run(uid, "main")
    body = checkpoint(cluster)
    assert set(body) == {"Data", "Checksum"}
    assert set(body["Data"]) == {"PodDeviceEntries", "RegisteredDevices"}
    assert len(registered(cluster)) == GPUS * SLOTS
    (entry,) = (one for one in body["Data"]["PodDeviceEntries"] if one["PodUID"] == uid)
    assert set(entry) == {"PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"}
    assert (entry["ContainerName"], entry["ResourceName"]) == ("main", RESOURCE)
    assert [one for ids in entry["DeviceIDs"].values() for one in ids] == cluster.kubelet.devices(
        uid, "main"
    )
    assert device.encode() in base64.b64decode(entry["AllocResp"])


def checkpoint(cluster: Cluster) -> dict[str, Any]:
    path = cluster.node.directory / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint"
    body: dict[str, Any] = json.loads(path.read_text())
    return body


def registered(cluster: Cluster) -> list[str]:
    found: list[str] = checkpoint(cluster)["Data"]["RegisteredDevices"][RESOURCE]
    return found


def test_a_sick_gpu_is_not_given_to_anybody(cluster: Cluster) -> None:
    control = cluster.node.directory / "gpu" / "control"
    control.write_text("gpu_lost=0\n")
    until("half of the devices are gone", lambda: cluster.kubelet.healthy() == SLOTS)
    sick = str(cluster.node.info()["gpus"][0]["uuid"])
    for number in range(3):
        uid = cluster.admit(f"careful-{number}")
        assert not cluster.kubelet.devices(uid, "main")[0].startswith(sick)
    assert len(registered(cluster)) == SLOTS, "the kubelet writes down healthy ones alone"


def test_its_sockets_are_where_we_look_for_them(cluster: Cluster) -> None:
    """Kubernetes' own constants: a path of ours that is wrong is no error, it is a kubelet that seems to have no such
    interface, and then every pod has the defaults."""
    if not isinstance(cluster.kubelet, Real):
        pytest.skip("constants of Kubernetes")
    places = cluster.kubelet.places()
    assert places["pods"].removeprefix("/") == PODS_SOCKET
    assert places["plugins"] == f"/var/lib/kubelet/{Path(CHECKPOINT).parent}/{KUBELET_SOCKET}"
    said = (REPO / "docs" / "kubernetes.md").read_text()
    assert f"`{places['gate']}`" in said
    assert set(re.findall(r"feature gate `?(\w+)", said)) == {places["gate"]}
