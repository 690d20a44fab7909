"""Pods that the queue tells to be checkpointed, over a driver that does it, refuses, or whose processes other programs touch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodeagent.assembly.cluster import follow_checkpoints
from nodeagent.core.grants import events as ev
from nodeagent.core.kubelet.pod_documents import PodFacts
from nodeagent.core.kubelet.pod_limits import DefaultLimits
from nodeagent.ports.driver.checkpoint import CheckpointFailed, CheckpointState, CheckpointStep
from nodeagent.ports.kubelet import ContainerRequests, PodIdentity, RetryLater
from nodeagent.ports.ledger import ContainerRef, Spill
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.pods.checkpoints import PodCheckpoints
from nodeagent.shell.pods.limits import PlacedLimits
from nodeagent.shell.pods.node_sums import NodeSums
from nodeagent.shell.queue.capacity import CapacityReader, pods_of
from nodeagent.units import PodUid
from sluicecommon.hami.names import ResourceNames
from tests.unit.nodeagent.grants.spills_world import GIB, G, World

UID = PodUid("u-job-0")
PLACE = '{"node":"n","containers":{"main":[{"uuid":"GPU-0"}]},"workload":"default/job"}'
SAVE, RESTORE = "save 2026-11-22T10:00:00Z", "restore 2026-11-22T10:05:00Z"


def pod(told: str, place: str = PLACE) -> PodFacts:
    notes = {"sluice.dev/placement": place, **({"sluice.dev/checkpoint": told} if told else {})}
    return PodFacts(UID, UID, "default", "job-0", (("main", ()),), annotations=tuple(notes.items()))


class Lab:
    def __init__(self, world: World) -> None:
        self.world = world
        ref = ContainerRef(UID, "main", (), "default", "job-0")
        world.ledger[G] = replace(world.ledger[G], container=ref)
        world.start()
        self.again()

    def again(self) -> None:
        """A new daemon."""
        self.world.start()
        self.pods = PodCheckpoints(self.world.live, self.world.manager, self.world.defects.append)
        self.pods.again_s = 0.01

    def tell(self, told: str, until: Callable[[], bool] | None = None) -> tuple[str, str]:
        """The pod is told this; returns the answer once it is one, or once `until` is true."""
        return asyncio.run(self._tell(told, until))

    async def _tell(self, told: str, until: Callable[[], bool] | None) -> tuple[str, str]:
        self.pods.changed(pod(told))
        async with asyncio.timeout(5):
            while not (until() if until is not None else self.answer()[0] != "moving"):
                await asyncio.sleep(0.001)
        assert self.world.defects == []
        return self.answer()

    def answer(self) -> tuple[str, str]:
        found = self.pods.answers()[UID]
        return found.state, found.why

    def reported(self) -> list[str]:
        """The GPUs of the pod in the node's report."""
        records = [held.record for held in self.world.live().values()]
        return [gpu for one in pods_of(records, self.pods.answers()) for gpu, *_ in one.shares]


def test_there_and_back() -> None:
    lab = Lab(World())
    assert lab.reported() == ["GPU-0"]
    assert lab.tell(SAVE) == ("saved", "")
    assert (lab.world.record.spill, lab.world.record.paused) == (Spill.SPILLED, True)
    assert lab.reported() == []
    assert lab.pods.answers()[UID].told == SAVE
    assert lab.tell(RESTORE) == ("restored", "")
    assert (lab.world.record.spill, lab.world.record.paused) == (Spill.RESIDENT, False)
    assert lab.reported() == ["GPU-0"]


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (
            World(lacks="release 550"),
            "this node's driver makes no checkpoints of processes: release 550",
        ),
        (World(processes={}), "has no process with CUDA"),
        (World(host_bytes=40 * GIB), "checkpoint.host_memory_percent"),
        (World(cgroup_bytes=GIB), "would count in the cgroup"),
        (
            World(fails={(CheckpointStep.LOCK, 2): CheckpointFailed("process 2: no")}),
            "process 2: no",
        ),
    ],
    ids=["driver", "no process", "bound of the host", "cgroup", "lock"],
)
def test_what_cannot_be_is_refused_and_it_runs_on(world: World, why: str) -> None:
    lab = Lab(world)
    state, said = lab.tell(SAVE)
    assert state == "refused"
    assert why in said
    assert (world.record.spill, world.record.paused) == (Spill.RESIDENT, False)


@pytest.mark.parametrize("state", [CheckpointState.LOCKED, CheckpointState.CHECKPOINTED])
def test_a_process_that_another_program_has_checkpointed_is_left_to_it(
    state: CheckpointState,
) -> None:
    lab = Lab(World())
    lab.world.states[2] = state
    assert lab.tell(SAVE) == (
        "refused",
        f"process 2 is {state.value} already, by itself or another program, which has to restore it"
        " first",
    )
    assert lab.world.states == {1: CheckpointState.RUNNING, 2: state}
    assert lab.world.record.paused is False


def test_one_that_freed_its_memory_itself_has_next_to_nothing_copied() -> None:
    lab = Lab(World(processes={1: 300 << 20}))
    assert lab.tell(SAVE) == ("saved", "")
    assert sum(lab.world.record.spilled_bytes) == 300 << 20


def test_without_room_it_waits_and_says_for_what() -> None:
    lab = Lab(World())
    lab.tell(SAVE)
    lab.world.others_bytes = 70 * GIB
    state, why = lab.tell(RESTORE, lambda: bool(lab.answer()[1]))
    assert state == "moving"
    assert "30Gi are to be restored to GPU 0, which has 10Gi free" in why
    assert lab.world.record.spill is Spill.SPILLED
    lab.world.others_bytes = 0
    lab.again()
    assert lab.tell(RESTORE) == ("restored", "")


def test_a_new_daemon_knows_by_the_annotation_and_the_grant() -> None:
    lab = Lab(World())
    lab.tell(SAVE)
    lab.again()
    assert lab.pods.answers() == {}
    assert lab.tell(SAVE) == ("saved", "")


def test_one_that_is_brought_back_by_others_is_saved_no_more() -> None:
    lab = Lab(World())
    lab.tell(SAVE)
    asyncio.run(lab.world.manager.resume(G))
    assert lab.answer() == (
        "refused",
        "its memory is on its GPUs, and was not restored for the queue",
    )


def test_one_whose_container_has_ended_says_so_without_a_grant() -> None:
    lab = Lab(World())
    lab.tell(SAVE)
    lab.world.apply(ev.Released(G))
    assert lab.answer()[0] == "refused"
    [reported] = pods_of([], lab.pods.answers())
    assert (reported.uid, reported.shares) == (UID, ())
    assert reported.checkpoint is not None
    assert reported.checkpoint.state == "refused"


def test_one_that_is_away_for_too_long_is_refused_so_that_it_is_stopped() -> None:
    lab = Lab(World())
    assert not lab.pods.overdue(G)
    lab.tell(SAVE)
    assert lab.pods.overdue(G)
    assert lab.answer() == ("refused", "it was on the host for longer than checkpoint.longest_s")


@pytest.mark.parametrize("place", ["", "{}", "no JSON", PLACE.replace("default/job", "")])
def test_only_pods_that_the_queue_has_placed_are_told_anything(place: str) -> None:
    lab = Lab(World())
    lab.pods.changed(pod(SAVE, place))
    assert lab.pods.answers() == {}


def test_an_annotation_that_is_taken_away_changes_nothing() -> None:
    lab = Lab(World())
    lab.tell(SAVE)
    lab.pods.changed(pod(""))
    assert lab.pods.answers() == {}
    assert lab.world.record.spill is Spill.SPILLED


def test_no_container_starts_while_its_pod_is_checkpointed() -> None:
    limits = PlacedLimits(ResourceNames(), DefaultLimits())
    identity = PodIdentity(UID, "default", "job-0")

    async def ask(told: str) -> None:
        requests = ContainerRequests(identity, (), (), pod(told).annotations, None, "")
        await limits.limits(identity, "main", requests, 1)

    with pytest.raises(RetryLater, match="is checkpointed, and starts no container"):
        asyncio.run(ask(SAVE))
    asyncio.run(ask(RESTORE))


def test_the_node_reports_what_its_pods_are_told_and_ends_what_is_overdue() -> None:
    lab = Lab(World())
    world = lab.world
    cluster = SimpleNamespace(on_pod=[], on_gone=[])
    grants = SimpleNamespace(live=world.live, tenant_pids=set)
    gpus = SimpleNamespace(units=list, capacities=list)
    reader = CapacityReader(QueueSettings(), "n", grants, gpus, lambda: 1)  # type: ignore[arg-type]
    ended: list[str] = []
    world.manager.overdue = lambda grant: bool(ended.append(grant)) or True
    follow_checkpoints(
        cluster,  # type: ignore[arg-type]
        None,
        reader,
        world,  # type: ignore[arg-type]
        world.manager,
        world.defects.append,
    )

    async def told() -> None:
        for call in cluster.on_pod:
            call(pod(SAVE))
        while world.record.spill is not Spill.SPILLED or _state(reader) != "saved":
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(told(), 5))
    assert world.manager.overdue(G)
    assert (_state(reader), ended) == ("refused", []), "its controller has it stopped"
    for call in cluster.on_gone:
        call(UID)
    assert _state(reader) == ""
    assert world.manager.overdue(G)
    assert ended == [G], "it is the queue's own, or nobody's"


def _state(reader: CapacityReader) -> str:
    [one] = reader.capacity().pods
    return one.checkpoint.state if one.checkpoint is not None else ""


def test_the_sums_of_the_node_grow_by_what_kubernetes_counts_for_a_checkpointed_pod() -> None:
    lab = Lab(World())
    written: list[dict[str, str]] = []
    status = SimpleNamespace(node="n", on_node=[], facts=None)

    async def count(changes: dict[str, str], counted: str | None) -> str:
        written.append(changes)
        status.facts = SimpleNamespace(capacity={**status.facts.capacity, **changes}, counted=())
        return ""

    status.count = count
    status.facts = SimpleNamespace(capacity={"nvidia.com/gpumem": "80000"}, counted=())
    sums = NodeSums(status, lambda: {"nvidia.com/gpumem": 80_000}, lab.world.defects.append)
    sums.more, lab.pods.is_counted = lab.pods.uncounted, sums.is_written
    asked = (("cpu", "4"), ("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "30k"))
    first = replace(pod(SAVE), containers=(("init", asked), ("main", asked)), init_containers=1)

    async def told() -> None:
        lab.pods.changed(first)
        while lab.world.record.spill is not Spill.SPILLED or not lab.pods.uncounted():
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(told(), 5))
    assert lab.answer() == ("moving", "the sums in the Node's status are not written yet")
    asyncio.run(sums.write())
    assert written == [{"nvidia.com/gpumem": "110000"}]
    assert lab.answer() == ("saved", "")
    assert lab.tell(RESTORE) == ("restored", "")
    asyncio.run(sums.write())
    assert written[1:] == [{"nvidia.com/gpumem": "80000"}]
