"""Pods on nodes whose kubelet aligns them on NUMA nodes: the extender refuses what it would reject, and chooses GPUs near its CPUs."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.podplacement import requeueing
from queuecontroller.gpushares.extender.numa import TOPOLOGIES
from sluicecommon.kubernetes.errors import ApiRefused
from tests.queue.cluster.podplacement.service import Api, ObjectCache, run, settled

GPUS = 4
"""GPUs of each node: 0 and 1 on NUMA node 0, 2 and 3 on NUMA node 1."""


def report(free_0: int, free_1: int, slots: int = 20) -> dict[str, Any]:
    """A NodeResourceTopology with CPUs that are free on each NUMA node."""

    def resource(name: str, most: int, free: int) -> dict[str, str]:
        return {
            "name": name,
            "capacity": str(most),
            "allocatable": str(most),
            "available": str(free),
        }

    return {
        "metadata": {"name": "a", "resourceVersion": "1", "uid": "topology"},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [resource("cpu", 8, free), resource("nvidia.com/gpu", slots, slots)],
            }
            for number, free in enumerate((free_0, free_1))
        ],
    }


def create(world: ObjectCache, name: str, cpus: int, **asked: int) -> None:
    """A Guaranteed pod."""
    document = world.create(name, **asked)
    limits = document["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"cpu": str(cpus), "memory": "1Gi"}
    world.api.create(document)
    world.watch(name)


def numa_node(world: ObjectCache, name: str) -> int:
    place = world.desk.ledger.place(f"u-{name}")
    assert place is not None
    (share,) = place.held
    return int(share.uuid.rpartition("-")[2]) // 2


def test_a_pod_gets_a_gpu_where_the_kubelet_takes_its_cpus() -> None:
    async def test(world: ObjectCache) -> None:
        world.desk.topology_changed("a", report(2, 8))
        create(world, "small", 2, gpumem=1000)
        create(world, "large", 6, gpumem=1000)
        create(world, "larger", 6, gpumem=1000)
        for name in ("large", "small"):
            assert await world.filter(name, "a") == ["a"]
            assert await world.bind(name, "a") == ""
        assert numa_node(world, "large") == 1
        assert numa_node(world, "small") == 0
        found = await world.add("filter", Pod=world.api.pods["larger"], NodeNames=["a", "b"])
        assert found["NodeNames"] == ["b"]
        assert "node 1 has cpu 2, nvidia.com/gpu 19" in found["FailedNodes"]["a"]

    run(test, gpus=GPUS)


def test_a_gpu_elsewhere_is_better_than_none() -> None:
    """The kubelet takes CPUs of the first NUMA node, whatever room its GPUs have: it counts their slots only."""

    async def test(world: ObjectCache) -> None:
        for name in ("first", "second"):
            await world.run_pod(name, "a", cores=100)
        world.desk.topology_changed("a", report(8, 8))
        create(world, "third", 2, gpumem=70_000)
        assert await world.filter("third", "a") == ["a"]
        assert await world.bind("third", "a") == ""
        assert numa_node(world, "third") == 1

    run(test, gpus=GPUS)


def test_a_refused_pod_is_tried_again_when_cpus_are_free() -> None:
    async def test(world: ObjectCache) -> None:
        world.desk.topology_changed("a", report(2, 2))
        create(world, "p", 4, gpumem=1000)
        assert await world.filter("p", "a") == []
        world.desk.topology_changed("a", report(2, 2))
        await settled()
        assert world.api.patches == []
        world.desk.topology_changed("a", report(2, 4))
        await settled()
        ((_, name, patch),) = world.api.patches
        assert name == "p"
        assert "NUMA nodes of a" in patch["metadata"]["annotations"][requeueing.TRIED_FOR]
        assert await world.filter("p", "a") == ["a"]

    run(test, gpus=GPUS)


def test_a_pod_that_was_not_bound_or_has_ended_is_not_counted() -> None:
    async def test(world: ObjectCache) -> None:
        world.desk.topology_changed("a", report(8, 0))
        create(world, "p", 8, gpumem=1000)
        create(world, "q", 8, gpumem=1000)

        def refuse() -> None:
            raise ApiRefused(422, "Invalid", "no")

        world.api.fate = refuse
        assert await world.bind("p", "a")
        assert await world.filter("q", "a") == ["a"]
        world.api.fate = lambda: None
        assert await world.bind("p", "a") == ""
        world.watch("p")
        assert await world.filter("q", "a") == []
        world.end("p")
        assert await world.filter("q", "a") == ["a"]

    run(test, gpus=GPUS)


def test_a_new_leader_counts_the_pods_that_start() -> None:
    api = Api()

    async def bound(world: ObjectCache) -> None:
        create(world, "p", 8, gpumem=1000)
        assert await world.bind("p", "a") == ""
        api.pods["p"]["status"]["phase"] = "Pending"

    async def later(world: ObjectCache) -> None:
        create(world, "q", 8, gpumem=1000)
        assert await world.filter("q", "a") == []

    run(bound, gpus=GPUS, api=api)
    run(later, gpus=GPUS, api=api, objects=((TOPOLOGIES, report(8, 0)),))
