"""GPU requests of pods, from the manifest to the decision a node gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import Wire as NodeWire
from nodeagent.adapters.queue import wire as queue_wire
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.queue import Submission
from nodeagent.units import Bytes, Ppm
from nodeagent.units import SharePolicy as NodePolicy
from queuecontroller.scheduler.model.objects import PodSet, WorkloadKey
from queuecontroller.scheduler.placement.capacity import MigProfile
from queuecontroller.scheduler.placement.request import AskError
from queuecontroller.server.api.messages import read_ask, read_shares, write_ask, write_decision
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.state.objects.asks import ask_of, describe, requests_of
from queuecontroller.state.records import Desired, GpuAsk, GpuShare, SharePolicy
from sluicecommon.reader import ManifestError
from tests.queue.state.world import GIB, TEAMS, World, gpu

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: team-a
  labels: {{kueue.x-k8s.io/queue-name: q}}
  annotations: {{{annotations}}}
spec:
  containers:
  - name: main
    resources: {{requests: {{{requests}}}}}
"""
COVERED = ("nvidia.com/mig-1g.10gb", "nvidia.com/gpumem", "nvidia.com/gpucores")
MIG_TEAMS = TEAMS.replace("[nvidia.com/gpu]", f"[nvidia.com/gpu, {', '.join(COVERED)}]").replace(
    "nominalQuota: 2}]",
    "nominalQuota: 4}"
    + "".join(f", {{name: {name}, nominalQuota: 100k}}" for name in COVERED)
    + "]",
)


def pod(world: World, name: str, requests: str, annotations: str = "") -> WorkloadKey:
    world.apply(POD.format(name=name, requests=requests, annotations=annotations))
    return WorkloadKey(f"team-a/pod-{name}")


@pytest.fixture
def wire() -> Wire:
    return Wire(find_descriptors())


@pytest.mark.parametrize(
    ("requests", "annotations", "ask"),
    [
        ({"nvidia.com/gpu": 1}, {}, GpuAsk(1, None, 1_000_000, 1_000_000)),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, {}, GpuAsk(1, None, 1_000_000, 300_000)),
        (
            {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 100, "nvidia.com/gpumem": 1024},
            {},
            GpuAsk(2, GIB, None, 1_000_000, SharePolicy.EXCLUSIVE),
        ),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 0},
            {},
            GpuAsk(1, None, 1_000_000, 1_000_000, SharePolicy.ELASTIC),
        ),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30},
            {"sluice.dev/share-policy": "elastic"},
            GpuAsk(1, None, 1_000_000, 300_000, SharePolicy.ELASTIC),
        ),
        (
            {"nvidia.com/gpu": 1},
            {"sluice.dev/share-policy": "exclusive"},
            GpuAsk(1, None, 1_000_000, 1_000_000, SharePolicy.EXCLUSIVE),
        ),
        (
            {"nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-2g.20gb": 2},
            {},
            GpuAsk(3, None, 1_000_000, mig=("1g.10gb+me", "2g.20gb", "2g.20gb")),
        ),
        ({"cpu": 1000}, {}, None),
    ],
)
def test_requests_and_annotations_are_an_ask(
    requests: dict[str, int], annotations: dict[str, str], ask: GpuAsk | None
) -> None:
    pod_set = PodSet("main", 1, requests, containers=(requests,), annotations=annotations)
    assert ask_of(pod_set) == ask
    if ask is not None and ask.mig:
        assert requests_of(ask) == requests
        assert describe(ask) == "1 MIG instance 1g.10gb+me and 2 MIG instances 2g.20gb"


@pytest.mark.parametrize(
    ("requests", "annotations", "names"),
    [
        ("nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 1", "", "shares of GPUs or MIG instances"),
        ("nvidia.com/gpu: 1", "sluice.dev/share-policy: alone", "hard, elastic, exclusive"),
        ("nvidia.com/gpu: 1", "nvidia.com/numa-bind: maybe", "must be true or false, got 'maybe'"),
        ("nvidia.com/mig-1g.10gb: 1", "sluice.dev/share-policy: exclusive", "not for MIG"),
    ],
)
def test_an_ask_that_cannot_be_is_refused_when_it_comes(
    requests: str, annotations: str, names: str
) -> None:
    world = World(MIG_TEAMS)
    with pytest.raises(ManifestError, match=names):
        pod(world, "one", requests, annotations)
    assert not world.book.workloads.records


def test_an_owner_who_wants_a_gpu_alone_gets_it_and_keeps_it() -> None:
    world = World(MIG_TEAMS)
    world.connect(gpus=(gpu(0), gpu(1)))
    share = "nvidia.com/gpu: 1, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 10"
    first = pod(world, "first", share)
    alone = pod(world, "alone", share, "sluice.dev/share-policy: exclusive")
    assert world.assignment(alone).ask.policy is SharePolicy.EXCLUSIVE
    assert world.assignment(first).gpus[0].uuid != world.assignment(alone).gpus[0].uuid
    late = pod(world, "late", "nvidia.com/gpu: 2, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 10")
    assert world.told(late) is None
    assert "is in exclusive use" in world.status(late).message
    second = pod(world, "second", share, "sluice.dev/share-policy: exclusive")
    assert "exclusive" in world.status(second).message
    for one in (first, alone):
        world.confirm(one)
    world.release(alone, finished=True)
    assert (world.told(late), world.told(second)) == (Desired.RUN, None)


def test_instances_are_given_at_their_places_and_come_back(wire: Wire) -> None:
    profiles = tuple(
        MigProfile(name, 7, 7, memory * GIB) for name, memory in (("1g.10gb", 10), ("3g.40gb", 40))
    )
    world = World(MIG_TEAMS)
    world.connect(gpus=(gpu(0, mig_enabled=True, mig_profiles=profiles),))
    first = pod(world, "first", "nvidia.com/mig-1g.10gb: 2")
    shares = world.assignment(first).gpus
    assert [(s.mig, s.mig_start, s.mig_size) for s in shares] == [
        ("1g.10gb", 6, 1),
        ("1g.10gb", 5, 1),
    ]
    assert {s.memory_bytes for s in shares} == {10 * GIB}
    message = write_decision(wire, world.assignment(first), "", 30, False, 1)
    assert read_shares(message.gpus) == shares
    assert read_ask(message.ask) == world.record(first).asks["main"]
    world.restart()
    world.connect(
        gpus=(gpu(0, mig_enabled=True, mig_profiles=profiles),), held=(world.held(first),)
    )
    rest = pod(world, "rest", "nvidia.com/mig-1g.10gb: 5")
    assert {s.mig_start for s in world.assignment(rest).gpus} == {0, 1, 2, 3, 4}
    none = pod(world, "none", "nvidia.com/gpu: 1")
    assert "is in MIG mode and gives instances only" in world.status(none).message


def test_policies_and_places_survive_the_wire(wire: Wire) -> None:
    for policy in SharePolicy:
        ask = GpuAsk(2, GIB, None, 500_000, policy)
        assert read_ask(write_ask(wire, ask)) == ask
    mig = GpuShare("x", GIB, 0, "1g.10gb", 3, 1)
    assert mig == replace(GpuShare("x", GIB, 0), mig="1g.10gb", mig_start=3, mig_size=1)


def test_an_error_of_an_annotation_is_an_error_of_the_ask() -> None:
    broken: dict[str, Any] = {"annotations": {"hami.io/gpu-scheduler-policy": "best"}}
    with pytest.raises(
        AskError, match="must be one of binpack, spread, topology-aware, mutex, numa"
    ):
        ask_of(PodSet("main", 1, {}, containers=({"nvidia.com/gpu": 1},), **broken))


@pytest.mark.parametrize("policy", list(NodePolicy))
def test_the_node_asks_for_what_sluice_run_asked_and_obeys_the_same(
    wire: Wire, policy: NodePolicy
) -> None:
    node_wire = NodeWire(native.locate().wire_descriptors)
    grant = GrantAsk(
        gpus=1, memory=MemoryAsk(amount_bytes=Bytes(GIB)), share_ppm=Ppm(1_000_000), policy=policy
    )
    sent = queue_wire.write_submission(node_wire, Submission("n", "q", grant, "me", "t"), "n1")
    asked = read_ask(wire.GpuAsk.FromString(sent.ask.SerializeToString()))
    assert str(asked.policy) == str(policy)
    world = World()
    world.connect()
    told = replace(world.assignment(world.submit()), ask=asked)
    message = write_decision(wire, told, "", 30, False, 1).SerializeToString()
    obeyed = queue_wire.read_decision(node_wire.message("Decision").FromString(message))
    assert obeyed.policy is policy


TWO = """
apiVersion: batch/v1
kind: Job
metadata: {name: two, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  parallelism: 2
  completions: 2
  template: {spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""


@pytest.mark.parametrize(("there", "nodes"), [((1, 1), 2), ((2, 0), 1)])
def test_a_decision_has_the_number_of_nodes_of_its_workload(
    wire: Wire, there: tuple[int, int], nodes: int
) -> None:
    """The node knows from it that the grant is one of a gang."""
    world = World()
    for number, gpus in enumerate(there):
        world.connect(f"n{number}", tuple(gpu(10 * number + index) for index in range(gpus)))
    world.apply(TWO)
    key = WorkloadKey("team-a/job-two")
    pods = world.book.nodes.of_workload(key)
    assert len(pods) == 2
    assert len({one.node for one in pods.values()}) == nodes
    assert world.book.nodes.nodes_of(key) == nodes
    node_wire = NodeWire(native.locate().wire_descriptors)
    for one in pods.values():
        message = write_decision(wire, one, "", 30, False, nodes).SerializeToString()
        obeyed = queue_wire.read_decision(node_wire.message("Decision").FromString(message))
        assert obeyed.nodes == nodes
