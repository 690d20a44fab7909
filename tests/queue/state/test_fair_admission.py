"""Admission fair sharing in the service: read from manifests, shown, counted, and kept across restarts."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cli.commands.explain import turn_lines
from queuecontroller.scheduler.explain import explain
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.quota.decay import ONE
from queuecontroller.scheduler.quota.usage_history import UsageRecord
from queuecontroller.server.metrics.exposition import render
from queuecontroller.server.store import sqlite as store_sqlite
from queuecontroller.server.store.sqlite import SqliteStore
from queuecontroller.state.book import Book
from queuecontroller.state.records import Change, ObjectRecord
from queuecontroller.state.shell import Shell
from queuecontroller.state.status import Views
from tests.kit.queue import queues
from tests.queue.state.world import SECOND, World

SHARED = queues.manifests(
    """
kind: Configuration
apiVersion: config.kueue.x-k8s.io/v1beta2
admissionFairSharing:
  usageHalfLifeTime: 10m
  usageSamplingInterval: 5m
  resourceWeights: {nvidia.com/gpu: 2.0}
""",
    queues.flavor("gpus", queues.V1BETA2),
    *(queues.namespace(f"team-{team}") for team in "ab"),
    queues.cluster_queue(
        *("all", "gpus", {queues.GPU: 2}),
        "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}",
        version=queues.V1BETA2,
    ),
    queues.local_queue("q", "team-a", "all", version=queues.V1BETA2),
    queues.local_queue("q", "team-b", "all", ', fairSharing: {weight: "500m"}', queues.V1BETA2),
)
MINUTE = 60 * SECOND


@pytest.fixture
def world() -> World:
    """Two workloads of team-a run; one of each team waits."""
    made = World(SHARED)
    made.connect()
    made.submit("a", "a0")
    made.submit("a", "a1")
    made.submit("a", "a2")
    made.submit("b", "b0")
    return made


def local_queue(world: World, team: str) -> dict[str, object]:
    _, shown = Views(world.book).render(("LocalQueue", f"team-{team}", "q"), world.now_ns)
    status: dict[str, object] = shown["status"]["fairSharing"]
    return status


def test_the_team_that_used_less_goes_first(world: World) -> None:
    assert world.status("team-a/a2").position == 2
    assert world.status("team-b/b0").position == 1
    world.confirm("team-a/a0")
    world.release("team-a/a0", finished=True)
    assert world.status("team-b/b0").phase == "Admitted"
    assert world.status("team-a/a2").phase == "Pending"


def test_it_is_shown_as_kueue_shows_it_and_explained(world: World) -> None:
    history = world.book.engine.history
    assert history is not None
    world.now_ns += 20 * MINUTE
    world.settle()
    shown = local_queue(world, "a")
    # The last sampling moment is 2100 s. One GPU was admitted at 1001 s and one at 1002 s, at a
    # penalty of 1 - 2**-0.5 = 0.292893 each:
    # 2 - 0.707107 * (2**(-1099/600) + 2**(-1098/600)) = 1.602461; weighed twice.
    assert shown["admissionFairSharingStatus"] == {
        "consumedResources": {"nvidia.com/gpu": "1602m"},
        "lastUpdate": "1970-01-01T00:35:00.000000Z",
    }
    assert shown["usage"] == pytest.approx(3.204923, abs=1e-6)
    _, queue = Views(world.book).render(("ClusterQueue", "", "all"), world.now_ns)
    assert queue["status"]["localQueuesByUsage"] == [
        {"name": "team-b/q", "usage": 0.0},
        {"name": "team-a/q", "usage": shown["usage"]},
    ]
    found = explained(world, "team-a/a2")
    assert found["shortages"]
    assert found["turn"] == {
        "localQueue": "team-a/q",
        "usage": shown["usage"],
        "servedBefore": [{"name": "team-b/q", "usage": 0.0}],
    }
    assert turn_lines(found) == [
        f"order: LocalQueue team-a/q has used {shown['usage']} and is served after team-b/q (0.0)"
    ]
    first = explained(world, "team-b/b0")
    assert first["turn"]["servedBefore"] == []
    assert turn_lines(first)[0].endswith("has used 0.0 and is served first")


def explained(world: World, key: str) -> dict[str, Any]:
    status = world.status(WorkloadKey(key))
    workload = world.record(WorkloadKey(key)).workload
    return explain(
        world.book.engine,
        workload,
        status.cluster_queue,
        status.reason,
        status.message,
        world.now_ns,
        status.position - 1,
    ).as_dict()


def test_a_turn_that_has_not_come_is_said_with_what_was_used(world: World) -> None:
    world.step("hold", lambda book, now: book.hold(("ClusterQueue", "", "all"), False, now))
    for name in ("a0", "a1"):
        world.confirm(f"team-a/{name}")
        world.release(f"team-a/{name}", finished=True)
    world.step("resume", lambda book, now: book.resume(("ClusterQueue", "", "all"), now))
    (way,) = explained(world, "team-a/a2")["ways"]
    assert way.startswith("it became the head: there is quota for it, and 1 workload is before it")
    assert "its LocalQueue team-a/q has a recorded usage of 1.1" in way
    assert way.endswith("those served before it less: team-b/q 0)")


def test_it_is_counted_under_kueues_name(world: World) -> None:
    shell = Shell(world.book, world.store, _Standing(world.now_ns))
    text = render(shell, "1").decode()
    figure = (
        'kueue_local_queue_admission_fair_sharing_usage{name="q",namespace="team-%s",'
        'cluster_queue="all",replica_role="standalone"} %s\n'
    )
    # Two penalties of 1 - 2**-0.5 = 0.2929, the first a second old, times the weight 2.
    assert figure % ("b", "0") in text
    (value,) = (
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith(figure.split("{")[0]) and "team-a" in line
    )
    assert value == pytest.approx(4 * 0.292893, abs=0.01)


class _Standing:
    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns


def figures(book: Book, at_ns: int) -> dict[str, int]:
    history = book.engine.history
    assert history is not None
    return {queue: history.figure_at(queue, at_ns) for queue in sorted(history.queues())}


def test_a_restart_loses_nothing(world: World) -> None:
    for minutes in (0, 7, 30):
        world.now_ns += minutes * MINUTE
        world.settle()
        later_ns = world.now_ns + 13 * MINUTE
        before = figures(world.book, world.now_ns), figures(world.book, later_ns)
        assert before[0]["team-a/q"] > 0
        world.restart()
        world.settle()
        assert (figures(world.book, world.now_ns), figures(world.book, later_ns)) == before
        assert [one.queue for one in world.store.held.usage] == ["team-a/q"]


def test_a_crash_between_the_node_s_word_and_the_next_start_counts_the_time(world: World) -> None:
    """A workload that ended while no controller decided counts as in use until its end is
    reported."""
    world.confirm("team-a/a0")
    world.now_ns += 10 * MINUTE
    world.restart()
    world.connect(held=(world.held("team-a/a1"),), seen=(world.store.held.term, 0))
    history = world.book.engine.history
    assert history is not None
    consumed, at_ns = history.consumed("team-a/q")
    assert at_ns == world.now_ns, "the end of a0 was told just now"
    # Two GPUs all the time: more than one of them could have come to.
    assert consumed["nvidia.com/gpu"] > ONE


def test_other_settings_count_from_now_and_off_forgets(world: World) -> None:
    world.now_ns += 10 * MINUTE
    before = figures(world.book, world.now_ns)
    world.apply(SHARED.partition("---")[0].replace("10m", "1m"))
    assert figures(world.book, world.now_ns) == before
    faster = figures(world.book, world.now_ns + MINUTE)["team-a/q"]
    # Halfway to 2 GPUs of weight 2.
    assert faster == pytest.approx((before["team-a/q"] + 4 * 10**12 * ONE) / 2, rel=1e-9)
    world.step(
        "delete", lambda book, now: book.delete(("Configuration", "", "configuration"), "", now)
    )
    assert world.book.engine.history is None
    assert world.store.held.usage == []
    assert world.status("team-a/a2").position == 1, "by time again"
    world.apply(SHARED)
    assert figures(world.book, world.now_ns)["team-a/q"] == 4 * 10**12 * ONE
    assert [one.queue for one in world.store.held.usage] == ["team-a/q"]


def test_a_deleted_local_queue_is_forgotten_when_its_last_workload_ends(world: World) -> None:
    world.step("delete", lambda book, now: book.delete(("LocalQueue", "team-a", "q"), "", now))
    for name in ("a0", "a1"):
        assert "team-a/q" in [one.queue for one in world.store.held.usage]
        world.confirm(f"team-a/{name}")
        world.release(f"team-a/{name}", finished=True)
    assert [one.queue for one in world.store.held.usage] == ["team-b/q"]


# -- the database ---------------------------------------------------------------------------------


def test_histories_are_written_read_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    store = SqliteStore(path)
    record = UsageRecord("team-a/q", 5, {"memory": (2**63 - 1) * ONE + 1})
    gone = UsageRecord("team-b/q", 5, {})
    store.commit(Change("x", usage={"team-a/q": record, "team-b/q": gone}))
    assert store.load().usage == [record, gone]
    store.commit(Change("x", usage={"team-b/q": None}))
    store.close()
    store = SqliteStore(path)
    assert store.load().usage == [record]
    store.close()


def test_a_database_of_the_first_schema_gets_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "queue.sqlite"
    with monkeypatch.context() as earlier:
        earlier.setattr(store_sqlite, "SCHEMA_VERSION", 1)
        earlier.setattr(store_sqlite, "_STEPS", store_sqlite._STEPS[:1])
        store = SqliteStore(path)
        held = ObjectRecord("Namespace", "", "team-a", 1, "{}")
        store.commit(Change("x", objects={("Namespace", "", "team-a"): held}))
        store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    store = SqliteStore(path)
    assert (store.load().objects, store.load().usage) == ([held], [])
    store.commit(Change("x", usage={"q": UsageRecord("q", 1, {})}))
    store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
