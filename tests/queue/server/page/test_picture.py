"""The picture is the book: after any steps it shows what a picture made anew shows, and each figure means what it says."""

from __future__ import annotations

import json
import random
from typing import Any

from queuecontroller.cli.simulate.run import Player
from queuecontroller.kueueapi.manifests.documents import load
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.capacity import MigProfile
from queuecontroller.scheduler.placement.mig import Span
from queuecontroller.server.page.picture import MAX_EVENTS, Picture
from queuecontroller.server.page.questions import compared, explained, manifests_of, replaced
from queuecontroller.server.page.what_if import documents_list
from queuecontroller.state.nodes.sessions import MAX_DETECTIONS, Detection
from queuecontroller.state.records import Change, Event, GpuAsk
from sluicecommon.page.board import Sight
from tests.queue.server.page.shells import ALL, drawn, picture_of, shell_of
from tests.queue.state.world import GIB, SECOND, TEAMS, World, gpu


def hear(picture: Picture, world: World) -> None:
    touched, _ = world.book.journal.take_news()
    picture.changed(Change(""), touched)


def test_after_any_steps_it_shows_what_one_made_anew_shows() -> None:
    for seed in range(5):
        chance = random.Random(seed)
        world = World()
        world.connect()
        shell = shell_of(world)
        kept = picture_of(shell)
        drawn(kept, 0)
        live: list[WorkloadKey] = []
        for step in range(1, 40):
            what = chance.randrange(6)
            if what <= 2:
                live.append(world.submit(chance.choice("ab"), name=f"j{step}"))
            elif what == 3 and live:
                one = live.pop(chance.randrange(len(live)))
                namespace, _, name = one.partition("/")
                world.step(
                    "delete",
                    lambda b, now, n=namespace, m=name: b.delete(("Workload", n, m), "", now),  # type: ignore[misc]
                )
                world.settle()
            elif what == 4:
                world.connect("n2", (gpu(5), gpu(6)))
            else:
                world.pass_time(3)
            hear(kept, world)
            drawn(kept, step * 2.0)
        # One round more than a second later: leases, places in line.
        found = drawn(kept, 1_000.0)
        assert found == drawn(picture_of(shell), 1_000.0), seed


def test_a_viewer_of_one_namespace_sees_nothing_of_others_nor_of_the_cluster() -> None:
    world = World()
    world.connect()
    for team in "aabb":
        world.submit(team)
    picture = picture_of(shell_of(world))
    drawn(picture, 0)
    mine = Sight(frozenset(), frozenset({"team-a"}))
    seen = {one.key for one in picture.board.everything(mine)}
    assert {key[0] for key in seen} == {"Workload", "Work", "LocalQueue"}
    assert {key[1] for key in seen} == {"team-a"}
    assert not list(picture.board.everything(Sight()))


def test_quota_rows_say_what_is_used_borrowed_and_lent() -> None:
    world = World()
    world.connect(gpus=tuple(gpu(i) for i in range(4)))
    for _ in range(3):
        world.submit("a")
    picture = picture_of(shell_of(world))
    found = drawn(picture, 0)
    (a,) = found["ClusterQueue", "", "a"]["quota"]
    (b,) = found["ClusterQueue", "", "b"]["quota"]
    assert a == ["gpus", "nvidia.com/gpu", 2, 3, 1, 0, None, None]
    assert b == ["gpus", "nvidia.com/gpu", 2, 0, 0, 1, None, None]
    (cohort,) = found["Cohort", "", "both"]["quota"]
    assert cohort == ["gpus", "nvidia.com/gpu", 4, 3, 0]
    assert found["Cohort", "", "both"]["implicit"] is True
    assert found["LocalQueue", "team-a", "q"]["admitted"] == 3
    gpus = [fields for key, fields in found.items() if key[0] == "Gpu"]
    assert sum(one["given"] for one in gpus) == 3 * 8 * GIB
    assert sum(one["share"] for one in gpus) == 1.5
    work = [fields for key, fields in found.items() if key[0] == "Work"]
    assert {one["state"] for one in work} == {"decided"}


def test_a_node_that_is_silent_and_a_gpu_that_is_gone_are_seen() -> None:
    world = World()
    world.connect()
    picture = picture_of(shell_of(world))
    assert drawn(picture, 0)["Node", "", "n1"]["state"] == "Ready"
    world.report(gpus=(gpu(0, health="lost"),))
    found = drawn(picture, 2)
    assert [key[2] for key in found if key[0] == "Gpu"] == ["GPU-0"]
    assert found["Gpu", "", "GPU-0"]["health"] == "lost"
    world.pass_time(20)
    assert drawn(picture, 4)["Node", "", "n1"]["state"] == "Away"
    world.pass_time(100)
    assert drawn(picture, 6)["Node", "", "n1"]["state"] == "Lost"


def test_what_nodes_noticed_is_shown_with_its_evidence_and_bounded() -> None:
    world = World()
    world.connect()
    picture = picture_of(shell_of(world))
    drawn(picture, 0)
    node = world.book.nodes.nodes["n1"]

    def noticed(number: int, evidence: str = '{"pid": 7}') -> Detection:
        return Detection(number, 100, "hook_gap", "warning", "x", WorkloadKey("a/b"), evidence)

    node.record_detections(
        [noticed(1), noticed(1, '{"pid": 8}'), noticed(2, "[1"), noticed(3, "[" * 1900)]
    )
    found = drawn(picture, 2)
    assert found["Detection", "", "n1/000000000001"]["evidence"] == {"pid": "7"}
    assert "evidence" not in found["Detection", "", "n1/000000000002"], "no JSON is no evidence"
    node.record_detections(noticed(number) for number in range(4, 104))
    shown = [key for key in drawn(picture, 4) if key[0] == "Detection"]
    assert len(shown) == MAX_DETECTIONS
    assert max(shown)[2] == "n1/000000000103"
    world.connect()
    assert not [key for key in drawn(picture, 6) if key[0] == "Detection"], "told again if at all"


def test_events_are_bounded_and_those_of_a_workload_are_its_namespaces() -> None:
    world = World()
    picture = picture_of(shell_of(world))
    for number in range(MAX_EVENTS + 10):
        subject = "Workload/team-a/x" if number % 2 else "Node/n1"
        picture.changed(Change("", events=[Event(1, SECOND, "Created", subject, "x" * 5000)]), ())
    events = [one for one in picture.board.everything(ALL) if one.key[0] == "Event"]
    assert len(events) == MAX_EVENTS
    assert {one.key[1] for one in events} == {"", "team-a"}
    assert max(len((one.fields or {})["text"]) for one in events) <= 600


def test_the_history_has_what_gpus_did() -> None:
    world = World()
    world.connect(gpus=(gpu(0, utilization_ratio=0.25, used_memory_bytes=20 * GIB),))
    picture = picture_of(shell_of(world))
    picture.sample(0)
    series = picture.history.read("GPU-0", 0)["series"]
    assert {name: values[-1] for name, values in series.items()} == {
        "utilization": 0.25,
        "used": 0.25,
        "given": 0.0,
    }
    world.connect(gpus=(gpu(7),))
    picture.sample(60)
    assert picture.history.read("GPU-0", 60)["series"] == {}


def test_an_explanation_is_the_engines_own_words() -> None:
    world = World()
    world.connect()
    keys = [world.submit("a") for _ in range(6)]
    shell = shell_of(world)
    namespace, _, name = keys[-1].partition("/")
    found = explained(shell, namespace, name)
    status = world.status(keys[-1])
    assert (found["reason"], found["message"]) == (status.reason, status.message)
    assert found["position"] == status.position
    assert found["explanation"]["ways"]
    assert [one["kind"] for one in found["events"]] == ["Created"]


def test_what_is_played_is_the_queue_as_it_stands() -> None:
    world = World()
    world.connect()
    for _ in range(3):
        world.submit("a")
    documents = manifests_of(shell_of(world))
    kinds = [one["kind"] for one in documents]
    assert (kinds.count("Workload"), kinds.count("Node")) == (3, 1)
    changed = {
        "kind": "ClusterQueue",
        "metadata": {"name": "a"},
        "spec": {"namespaceSelector": {}},
    }
    after = replaced(documents, [changed, {"kind": "Node", "metadata": {"name": "new"}}])
    assert len(after) == len(documents) + 1
    assert changed in after


def played(world: World) -> dict[str, Any]:
    """Report of a simulation of the page's own objects, as `simulate` plays it."""
    found = load({"played": json.dumps(documents_list(manifests_of(shell_of(world))))})
    assert found.problems == []
    player = Player(found, [], False, [])
    player.run()
    return player.report()


def test_what_is_played_is_the_very_ask_and_the_very_gpus() -> None:
    """To the byte, of one GPU by its name, on one node, and in MIG instances where they are."""
    world = World(TEAMS.replace("nominalQuota: 2", "nominalQuota: 20"))
    spans = tuple(Span(at, 1) for at in range(2))
    mig = gpu(2, mig_enabled=True, mig_profiles=(MigProfile("1g.10gb", 2, 2, 10 * GIB, spans),))
    world.connect(gpus=(gpu(0), gpu(1, outside_memory_bytes=79 * GIB), mig))
    exact = GpuAsk(memory_bytes=40 * GIB, share_ppm=333_333)
    fits = [world.submit("a", ask=exact) for _ in range(2)]
    late = world.submit("a", ask=GpuAsk(memory_bytes=1))
    elsewhere = world.submit("a", ask=GpuAsk(memory_bytes=2 * GIB, gpu_uuids=("GPU-1",)))
    slices = [world.submit("a", ask=GpuAsk(memory_ppm=1_000_000, mig=("1g.10gb",))) for _ in "123"]
    report = played(world)
    admitted = set(report["admitted"])
    every = (*fits, late, elsewhere, *slices)
    real = {key for key in every if world.book.nodes.of_workload(key)}
    assert admitted == real == {*fits, *slices[:2], late}


def test_two_reports_compared_say_who_starts_and_who_stops() -> None:
    before = {"admitted": ["a", "b"], "pending": {"c": "why", "d": "old"}}
    after = {"admitted": ["b", "c"], "pending": {"a": "no quota", "d": "new"}}
    found = compared(before, after)
    assert found["starts"] == ["c"]
    assert found["stops"] == [{"name": "a", "why": "no quota"}]
    assert found["stillWaits"] == [{"name": "d", "before": "old", "after": "new"}]
