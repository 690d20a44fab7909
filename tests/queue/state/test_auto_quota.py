"""`nominalQuota: auto`: quota that follows what nodes report and others leave."""

from __future__ import annotations

import pytest

from queuecontroller.kueueapi.manifests.documents import load
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.totals import reported
from tests.queue.state.world import GIB, TEAMS, World, gpu

AUTO = TEAMS.replace(
    "resources: [{name: nvidia.com/gpu, nominalQuota: 2}]",
    "resources: [{name: nvidia.com/gpu, nominalQuota: auto}]",
    1,
).replace("  cohort: both\n", "")


def nominal(world: World) -> int:
    queue = world.book.catalogue.cluster_queue("a")
    assert queue is not None
    return queue.resource_groups[0].flavors[0].resources[0].nominal


def test_quota_comes_with_the_nodes_and_shrinks_with_what_others_take() -> None:
    world = World()
    world.apply(AUTO)
    one = world.submit("a")
    assert world.status(one).phase == "Pending"
    world.connect(gpus=(gpu(0, slots=3), gpu(1, slots=3)))
    world.pass_time(1)
    assert nominal(world) == 6
    assert world.status(one).phase == "Admitted"
    world.report(gpus=(gpu(0, slots=3, outside_slots=2), gpu(1, slots=3, health="lost")))
    world.pass_time(1)
    assert nominal(world) == 1
    world.confirm(one)
    two = world.submit("a")
    assert world.status(two).phase == "Pending", "one slot, one job"
    world.report(gpus=(gpu(0, slots=3), gpu(1, slots=3)))
    world.pass_time(1)
    assert world.status(two).phase == "Admitted"


def test_a_restart_finds_the_same_again() -> None:
    world = World()
    world.apply(AUTO)
    world.connect(gpus=(gpu(0, slots=3),))
    world.pass_time(1)
    one = world.submit("a")
    world.confirm(one)
    world.restart()
    world.connect(gpus=(gpu(0, slots=3),))
    world.pass_time(1)
    assert nominal(world) == 3
    assert world.status(one).phase == "Admitted"


@pytest.mark.parametrize(
    ("resource", "labels", "amount"),
    [
        ("nvidia.com/gpu", {}, 8 + 10),
        ("nvidia.com/gpumem", {}, 70 * 1024 + 80 * 1024),
        ("nvidia.com/total-gpumem", {"pool": "x"}, 70 * 1024),
        ("nvidia.com/gpucores", {"pool": "x"}, 75),
        ("cpu", {"pool": "x"}, 64_000),
        ("nvidia.com/mig-1g.10gb", {}, 0),
        ("nvidia.com/gpu", {"pool": "none"}, 0),
    ],
)
def test_what_nodes_report_is_counted_in_the_names_of_quotas(
    resource: str, labels: dict[str, str], amount: int
) -> None:
    taken = gpu(
        0, outside_memory_bytes=10 * GIB, outside_share_ppm=250_000, outside_slots=2, slots=10
    )
    nodes = [
        NodeCapacity((taken, gpu(1, health="lost")), {"pool": "x"}, other={"cpu": 64_000}),
        NodeCapacity((gpu(0, slots=10),), {"pool": "y"}),
        NodeCapacity((gpu(0),), {"pool": "x"}, unschedulable=True),
    ]
    assert reported(nodes, labels, resource) == amount


def test_only_the_nominal_quota_may_be_auto() -> None:
    found = load(
        {"x": AUTO.replace("nominalQuota: auto", "nominalQuota: auto, borrowingLimit: auto")}
    )
    assert [one.field.rpartition(".")[2] for one in found.problems] == ["borrowingLimit"]
