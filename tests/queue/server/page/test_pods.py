"""Pods that Kubernetes runs are shown as holders of GPUs, by name, with what they hold and use."""

from __future__ import annotations

from typing import Any

from queuecontroller.cluster.podplacement.gpu_pods import seen
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.capacity import NodeCapacity, PodGpus, PodShare
from queuecontroller.scheduler.placement.stock import Share
from queuecontroller.server.metrics.exposition import render
from queuecontroller.server.page.questions import manifests_of
from queuecontroller.state.nodes.nodes_room import NO_CORDON, Cordon
from queuecontroller.state.status import Views
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.server.page.shells import drawn, picture_of, shell_of
from tests.queue.state.world import GIB, World, gpu

UUID = gpu(0).uuid
SHARE = Share(UUID, 4 * GIB, 300_000)
FOREIGN_BYTES = 2 * GIB


def document(uid: str, place: PodPlace, **status: Any) -> dict[str, Any]:
    head = {"uid": uid, "namespace": "team-a", "name": f"pod-{uid}"}
    head["annotations"] = {PLACEMENT: place.text()}
    return {"metadata": head, "spec": {"nodeName": place.node}, "status": status}


def report(world: World, *uids: str) -> None:
    """The node reports these pods, and 2 GiB in use by programs in no grant."""
    pods = tuple(
        PodGpus(uid, "team-a", f"pod-{uid}", (PodShare(UUID, SHARE.memory_bytes, SHARE.share_ppm),))
        for uid in uids
    )
    card = gpu(
        0,
        outside_memory_bytes=len(uids) * SHARE.memory_bytes + FOREIGN_BYTES,
        outside_share_ppm=len(uids) * SHARE.share_ppm,
        outside_slots=len(uids),
    )
    capacity = NodeCapacity((card,), pods=pods)
    number = next(world._sequence)
    world.step(
        "report",
        lambda book, now: book.desk.report("n1", world.epochs["n1"], number, capacity, now),
    )
    world.settle()


def test_a_pod_is_shown_by_name_from_its_binding_to_its_end() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    picture = picture_of(shell_of(world))
    pods = world.book.nodes_room.pods
    drawn(picture, 0)
    place = PodPlace("n1", {"main": (SHARE,)})
    pods.take(document("u1", place))
    shown = drawn(picture, 2)
    work = shown["Work", "team-a", "/u1"]
    assert (work["pod"], work["state"], work["policy"]) == ("pod-u1", "starting", "hard")
    assert work["gpus"] == [[UUID, SHARE.memory_bytes, 0.3, ""]]
    assert "workload" not in work

    report(world, "u1")
    world.book.nodes.nodes["n1"].pod_usage = {"u1": (GIB, 0.25)}
    shown = drawn(picture, 4)
    work, card = shown["Work", "team-a", "/u1"], shown["Gpu", "", UUID]
    assert (work["state"], work["used"], work["achieved"]) == ("running", GIB, 0.25)
    assert (card["given"], card["share"], card["grants"]) == (SHARE.memory_bytes, 0.3, 1)
    assert card["outside"] == FOREIGN_BYTES, "the pod is no use outside the queue"
    assert "outsideShare" not in card
    text = render(shell_of(world), "1").decode()
    wanted = {"given": SHARE.memory_bytes, "outside": FOREIGN_BYTES}
    for state, memory in wanted.items():
        name = f'sluice_queue_gpu_memory_bytes{{node="n1",state="{state}"}}'
        assert f"{name} {memory}\n" in text
    assert 'sluice_queue_pods{state="running"} 1\n' in text
    _, node = Views(world.book).render(("Node", "", "n1"), world.now_ns)
    [found] = node["status"]["gpus"]
    assert found["givenMemoryBytes"] == SHARE.memory_bytes
    assert found["outsideMemoryBytes"] == FOREIGN_BYTES
    assert [one["pod"] for one in node["status"]["pods"]] == ["pod-u1"]
    picture.sample(1000.0)
    [series] = [picture.history.read(UUID, 1000.0)["series"]["given"]]
    assert series[-1] == round(SHARE.memory_bytes / gpu(0).memory_bytes, 3)

    pods.drop("u1")
    assert ("Work", "team-a", "/u1") in drawn(picture, 6), "its node still reports it"
    report(world)
    shown = drawn(picture, 8)
    assert ("Work", "team-a", "/u1") not in shown
    assert shown["Gpu", "", UUID]["given"] == 0


def test_a_queued_pod_is_shown_with_its_workload_and_counted_once() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    picture = picture_of(shell_of(world))
    pods = world.book.nodes_room.pods
    key = WorkloadKey("team-a/job")
    place = PodPlace("n1", {"main": (SHARE,)}, workload=key)
    pods.reserve(key, {"main": [place, place]})
    shown = drawn(picture, 0)
    works = {name: one for (kind, _, name), one in shown.items() if kind == "Work"}
    assert {one["state"] for one in works.values()} == {"reserved"}
    assert len(works) == 2
    assert all(one["workload"] == key for one in works.values())

    pods.take(document("u1", place))
    report(world, "u1")
    shown = drawn(picture, 2)
    works = {name: one for (kind, _, name), one in shown.items() if kind == "Work"}
    assert works["/u1"]["state"] == "running"
    assert works["/u1"]["workload"] == key
    assert sorted(one["state"] for one in works.values()) == ["reserved", "running"]
    assert shown["Gpu", "", UUID]["given"] == 2 * SHARE.memory_bytes
    assert shown["Gpu", "", UUID]["grants"] == 2

    pods.reserved.release(key)
    shown = drawn(picture, 4)
    assert shown["Gpu", "", UUID]["given"] == SHARE.memory_bytes, "the pod runs without its quota"


def test_a_pod_of_a_container_runtime_alone_is_shown_as_its_node_reports_it() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    picture = picture_of(shell_of(world))
    report(world, "u1", "u2")
    shown = drawn(picture, 0)
    works = [one["pod"] for (kind, _, _), one in shown.items() if kind == "Work"]
    assert sorted(works) == ["pod-u1", "pod-u2"]
    assert shown["Gpu", "", UUID]["given"] == 2 * SHARE.memory_bytes
    assert shown["Gpu", "", UUID]["outside"] == FOREIGN_BYTES


def test_a_pod_says_since_when_it_runs() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    picture = picture_of(shell_of(world))
    place = PodPlace("n1", {"main": (SHARE,)})
    world.book.nodes_room.pods.take(document("u1", place, startTime="2026-11-22T10:00:00Z"))
    assert drawn(picture, 0)["Work", "team-a", "/u1"]["since"] == 1_795_341_600


def test_cordons_of_the_node_object_are_shown_and_simulated() -> None:
    world = World()
    world.connect("n1", (gpu(0), gpu(1)))
    world.connect("n2", (gpu(5),))
    shell = shell_of(world)
    picture = picture_of(shell)
    room = world.book.nodes_room
    shown = drawn(picture, 0)
    assert "cordoned" not in shown["Node", "", "n1"]

    room.cordon("n1", Cordon(whole=True))
    room.cordon("n2", Cordon(gpus=frozenset({gpu(5).uuid})))
    shown = drawn(picture, 2)
    assert shown["Node", "", "n1"]["cordoned"] is True
    assert shown["Gpu", "", gpu(0).uuid]["health"] == "healthy"
    assert "cordoned" not in shown["Node", "", "n2"]
    assert shown["Gpu", "", gpu(5).uuid]["health"] == "cordoned"
    nodes = {one["metadata"]["name"]: one for one in manifests_of(shell) if one["kind"] == "Node"}
    assert nodes["n1"]["spec"]["unschedulable"] is True
    assert '"health":"cordoned"' in nodes["n2"]["metadata"]["annotations"].popitem()[1]

    room.cordon("n1", NO_CORDON)
    assert "cordoned" not in drawn(picture, 4)["Node", "", "n1"]


def pending(name: str, reason: str, uid: str = "p1") -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": "0/50 nodes",
    }
    head = {"uid": uid, "namespace": "team-a", "name": name, "creationTimestamp": "2026-11-22T10:00:00Z"}  # fmt: skip
    limits = {"nvidia.com/gpu": "1"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    whole = {
        "metadata": head,
        "spec": spec,
        "status": {"conditions": [condition, {"type": "Ready"}]},
    }
    found = seen(whole).document
    assert found is not None
    return dict(found)


def test_a_pod_that_fits_on_no_node_is_shown_with_the_schedulers_reason() -> None:
    world = World()
    world.connect("n1", (gpu(0),))
    picture = picture_of(shell_of(world))
    pods = world.book.nodes_room.pods
    pods.take(pending("gated", "SchedulingGated", "p0"))
    pods.take(pending("large", "Unschedulable"))
    shown = drawn(picture, 0)
    assert {key for key in shown if key[0] == "Pod"} == {("Pod", "team-a", "large")}
    assert shown["Pod", "team-a", "large"] == {"created": 1_795_341_600, "message": "0/50 nodes"}

    bound = document("p1", PodPlace("n1", {"main": (SHARE,)}))
    pods.take(bound)
    shown = drawn(picture, 2)
    assert not [key for key in shown if key[0] == "Pod"], "it has a node"
    assert ("Work", "team-a", "/p1") in shown
    pods.take(pending("later", "Unschedulable", "p2"))
    assert ("Pod", "team-a", "later") in drawn(picture, 4)
    pods.drop("p2")
    assert ("Pod", "team-a", "later") not in drawn(picture, 6)
