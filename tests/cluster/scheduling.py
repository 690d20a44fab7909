"""A stock kube-scheduler that asks the queue's extender, and nodes of which only objects and sessions are there: long with all it plays."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml

from queuecontroller.server.api.wire import NODES
from sluicecommon.pod_annotations import PLACEMENT
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.pki import Authority
from tests.cluster.queueing import Replica, running
from tests.kit.node import until
from tests.kit.workplace import HOST, free_port, free_ports
from tests.queue.server.callers import WIRE, message

GIB = 1 << 30
MIB = 1 << 20
PODS = "/api/v1/namespaces/default/pods"
REPORT_S = 2.0
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""A fleet has gRPC's threads: Python in a forked child would run into its locks now and then, and the child never become a scheduler."""
FAST = 1000
"""Writes a second that hold no scheduler up."""
RESOURCES = [
    f"nvidia.com/{one}" for one in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")
]
SERVED = ("sluice-scheduler", "hami-scheduler")


def certify(place: Path) -> Authority:
    authority = Authority(place).create("webhooks")
    names = ["IP:127.0.0.1", "DNS:localhost"]
    authority.issue("server", "/CN=sluice-queue", "serverAuth,clientAuth", names)
    role = "URI:sluice:scheduler:kube-scheduler"
    authority.issue("scheduler", "/CN=kube-scheduler", "clientAuth", [role])
    authority.issue("stranger", "/CN=kube-scheduler", "clientAuth", ["DNS:kube-scheduler"])
    return authority


def settings(place: Path, port: int) -> list[str]:
    """Settings of a replica whose extender serves kube-scheduler, with the certificates of
    `certify`."""
    return [
        f"kubernetes.webhooks_listen=127.0.0.1:{port}",
        f"kubernetes.webhooks_url=https://127.0.0.1:{port}",
        f"kubernetes.webhooks_certificate={place}/server.crt",
        f"kubernetes.webhooks_key={place}/server.key",
        f"kubernetes.webhooks_ca={place}/ca.crt",
        "extender.callers=kube-scheduler",
        f"extender.own_address=127.0.0.1:{port}",
    ]


@contextmanager
def replicas(
    plane: ControlPlane, place: Path, count: int = 1, *more: str
) -> Iterator[list[Replica]]:
    certify(place)
    made = []
    ports = free_ports(2 * count)
    for n, (port, near) in enumerate(zip(ports[:count], ports[count:], strict=True)):
        one = Replica(
            plane,
            place / f"queue-{n}.log",
            [*settings(place, port), f"extender.listen={HOST}:{near}", *more],
            nodes_socket=str(place / f"{n}.sock"),
        )
        one.asked_port, one.near_port = port, near
        made.append(one)
    with running(made):
        yield made


@contextmanager
def scheduler(
    plane: ControlPlane,
    place: Path,
    port: int | None,
    *names: str,
    more: Sequence[str] = (),
    counted: Sequence[str] = (),
    writes_a_second: int | None = FAST,
    near: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """kube-scheduler, a profile for each name; `port`: the extender's, if it asks one; `more`: resources besides NVIDIA's;
    `counted`: those that it reckons with, too; `writes_a_second`: what it may, None: its own limit (50, and 100 at once), as the chart
    has it; `near`: the port is one on the loopback, without TLS."""
    profiles = names or SERVED
    path = place / f"{profiles[0]}.yaml"
    document = configuration(plane, place, port, profiles, more, counted)
    if near:
        document["extenders"][0] |= {"urlPrefix": f"http://{HOST}:{port}/scheduler"}
        for one in ("enableHTTPS", "tlsConfig"):
            del document["extenders"][0][one]
    if writes_a_second is not None:
        burst = 2 * FAST if writes_a_second == FAST else 10
        document["clientConnection"] |= {"qps": writes_a_second, "burst": burst}
    path.write_text(yaml.safe_dump(document))
    own = free_port()
    keys = plane.pki.kubeconfig("scheduler")
    command = [
        *DIES_WITH_US,
        *(str(plane.programs["kube-scheduler"]), f"--config={path}", f"--secure-port={own}"),
        *(f"--bind-address={HOST}", f"--authentication-kubeconfig={keys}"),
        f"--authorization-kubeconfig={keys}",
    ]
    with (place / "scheduler.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
        assert process.poll() is None, (place / "scheduler.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait(60)


def configuration(
    plane: ControlPlane,
    place: Path,
    port: int | None,
    names: Sequence[str],
    more: Sequence[str],
    counted: Sequence[str],
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(plane.pki.kubeconfig("scheduler")),
        },
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": one} for one in names],
    }
    if port is not None:
        managed = [
            {"name": one, "ignoredByScheduler": one not in counted} for one in (*RESOURCES, *more)
        ]
        made["extenders"] = [
            {
                "urlPrefix": f"https://127.0.0.1:{port}/scheduler",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": True,
                "nodeCacheCapable": True,
                "httpTimeout": "30s",
                "managedResources": managed,
                "tlsConfig": {
                    "caFile": str(place / "ca.crt"),
                    "certFile": str(place / "scheduler.crt"),
                    "keyFile": str(place / "scheduler.key"),
                },
            }
        ]
    return made


def gpu_pod(
    name: str,
    *,
    count: int = 1,
    scheduler: str = "sluice-scheduler",
    annotations: dict[str, str] | None = None,
    cpu: str = "10m",
    spec: dict[str, Any] | None = None,
    **amounts: int,
) -> dict[str, Any]:
    """`amounts`: gpumem, gpucores, by HAMi's names; `_` for `-`."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in amounts.items()}
    if count:
        limits["nvidia.com/gpu"] = str(count)
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": limits, "requests": {"cpu": cpu, **limits}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
        "spec": {"schedulerName": scheduler, "containers": [container], **(spec or {})},
    }


@dataclass
class Fleet:
    """Nodes with GPUs: objects for the scheduler, sessions with the leader."""

    plane: ControlPlane
    sockets: dict[Path, Replica]
    names: list[str] = field(default_factory=list)
    gpus: int = 4
    memory: int = 80 * GIB
    numa_nodes: int = 0
    """How many each node has, with as many GPUs each; 0: the GPUs have none."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Model by node."""
    unhealthy: set[str] = field(default_factory=set)
    """GPUs."""
    running: dict[str, list[Any]] = field(default_factory=dict)
    """Reported pods by node."""
    sessions_total: int = 0

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failures: list[BaseException] = []

    def __enter__(self) -> Fleet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self.failures, self.failures

    def add(
        self, name: str, *, cpu: str = "64", taints: Any = (), sums: bool = False, **labels: str
    ) -> None:
        """A Node object; it reports from the next round on. `sums`: it advertises what its GPUs have together, too."""
        head = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        self.plane.api.create("nodes", "", {"metadata": head})
        amounts = {"cpu": cpu, "memory": "256Gi", "pods": "250", "ephemeral-storage": "100Gi"}
        if sums:
            slots, memory, cores = 10 * self.gpus, self.gpus * self.memory // MIB, 100 * self.gpus
            amounts |= {
                "nvidia.com/gpu": str(slots),
                "nvidia.com/gpumem": str(memory),
                "nvidia.com/gpucores": str(cores),
            }
        at = "2026-11-22T10:00:00Z"
        ready = {"type": "Ready", "status": "True", "reason": "r", "message": "m"}
        stamped = {**ready, "lastHeartbeatTime": at, "lastTransitionTime": at}
        path = f"/api/v1/nodes/{name}"
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [stamped]}
        self.plane.api.patch(f"{path}/status", {"status": status})
        self.plane.api.patch(path, {"spec": {"taints": list(taints) or None}})
        self.names.append(name)

    def _numa_node(self, index: int) -> dict[str, int]:
        return {"numa_node": index * self.numa_nodes // self.gpus} if self.numa_nodes else {}

    def uuids(self, node: str) -> list[str]:
        return [f"GPU-{node}-{index}" for index in range(self.gpus)]

    def capacity(self, node: str) -> Any:
        return message(
            "NodeCapacity",
            gpus=[
                message(
                    "NodeGpu",
                    uuid=uuid,
                    index=index,
                    type=self.kinds.get(node, "NVIDIA H100 80GB HBM3"),
                    memory_bytes=self.memory,
                    share_ppm=1_000_000,
                    slots=10,
                    health="unhealthy" if uuid in self.unhealthy else "healthy",
                    **self._numa_node(index),
                )
                for index, uuid in enumerate(self.uuids(node))
            ],
            labels={"kubernetes.io/hostname": node},
            pods=self.running.get(node, []),
        )

    def usage(self, node: str) -> list[Any]:
        """Messages about what the node's pods use; none, since nothing is measured here."""
        return []

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                for path, replica in self.sockets.items():
                    alive = replica.process is not None and replica.process.poll() is None
                    if not alive or not path.exists():
                        continue
                    with contextlib.suppress(grpc.RpcError, OSError):
                        self._session(path)
                self._ended.wait(0.2)
        except BaseException as error:
            self.failures.append(error)

    def _session(self, path: Path) -> None:
        """Run sessions of all nodes while this replica leads."""
        epochs: dict[str, int] = {}
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
            sequence = 0
            while not self._ended.is_set():
                sequence += 1
                for name in list(self.names):
                    if name not in epochs:
                        hello = message("NodeHello", node=name, capacity=self.capacity(name))
                        epochs[name] = _call(channel, "Connect", hello).epoch
                        self.sessions_total += 1
                        continue
                    report = message(
                        "NodeReport",
                        node=name,
                        epoch=epochs[name],
                        sequence=sequence,
                        capacity=self.capacity(name),
                        pod_usage=self.usage(name),
                    )
                    _call(channel, "Report", report)
                self._ended.wait(REPORT_S if len(epochs) >= len(self.names) else 0.05)


def _call(channel: grpc.Channel, name: str, request: Any) -> Any:
    kind = WIRE.methods(NODES)[name]
    call = channel.unary_unary(
        f"/{NODES}/{name}",
        request_serializer=kind.request.SerializeToString,
        response_deserializer=kind.response.FromString,
    )
    return call(request, timeout=10)


def placement(pod: dict[str, Any]) -> dict[str, Any]:
    """Empty: it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(PLACEMENT)
    return dict(json.loads(text)) if text else {}


def given(pods: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int, int]]:
    """Memory, time and pods on each GPU, by the API's own objects."""
    found: dict[str, tuple[int, int, int]] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for shares in placement(pod).get("containers", {}).values():
            for one in shares:
                memory, time_, count = found.get(one["uuid"], (0, 0, 0))
                found[one["uuid"]] = (
                    memory + one["memory_bytes"],
                    time_ + one["share_ppm"],
                    count + 1,
                )
    return found


def create_all(plane: ControlPlane, pods: Sequence[dict[str, Any]], threads: int = 8) -> None:
    left = list(reversed(pods))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while left:
                with contextlib.suppress(IndexError):
                    plane.api.call("POST", PODS, left.pop())
        except BaseException as error:
            failures.append(error)

    every = [threading.Thread(target=work) for _ in range(threads)]
    for one in every:
        one.start()
    for one in every:
        one.join(600)
    assert not failures, failures


def bound(pod: dict[str, Any]) -> str:
    return str(pod["spec"].get("nodeName") or "")


def refusal(pod: dict[str, Any]) -> str:
    """Why the scheduler has not placed it; empty: it has not said."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message") or "")
    return ""


def wait_bound(plane: ControlPlane, name: str, seconds: float = 60) -> dict[str, Any]:
    pod: dict[str, Any] = {}

    def is_bound() -> bool:
        pod.update(plane.api.get(f"{PODS}/{name}"))
        return bool(bound(pod))

    until(f"{name} is bound", is_bound, seconds)
    return pod


def wait_refused(plane: ControlPlane, name: str, seconds: float = 60) -> str:
    until(f"{name} is refused", lambda: bool(refusal(plane.api.get(f"{PODS}/{name}"))), seconds)
    return refusal(plane.api.get(f"{PODS}/{name}"))


def clear(plane: ControlPlane) -> None:
    plane.api.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    until("no pod is left", lambda: not plane.api.get(PODS)["items"], 120)


def now() -> float:
    return time.monotonic()


class Service:
    """An address before several replicas, as a Service is: each connection goes to the next one that takes it."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._turn = 0
        self.connections: Counter[int] = Counter()

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = self._next()
            if far is None:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    def _next(self) -> socket.socket | None:
        for _ in self._ports:
            port = self._ports[self._turn % len(self._ports)]
            self._turn += 1
            with contextlib.suppress(OSError):
                found = socket.create_connection((HOST, port), timeout=5)
                found.settimeout(None)
                self.connections[port] += 1
                return found
        return None


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


class Accountant:
    """Follows all pods, and adds up every card after every change, as the API server tells it."""

    def __init__(self, plane: ControlPlane, memory: int, slots: int = 10) -> None:
        self._plane = plane
        self._memory = memory
        self._slots = slots
        self.wrong: list[str] = []
        self.events = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self.bound_total = 0
        """Pods that are there and have a node."""
        self._cards: dict[str, dict[str, dict[str, Any]]] = {}
        self._cards_of: dict[str, list[str]] = {}
        """Cards by pod: the cost of a change must not grow with the number of cards while others
        are measured."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Accountant:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _look(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # it would stop without a reason in the log
            self.wrong.append(repr(error))
            raise

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.pods, self._cards, self._cards_of, self.bound_total = {}, {}, {}, 0
                listed = self._plane.api.get(PODS)
                for one in listed["items"]:
                    self._take(one)
                version = listed["metadata"]["resourceVersion"]
                for event in self._plane.api.watch(
                    f"{PODS}?resourceVersion={version}&timeoutSeconds=600"
                ):
                    if self._ended.is_set():
                        return
                    self.events += 1
                    pod = event["object"]
                    self._drop(pod["metadata"]["uid"])
                    if event["type"] != "DELETED":
                        self._take(pod)

    def _drop(self, uid: str) -> None:
        known = self.pods.pop(uid, None)
        self.bound_total -= bool(known and bound(known))
        for uuid in self._cards_of.pop(uid, ()):
            self._cards[uuid].pop(uid, None)

    def _take(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        self.bound_total += bool(bound(pod))
        place = placement(pod)
        if not place:
            return
        if place["node"] != bound(pod):
            self.wrong.append(f"{pod['metadata']['name']}: {place['node']}, {bound(pod)}")
        for shares in place["containers"].values():
            for one in shares:
                card = self._cards.setdefault(one["uuid"], {})
                card[uid] = one
                self._cards_of.setdefault(uid, []).append(one["uuid"])
                self._check(one["uuid"], list(card.values()))

    def _check(self, uuid: str, shares: list[dict[str, Any]]) -> None:
        memory = sum(one["memory_bytes"] for one in shares)
        time_ = sum(one["share_ppm"] for one in shares)
        company = any(one.get("alone") for one in shares) and len(shares) > 1
        if memory > self._memory or time_ > 1_000_000 or len(shares) > self._slots or company:
            self.wrong.append(f"{uuid}: {memory} bytes, {time_} ppm, {len(shares)} pods")
