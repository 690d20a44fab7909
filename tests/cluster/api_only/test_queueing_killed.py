"""Leaders are killed under a stream of Jobs: no workload is admitted twice or lost, and the quota is exact, by the API's own objects.

They are killed, stopped past their lease and let go on, and cut off from the API server, so that what they wrote arrives when
another has long been leading. SLUICE_KILLS=200 for the full run."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import OBJECTS
from queuecontroller.cluster.cache.kinds import WORKLOADS as WORKLOADS_KIND
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache, pruned
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.leaders import KINDS, SHORT_LEASE_S, Way, end_leader
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    WORKLOADS,
    Replica,
    apply,
    define,
    door,
    finish,
    is_true,
    job,
    leader_of,
    of_kueue,
    quota,
    workload_of,
)
from tests.kit.node import until

__all__ = ["control_plane"]
KILLS = int(os.environ.get("SLUICE_KILLS", "20"))
REPLICAS = 3
"""One leads, one is ready, one may be starting still."""
JOBS_KEPT = 30
"""Finished ones: the test lists all of them many times a second."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 + 15 * KILLS)]
ROOM = 4
RUNS_S = 0.3
"""How long a Job runs: the test plays its pods."""


class Watched:
    """Watches the Jobs as any client would, and plays their pods."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.starts: dict[str, int] = {}
        self.done: set[str] = set()
        self.removed: set[str] = set()
        self.wrong: list[str] = []
        self.most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _look(self) -> None:
        since: dict[str, float] = {}
        try:
            while not self._ended.is_set():
                self.recount()
                for one in self.plane.api.get(JOBS)["items"]:
                    name = one["metadata"]["name"]
                    if one["spec"].get("suspend"):
                        if name in since and name not in self.done:
                            self.wrong.append(f"{name} was stopped")
                            del since[name]
                        continue
                    if name not in since:
                        since[name] = time.monotonic()
                        self.starts[name] = self.starts.get(name, 0) + 1
                    elif name not in self.done and time.monotonic() - since[name] > RUNS_S:
                        finish(self.plane, name)
                        self.done.add(name)
                self.remove()
                time.sleep(0.02)
        except Exception as error:
            self.wrong.append(repr(error))

    def remove(self) -> None:
        over = sorted(self.done - self.removed)
        for name in over[:-JOBS_KEPT]:
            if is_true(workload_of(self.plane, name), "Finished"):
                self.plane.api.delete(f"{JOBS}/{name}")
                self.removed.add(name)

    def recount(self) -> None:
        """One list is one moment: what it says is held must fit."""
        now = held(self.plane.api.get(WORKLOADS)["items"])
        self.most = max(self.most, now)
        if now > ROOM:
            self.wrong.append(f"{now} of {ROOM} are held")


def standing(plane: ControlPlane) -> list[str]:
    """Faults in a book that is built now from the API server's objects, as the next leader builds
    its own."""
    world = ObjectCache()
    for kind in (*OBJECTS, WORKLOADS_KIND):
        for one in plane.api.get(kind.path())["items"]:
            world.take(kind, pruned(one))
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), time.time_ns())
    Mirror(book, world).begin(time.time_ns())
    holders = book.engine.cache.queues["stream"].workloads.values()
    in_book = sum(sum(one.usage.values()) for one in holders) // 1000
    in_api = held(list(world.all_of(WORKLOADS_KIND)))
    found = book.contradictions()
    if in_book != in_api or in_api > ROOM:
        found.append(f"{in_book} are held by the book, {in_api} by the objects, of {ROOM}")
    return found


def held(workloads: list[Any]) -> int:
    """CPUs, by the objects' own words."""
    usages = [
        one["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
        for one in workloads
        if (one.get("status") or {}).get("admission") and not is_true(one, "Finished")
    ]
    return sum(int(one["cpu"]) for one in usages)


def test_leaders_are_killed_under_a_stream_of_jobs(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    define(control_plane)
    apply(
        control_plane,
        of_kueue("ResourceFlavor", "plain", {}),
        quota("stream", ROOM),
        door("stream", "stream"),
    )
    chance = random.Random(17)
    lease = f"kubernetes.leader_lease_s={SHORT_LEASE_S:g}"
    port = str(control_plane.ports["kube-apiserver"])
    ways = [Way(int(port)) for _ in range(REPLICAS)]
    replicas = [
        Replica(
            control_plane,
            tmp_path / f"{number}.log",
            [lease],
            control_plane.url.replace(port, str(way.port)),
        )
        for number, way in enumerate(ways)
    ]
    names: list[str] = []
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        for one in replicas:
            one.start()
        with Watched(control_plane) as watched:
            for number in range(KILLS):
                began = time.monotonic()
                victim = until("a replica leads", lambda: leader_of(control_plane, replicas), 120)
                for _ in range(3):
                    names.append(f"j{len(names)}")
                    made = job(names[-1], "stream", str(chance.randint(1, 2)))
                    control_plane.api.create("jobs", "default", made)
                time.sleep(chance.uniform(0.0, 0.5))  # anywhere in what it does
                kind = KINDS[number % len(KINDS)]
                end_leader(kind, control_plane, replicas, victim, ways[replicas.index(victim)])
                watched.wrong += standing(control_plane)
                assert not watched.wrong, watched.wrong
                took_s[kind].append(time.monotonic() - began)
            until("all are done", lambda: watched.done == set(names) or watched.wrong, 180)
        assert watched.wrong == []
        assert watched.starts == dict.fromkeys(names, 1), "each is let run once"
        assert watched.most > ROOM // 2, "there was something to count"

        def all_free() -> bool:
            status = control_plane.api.get(f"{KUEUE}/clusterqueues/stream")["status"]
            return (status["reservingWorkloads"], status["pendingWorkloads"]) == (0, 0)

        until("the quota is free, by the ClusterQueue's own word", all_free, 60)

        def items(path: str) -> list[Any]:
            return list(control_plane.api.get(path)["items"])

        # The last Job was deleted just now; the queue deletes its Workload.
        until("each Workload has a Job", lambda: len(items(WORKLOADS)) == len(items(JOBS)), 60)
        found, left = items(WORKLOADS), items(JOBS)
        assert len(left) + len(watched.removed) == len(names)
        assert all(is_true(one, "Finished") for one in found)
        told = f"{len(names)} Jobs, each started once; at most {watched.most} of {ROOM} held"
        dealt = {kind: f"{len(one)} in {sum(one):.0f} s" for kind, one in took_s.items()}
        print(f"{KILLS} leaders, {dealt}: {told}")
        for one in replicas:
            assert "defect" not in one.text, one.text[-3000:]
    finally:
        for one in replicas:
            if one.process is not None:
                one.end(signal.SIGKILL)
        for way in ways:
            way.close()
