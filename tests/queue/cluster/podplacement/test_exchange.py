"""A queued pod's place on a node that kube-scheduler leaves out is given for one on a node that it leaves over, within the domain that was
chosen, and the pod is bound there only once its Workload says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    TOPOLOGIES,
    WORKLOADS,
)
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.podplacement import exchange
from queuecontroller.cluster.podplacement.exchange import PlaceExchange
from queuecontroller.cluster.podplacement.queued_pods import QueuedAsks, QueuedPods
from queuecontroller.cluster.session import NullStore
from queuecontroller.cluster.status.workload_status import patch_of
from queuecontroller.gpushares.admission import Rules
from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.topology.ground import Ground, NodeFacts
from queuecontroller.state.book import Book, BookSettings, Sharing
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.shell import Shell
from tests.queue.cluster.podplacement.service import Clock
from tests.queue.gpushares.extender.rooms import MIB, contradictions, node, pod, share

KEY = WorkloadKey("t/w")
AT = "2026-11-22T10:00:00Z"
RACKS = {"a": "r0", "b": "r1", "c": "r0"}
HOST = "kubernetes.io/hostname"


def of_kueue(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    head = {"name": name, "uid": f"u-{name}", "resourceVersion": "1", "creationTimestamp": AT}
    if namespace:
        head["namespace"] = namespace
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": head,
        "spec": spec,
    }


def workload(topology: dict[str, Any] | None) -> dict[str, Any]:
    """A Workload with quota, and a place on node a."""
    template = {"spec": {**pod("x", gpumem=50_000)["spec"], "schedulerName": "sluice-scheduler"}}
    made = of_kueue(
        "Workload",
        "w",
        {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "t",
    )
    place = PodPlace("a", {"main": (share("GPU-a-0", 50_000 * MIB),)})
    given = {
        "name": "main",
        "count": 1,
        "flavors": {"cpu": "f"},
        "resourceUsage": {"cpu": "0"},
        "gpuPlaces": [{"place": place.text(), "count": 1}],
        **({"topologyAssignment": topology} if topology else {}),
    }
    conditions = [
        {"type": one, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": AT}
        for one in ("QuotaReserved", "Admitted")
    ]
    admission = {"clusterQueue": "cq", "podSetAssignments": [given]}
    return {**made, "status": {"admission": admission, "conditions": conditions}}


def assigned(*levels: str) -> dict[str, Any]:
    value = {"rack": "r0", HOST: "a"}
    values = [{"universal": value[level]} for level in levels]
    pods = {"universal": 1}
    slices = [{"domainCount": 1, "podCounts": pods, "valuesPerLevel": values}]
    return {"levels": list(levels), "slices": slices}


class Lab:
    def __init__(self, topology: dict[str, Any] | None = None) -> None:
        self.world = ObjectCache()
        flavor = {"topologyName": "racks"} if topology else {}
        resources = [{"name": "cpu", "nominalQuota": 10}]
        groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}]
        levels = (topology or {}).get("levels") or ["rack"]
        for kind, document in (
            (
                TOPOLOGIES,
                of_kueue("Topology", "racks", {"levels": [{"nodeLabel": one} for one in levels]}),
            ),
            (FLAVORS, of_kueue("ResourceFlavor", "f", flavor)),
            (CLUSTER_QUEUES, of_kueue("ClusterQueue", "cq", {"resourceGroups": groups})),
            (LOCAL_QUEUES, of_kueue("LocalQueue", "q", {"clusterQueue": "cq"}, "t")),
            (WORKLOADS, workload(topology)),
        ):
            self.world.take(kind, document)
        asks = QueuedAsks(self.world, lambda: Rules(), Defaults()).of
        ground = Ground()
        self.book = Book(BookSettings(), False, lambda: "0", ground, Sharing(Defaults(), asks))
        self.shell = Shell(self.book, NullStore(0, "lease"), Clock())
        self.shell.start()
        for name, rack in RACKS.items():
            labels = {HOST: name, "rack": rack}
            ground.put_node(NodeFacts(name, labels, {"cpu": 64_000, "pods": 250}))
            self.book.desk.connect(Hello(name, capacity=node(name, 1)), 1)
        ground.inputs_received()
        self.book.pods_received()
        self.book.nodes_room.follow(1)
        self.mirror = Mirror(self.book, self.world)
        self.mirror.begin(1)
        room = self.book.nodes_room
        queued = QueuedPods(self.world, room.pods.reserved, Defaults(), lambda _: True)
        self.extender = Extender(room.stock, room.pods, Defaults(), queued.place)
        self.exchanging = PlaceExchange(self.shell, self.extender, self.world)
        self.pod = pod("w-0", gpumem=50_000)
        self.pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "w"

    def filter(self, *names: str) -> tuple[str, ...]:
        found = self.extender.filter(self.pod, names).names
        if not found and self.exchanging.try_for(self.pod, names):
            found = self.extender.filter(self.pod, names).names
        assert contradictions(self.extender.stock) == []
        return found

    def store(self) -> None:
        """Store the book's decision, as its writer would."""
        before = self.world.get(WORKLOADS, KEY)
        assert before is not None
        record = self.book.workloads.records[KEY]
        patch = patch_of(before, self.mirror.as_read(before), record.workload, None, 1)
        head = {**before["metadata"], "resourceVersion": "2"}
        after = {**before, "metadata": head, "status": {**before["status"], **patch}}
        self.world.take(WORKLOADS, after)
        self.mirror.expected[KEY] = record.workload
        self.mirror.workload(KEY, after, 2)


def test_a_place_moves_to_a_node_that_is_left_over_and_only_when_none_of_its_own_is() -> None:
    lab = Lab()
    assert lab.filter("a", "b") == ("a",)
    assert lab.filter("b") == ("b",)
    assert lab.filter("b", "c") == ("b",), "it stays there now"
    plain = lab.extender.filter(pod("plain", gpumem=50_000), ["a", "b", "c"]).names
    assert plain == ("a", "c"), "what it had is free"


@pytest.mark.parametrize(
    ("topology", "names", "there"),
    [
        (assigned("rack"), ("b", "c"), ("c",)),
        (assigned("rack"), ("b",), ()),
        (assigned("rack", HOST), ("b", "c"), ()),
    ],
    ids=["in the rack", "out of the rack", "down to the host"],
)
def test_a_place_stays_within_the_domain_that_was_chosen(
    topology: dict[str, Any], names: tuple[str, ...], there: tuple[str, ...]
) -> None:
    assert Lab(topology).filter(*names) == there


def test_nothing_moves_where_there_is_no_room() -> None:
    lab = Lab()
    full = PodPlace("b", {"main": (share("GPU-b-0", 70_000 * MIB),)})
    lab.extender.ledger.assume("u-full", full)
    assert lab.filter("b") == ()


def test_a_pod_is_bound_there_once_its_workload_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STORED_S", 0.05)

    async def test() -> None:
        lab = Lab()
        assert await lab.exchanging.why_not_stored("u-w-0") == "", "nothing was exchanged"
        assert lab.filter("b") == ("b",)
        assert "is not stored yet" in await lab.exchanging.why_not_stored("u-w-0")
        monkeypatch.setattr(exchange, "STORED_S", 60.0)
        waiting = asyncio.create_task(lab.exchanging.why_not_stored("u-w-0"))
        await asyncio.sleep(0)
        lab.store()
        assert await waiting == ""
        assert lab.filter("a", "b") == ("b",), "what is read is what was written"
        assert lab.filter("a") == (), "not so soon again"

    asyncio.run(test())


def test_what_the_api_server_does_not_store_is_undone_and_the_pod_asks_again() -> None:
    async def test() -> None:
        lab = Lab()
        assert lab.filter("b") == ("b",)
        lab.mirror.take_over_again(KEY, 3, 0)  # as the writer does where it was refused
        assert "was reassigned" in await lab.exchanging.why_not_stored("u-w-0")
        assert lab.filter("a", "b") == ("a",)

    asyncio.run(test())
