"""Leaders are killed under a stream of LeaderWorkerSets, StatefulSets, Ray clusters that scale and Jobs that are deleted without their
pods: nothing is admitted twice, everything runs, the quota is exact, and what has no owner holds none.

Their operators and controllers are real. SLUICE_KILLS=200 for the full run."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.leaders import KINDS, SHORT_LEASE_S, Way, end_leader
from tests.cluster.operators.jobs import leader_worker_set, pod, ray_cluster
from tests.cluster.operators.kubelet import PODS, Document, Kubelets, cpus_of, occupies
from tests.cluster.operators.lab import described, held, name_of
from tests.cluster.operators.running import define_operators, running
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    WORKLOADS,
    Replica,
    apply,
    define_all,
    door,
    is_asked,
    is_true,
    job,
    leader_of,
    of_kueue,
    quota,
    webhook_settings,
)
from tests.kit.node import until
from tests.kit.workplace import free_ports
from tests.queue.kueueapi.serving import certify

KILLS: Final = int(os.environ.get("SLUICE_KILLS", "20"))
REPLICAS: Final = 3
ROOM: Final = 6
STREAM, RAY = "stream", "ray"
"""Queues; a Ray cluster that shrinks gives its quota back before its pods are gone, so it has a queue of its own."""
RUNS_S: Final = 1.0
FREED_S: Final = 60.0
EACH_S: Final = 300.0
AT_ONCE: Final = 6
MOST: Final = {"lws": 2, "orphan": 2, "set": 2, "ray": 1, "job": 2}
"""Unfinished objects of a kind: more LeaderWorkerSets or Ray clusters could each wait for the rest of its quota."""
LWS: Final = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
SETS: Final = "/apis/apps/v1/namespaces/default/statefulsets"
CLUSTERS: Final = "/apis/ray.io/v1/namespaces/default/rayclusters"
ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
REPLACES: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
pytestmark = [pytest.mark.operators, pytest.mark.timeout(900 + 30 * KILLS)]


class Balancer:
    """One address for the webhooks of all replicas, as a Service is; `away`: ports that get no connection."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self.away: set[int] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        for port in self._ports:
            if port in self.away:
                continue
            with suppress(OSError):
                other = socket.create_connection(("127.0.0.1", port), 2)
                other.settimeout(None)
                threading.Thread(target=self._carry, args=(other, one), daemon=True).start()
                self._carry(one, other)
                return
        one.close()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()


@dataclass
class Made:
    """One object of the stream."""

    kind: str
    name: str
    path: str
    pods: int
    made_s: float = field(default_factory=time.monotonic)
    ran_s: float = 0.0
    """Time at which all its pods ran together; 0: not yet."""
    scaled: int = 0
    let_go: bool = False
    """It was deleted, or its pods have ended."""
    over: bool = False


class Stream:
    """Creates objects, looks at what they hold, scales and deletes them; one thread."""

    def __init__(self, plane: ControlPlane, kubelets: Kubelets, kinds: Sequence[str]) -> None:
        self.plane, self.kubelets, self.kinds = plane, kubelets, kinds
        self.made: list[Made] = []
        self.wrong: list[str] = []
        self.most = 0.0
        self.turn = 0
        self.chance = random.Random(32)
        kubelets.done = self._is_done

    def wanted(self) -> None:
        """One more of the kinds in turn, unless there are many."""
        if sum(not one.over for one in self.made) >= AT_ONCE:
            return
        self.turn += 1
        kind = self.kinds[self.turn % len(self.kinds)]
        if sum(one.kind == kind and not one.over for one in self.made) >= MOST[kind]:
            return
        name = f"{kind[0]}{len(self.made)}"
        size = self.chance.randint(1, 2)
        document, path, pods = _document(kind, name, size)
        try:
            self.plane.api.call("POST", path, document)
        except ApiError as error:
            if "failed calling webhook" not in str(error):
                raise
            return
        self.made.append(Made(kind, name, path, pods))

    def look(self) -> None:
        workloads = self.plane.api.get(WORKLOADS)["items"]
        pods = self.plane.api.get(PODS)["items"]
        for queue, mine in ((STREAM, False), (RAY, True)):
            of_queue = [one for one in workloads if one["spec"].get("queueName") == queue]
            now = sum(held(one) for one in of_queue)
            self.most = max(self.most, now)
            if now > ROOM:
                self.wrong.append(f"{now:g} of {ROOM} are held in {queue}")
            self._count_twice(of_queue)
            if not mine:
                run = [one for one in pods if occupies(one) and self._is_counted(one)]
                if (used := sum(cpus_of(one) for one in run)) > ROOM:
                    self.wrong.append(f"pods of {used:g} CPUs run, of {ROOM}")
        for one in self.made:
            if not one.over:
                self._step(one, pods, workloads)

    def _count_twice(self, workloads: list[Document]) -> None:
        """Two Workloads of one owner that hold quota, but for the next slice of a Ray cluster."""
        holders: dict[str, str] = {}
        for one in workloads:
            notes = one["metadata"].get("annotations") or {}
            if not held(one) or REPLACES in notes:
                continue
            index = notes.get("kueue.x-k8s.io/component-workload-index", "")
            for owner in one["metadata"].get("ownerReferences") or ():
                if owner["kind"] == "Pod":
                    continue
                name = one["metadata"]["name"]
                before = holders.setdefault(f"{owner['uid']}/{index}", name)
                if before != name:
                    self.wrong.append(f"{before} and {name} hold quota for {owner['name']}")

    def _step(self, one: Made, pods: list[Document], workloads: list[Document]) -> None:
        mine = [pod for pod in pods if _is_of(pod, one.name)]
        if not one.ran_s:
            run = [pod for pod in mine if pod["status"].get("phase") in ("Running", "Succeeded")]
            if len(run) == one.pods:
                one.ran_s = time.monotonic()
        elif one.let_go:
            one.over = self._is_over(one, mine, workloads)
        elif time.monotonic() > one.ran_s + RUNS_S:
            self._next(one)

    def _next(self, one: Made) -> None:
        place = f"{one.path}/{one.name}"
        if one.kind == "ray" and one.scaled < 2:
            one.scaled += 1
            workers = (3, 1)[one.scaled - 1]
            groups = self.plane.api.get(place)["spec"]["workerGroupSpecs"]
            groups[0]["replicas"] = workers
            self.plane.api.patch(place, {"spec": {"workerGroupSpecs": groups}})
            one.pods, one.ran_s = workers + 1, 0.0
            return
        if one.kind == "orphan":
            options = {"propagationPolicy": "Orphan"}
            self.plane.api.call("DELETE", place, options)
        elif one.kind != "job":
            self.plane.api.delete(place)
        one.let_go = True
        one.made_s = time.monotonic()

    def _is_over(self, one: Made, pods: list[Document], workloads: list[Document]) -> bool:
        if one.kind == "job":
            if not is_true(self.plane.api.get(f"{one.path}/{one.name}"), "Complete"):
                return False
            self.plane.api.delete(f"{one.path}/{one.name}")
            return True
        if one.kind == "orphan":
            if self.plane.api.find(f"{one.path}/{one.name}") is not None:
                return False
            for pod in pods:
                self.plane.api.delete(f"{PODS}/{pod['metadata']['name']}")
        return not pods

    def _is_counted(self, pod: Document) -> bool:
        """False for pods of Ray clusters, and for those that a deleted Job has left."""
        if _is_of(pod, "r"):
            return False
        return not any(
            one.kind == "orphan" and one.let_go and _is_of(pod, one.name) for one in self.made
        )

    def _is_done(self, pod: Document) -> bool:
        return any(
            one.kind == "job" and one.let_go and name_of(pod) == one.name for one in self.made
        )


def _is_of(pod: Document, name: str) -> bool:
    """True for a pod of the object; of a kind, by its first letter."""
    found = str(pod["metadata"]["name"])
    return found.startswith(name) if len(name) == 1 else found.split("-")[0] == name


def _document(kind: str, name: str, size: int) -> tuple[Document, str, int]:
    """The object, where to create it, and the number of its pods."""
    if kind == "lws":
        made, path, pods = leader_worker_set(size, 2), LWS, 2 * size
    elif kind == "set":
        made, path, pods = stateful_set(size + 1), SETS, size + 1
    elif kind == "ray":
        made, path, pods = ray_cluster(1, annotations={ELASTIC: "true"}), CLUSTERS, 2
    else:
        made, path, pods = job(name, STREAM, pods=size), JOBS, size
    made["metadata"] |= {"name": name}
    queue = RAY if kind == "ray" else STREAM
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    return made, path, pods


def stateful_set(replicas: int) -> Document:
    labels = {"app": "set"}
    template = {**pod(), "metadata": {"labels": labels}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"namespace": "default"},
        "spec": {
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "serviceName": "set",
            "template": template,
        },
    }


@dataclass
class Rig:
    plane: ControlPlane
    replicas: list[Replica]
    ways: list[Way]
    ports: list[int]
    balancer: Balancer
    kubelets: Kubelets

    def kill(self, kind: str) -> None:
        victim = until("a replica leads", lambda: leader_of(self.plane, self.replicas), 120)
        index = self.replicas.index(victim)
        self.balancer.away = {self.ports[index]}
        try:
            end_leader(kind, self.plane, self.replicas, victim, self.ways[index])
        finally:
            self.balancer.away = set()


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    operators: tuple[str, ...] = request.param
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path / "plane", controllers=True))
        define_all(plane)
        define_operators(plane, operators)
        certify(tmp_path)
        ports = free_ports(REPLICAS)
        balancer = Balancer(ports)
        stack.callback(balancer.close)
        server = str(plane.ports["kube-apiserver"])
        ways = [Way(int(server)) for _ in range(REPLICAS)]
        replicas = [
            Replica(
                plane,
                tmp_path / f"{number}.log",
                [
                    f"kubernetes.leader_lease_s={SHORT_LEASE_S:g}",
                    *webhook_settings(tmp_path, ports[number], balancer.port),
                ],
                plane.url.replace(server, str(way.port)),
            )
            for number, way in enumerate(ways)
        ]
        stack.enter_context(ended(replicas, ways))
        until("a replica leads", lambda: leader_of(plane, replicas), 240)
        until("jobs are asked about", lambda: is_asked(plane), 240)
        apply(plane, of_kueue("ResourceFlavor", "plain", {}))
        for name in (STREAM, RAY):
            apply(plane, quota(name, ROOM), door(name, name))
        for name in operators:
            stack.enter_context(running(plane, tmp_path, name))
        kubelets = stack.enter_context(Kubelets(plane, lambda: 3.0 * ROOM))
        yield Rig(plane, replicas, ways, ports, balancer, kubelets)


@contextmanager
def ended(replicas: list[Replica], ways: list[Way]) -> Iterator[None]:
    for one in replicas:
        one.start()
    try:
        yield
        for one in replicas:
            assert "defect" not in one.text, one.text[-3000:]
    finally:
        for one in replicas:
            if one.process is not None:
                one.end(signal.SIGKILL)
        for way in ways:
            way.close()


@pytest.mark.parametrize(
    ("rig", "kinds"),
    [
        pytest.param(("lws",), ("lws", "orphan", "set", "job"), id="lws"),
        pytest.param(("kuberay",), ("ray", "orphan", "job"), id="kuberay"),
    ],
    indirect=["rig"],
)
def test_leaders_are_killed_beside_operators(rig: Rig, kinds: tuple[str, ...]) -> None:
    stream = Stream(rig.plane, rig.kubelets, kinds)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            try:
                stream.wanted()
                stream.look()
            except ApiError as error:
                if error.status not in (404, 409, 500):
                    stream.wrong.append(repr(error))
            except OSError:
                continue
            except Exception as error:
                stream.wrong.append(repr(error))
                raise

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(KILLS):
            rig.kill(KINDS[number % len(KINDS)])
            time.sleep(stream.chance.uniform(0.5, 2.0))
            assert not stream.wrong, stream.wrong
        stream.wanted = lambda: None  # type: ignore[method-assign]
        until(
            "everything has run and is gone",
            lambda: all(one.over for one in stream.made) or stream.wrong,
            EACH_S,
        )
    except BaseException as error:
        left = [one for one in stream.made if not one.over]
        error.add_note(f"left: {left}\n{described(rig.plane)}")
        raise
    finally:
        ended.set()
        thread.join(60)
    assert not stream.wrong, stream.wrong
    assert not rig.kubelets.wrong, rig.kubelets.wrong
    until("no Workload holds quota", lambda: not _holders(rig.plane), FREED_S)
    for name in (STREAM, RAY):

        def all_free(name: str = name) -> bool:
            status = rig.plane.api.get(f"{KUEUE}/clusterqueues/{name}")["status"]
            return (status["reservingWorkloads"], status["pendingWorkloads"]) == (0, 0)

        until(f"the queue {name} counts nothing", all_free, FREED_S)
    for one in rig.plane.api.get(WORKLOADS)["items"]:
        assert is_true(one, "Finished"), one["metadata"]["name"]
    made = Counter(one.kind for one in stream.made)
    assert stream.most > ROOM // 2, "there was something to count"
    print(f"{KILLS} leaders ended, {dict(made)}, at most {stream.most:g} of {ROOM} held")


def _holders(plane: ControlPlane) -> list[str]:
    return [one["metadata"]["name"] for one in plane.api.get(WORKLOADS)["items"] if held(one)]
