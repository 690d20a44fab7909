"""Workloads that permit it are restarted on other GPUs, so that one fits that fits nowhere else."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.settings import EngineSettings, PreemptionProtection
from queuecontroller.state.book import BookSettings
from queuecontroller.state.records import Desired, GpuAsk, SharePolicy
from sluicecommon.reader import ManifestError
from tests.kit.queue import queues
from tests.queue.state.world import GIB, World, gpu

COOLDOWN_S = 600
RESTART = "sluice.dev/consolidation: restart"
WHOLE = GpuAsk(1, memory_bytes=79 * GIB, share_ppm=1_000_000, policy=SharePolicy.EXCLUSIVE)


def teams(annotation: str = RESTART, of: str = "ab") -> str:
    """`annotation` is that of the ClusterQueues `of`."""
    quota = {queues.GPU: 100, "nvidia.com/gpumem": 1_000_000, "nvidia.com/gpucores": 10_000}
    text = "\n" + queues.manifests(
        queues.flavor("gpus"),
        *(queues.namespace(f"team-{team}") for team in "ab"),
        queues.priority_class("urgent", 1000),
        *(queues.cluster_queue(team, "gpus", quota, "") for team in "ab"),
        *(queues.local_queue("q", f"team-{team}", team) for team in "ab"),
    )
    for team in of:
        plain = f"metadata: {{name: {team}}}"
        assert plain in text
        text = text.replace(plain, f"metadata: {{name: {team}, annotations: {{{annotation}}}}}")
    return text


def world_of(text: str = "", enabled: bool = True, never: str = "") -> World:
    return World(
        text or teams(),
        BookSettings(
            engine=EngineSettings(
                consolidation=enabled,
                protection=PreemptionProtection(classes=frozenset({never} - {""})),
            ),
            move_cooldown_ns=COOLDOWN_S * 1_000_000_000,
        ),
    )


def small(gib: int) -> GpuAsk:
    return GpuAsk(1, memory_bytes=gib * GIB, share_ppm=200_000)


def one_left_on_each_gpu(world: World, **of_the_small: str) -> tuple[WorkloadKey, WorkloadKey]:
    """50 GiB on the one GPU, 20 GiB on the other: the rest of both together is a whole GPU."""
    world.connect(gpus=(gpu(0), gpu(1)))
    fills, large = (world.submit("a", ask=small(60)) for _ in range(2))
    for one in (fills, large):
        assert world.confirm(one)
    little = world.submit("b", ask=small(20), **of_the_small)
    assert world.confirm(little)
    here = {one: world.assignment(one).gpus[0].uuid for one in (fills, large, little)}
    if here[little] == here[large]:
        fills, large = large, fills
    assert world.release(fills, finished=True)
    assert here[little] != here[large]
    return large, little


def test_a_small_workload_is_restarted_elsewhere_and_both_run() -> None:
    world = world_of()
    large, little = one_left_on_each_gpu(world)
    before = world.assignment(little).gpus[0].uuid
    whole = world.submit("a", ask=WHOLE)
    assert world.told(little) is Desired.STOP
    assert world.told(large) is Desired.RUN
    evicted = world.record(little).workload.condition("Preempted")
    assert evicted is not None
    assert evicted.reason == "Consolidation"
    assert "due to consolidation, since it also fits on other GPUs" in evicted.message
    assert world.release(little, finished=False)
    assert world.told(whole) is Desired.RUN
    assert world.assignment(whole).gpus[0].uuid == before
    assert world.told(little) is Desired.RUN
    assert world.assignment(little).gpus[0].uuid == world.assignment(large).gpus[0].uuid
    assert {world.status(one).phase for one in (whole, little)} == {"Admitted"}


@pytest.mark.parametrize(
    "world",
    [world_of(enabled=False), world_of(teams("sluice.dev/consolidation: never"))],
    ids=["not enabled", "not permitted"],
)
def test_without_permission_nothing_is_moved_and_explain_still_says_it(world: World) -> None:
    _, little = one_left_on_each_gpu(world)
    whole = world.submit("a", ask=WHOLE)
    assert world.told(little) is Desired.RUN
    assert world.status(whole).phase == "Pending"
    assert world.record(little).moved_ns == 0


def test_neither_a_higher_priority_nor_a_protected_class_is_moved() -> None:
    for never, priority_class in (("", "urgent"), ("urgent", "urgent")):
        world = world_of(teams(of="b"), never=never)
        _, little = one_left_on_each_gpu(world, priority_class=priority_class)
        world.submit("a", ask=WHOLE)
        assert world.told(little) is Desired.RUN
        if not never:
            world.submit("a", ask=WHOLE, priority_class="urgent")
            assert world.told(little) is Desired.STOP, "an equal priority may"


def test_it_is_not_moved_for_less_than_it_costs() -> None:
    world = world_of()
    world.connect(gpus=(gpu(0), gpu(1)))
    large, other = (world.submit(team, ask=small(60)) for team in "ab")
    assert world.confirm(large)
    assert world.confirm(other)
    world.submit("a", ask=GpuAsk(1, memory_bytes=21 * GIB, share_ppm=10_000))
    assert world.told(large) is world.told(other) is Desired.RUN


def test_it_is_not_moved_again_within_the_cool_down_also_after_a_restart() -> None:
    world = world_of()
    large, little = one_left_on_each_gpu(world)
    first = world.submit("a", ask=WHOLE)
    assert world.release(little, finished=False)
    assert world.confirm(little)
    assert world.confirm(first)
    assert world.release(first, finished=True)
    assert world.release(large, finished=True)
    # The little one is now alone on its GPU, and a request for both GPUs does not fit beside it; one
    # for a GPU of its own, on the other side of a filler, does after a move.
    filler = world.submit("a", ask=small(60))
    world.confirm(filler)
    if world.assignment(filler).gpus[0].uuid == world.assignment(little).gpus[0].uuid:
        there = world.assignment(filler).gpus[0].uuid
        blocker = world.submit("a", ask=WHOLE)
        world.confirm(blocker)
        assert world.assignment(blocker).gpus[0].uuid != there
        world.release(filler, finished=True)
        world.release(blocker, finished=True)
        taken = GpuAsk(1, memory_bytes=60 * GIB, gpu_uuids=(_other(there),), share_ppm=200_000)
        filler = world.submit("a", ask=taken)
        world.confirm(filler)
    second = world.submit("a", ask=WHOLE)
    assert world.told(little) is Desired.RUN, "it rests"
    world.restart()
    world.connect(
        gpus=(gpu(0), gpu(1)),
        held=tuple(world.held(one) for one in (little, filler)),
    )
    world.settle()
    assert world.told(little) is Desired.RUN, "a restart does not end the cool-down"
    world.pass_time(COOLDOWN_S)
    world.connect(gpus=(gpu(0), gpu(1)), held=tuple(world.held(o) for o in (little, filler)))
    world.pass_time(1)
    assert world.told(little) is Desired.STOP
    assert world.status(second).phase == "Pending"


def _other(uuid: str) -> str:
    return next(one.uuid for one in (gpu(0), gpu(1)) if one.uuid != uuid)


def test_the_annotation_of_the_workload_comes_before_that_of_its_queue() -> None:
    for queue, mine, moved in (("never", "restart", True), ("restart", "never", False)):
        world = world_of(teams(f"sluice.dev/consolidation: {queue}"))
        world.connect(gpus=(gpu(0), gpu(1)))
        fills, large = (world.submit("a", ask=small(60)) for _ in range(2))
        assert world.confirm(fills)
        assert world.confirm(large)
        world.apply(JOB.format(mine=mine))
        little = next(key for key in world.book.workloads.records if "little" in key)
        assert world.confirm(little)
        uuid = world.assignment(little).gpus[0].uuid
        if world.assignment(large).gpus[0].uuid == uuid:
            fills, large = large, fills
        assert world.release(fills, finished=True)
        world.submit("a", ask=WHOLE)
        assert (world.told(little) is Desired.STOP) is moved


JOB = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: Workload
metadata:
  name: little
  namespace: team-b
  annotations: {{sluice.dev/consolidation: {mine}}}
spec:
  queueName: q
  podSets:
  - name: main
    count: 1
    template:
      spec:
        containers:
        - name: c
          resources: {{limits: {{nvidia.com/gpu: 1, nvidia.com/gpumem: 20480, nvidia.com/gpucores: 20}}}}
"""


def test_an_unknown_permission_is_refused_by_its_name() -> None:
    with pytest.raises(ManifestError, match=r"sluice\.dev/consolidation.*restart"):
        world_of().apply(JOB.format(mine="sometimes"))
