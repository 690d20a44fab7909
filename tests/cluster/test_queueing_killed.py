"""Leaders are killed under a stream of Jobs: nobody is admitted twice or lost, and the quota is exact, by the API's own objects."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    LEASE,
    WORKLOADS,
    Replica,
    apply,
    define,
    door,
    finish,
    is_true,
    job,
    of_kueue,
    quota,
)
from tests.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
KILLS = 20
ROOM = 4
RUNS_S = 0.3
"""How long a Job runs: the test plays its pods."""


class Watched:
    """Follows the Jobs as anybody would, and plays their pods."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.starts: dict[str, int] = {}
        self.done: set[str] = set()
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
                time.sleep(0.02)
        except Exception as error:
            self.wrong.append(repr(error))

    def recount(self) -> None:
        """One list is one moment: what it says is held must fit."""
        held = 0
        for one in self.plane.api.get(WORKLOADS)["items"]:
            if not (one.get("status") or {}).get("admission") or is_true(one, "Finished"):
                continue
            usage = one["status"]["admission"]["podSetAssignments"][0]["resourceUsage"]
            held += int(usage["cpu"])
        self.most = max(self.most, held)
        if held > ROOM:
            self.wrong.append(f"{held} of {ROOM} are held")


def leader_of(plane: ControlPlane, replicas: list[Replica]) -> Replica | None:
    lease: Any = plane.api.find(LEASE)
    holder = lease["spec"]["holderIdentity"] if lease else ""
    for one in replicas:
        if holder and one.process is not None and f"as {holder}" in one.life:
            return one
    return None


def freeze(plane: ControlPlane, replicas: list[Replica], victim: Replica) -> None:
    """Past its lease: when it goes on, it believes for a moment that it leads."""
    others = [one for one in replicas if one is not victim]
    assert victim.process is not None
    victim.process.send_signal(signal.SIGSTOP)
    try:
        until("another leads", lambda: leader_of(plane, others), 120)
    finally:
        victim.process.send_signal(signal.SIGCONT)


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
    lease = "kubernetes.leader_lease_s=2"
    replicas = [Replica(control_plane, tmp_path / f"{number}.log", [lease]) for number in range(2)]
    names: list[str] = []
    try:
        for one in replicas:
            one.start()
        with Watched(control_plane) as watched:
            for number in range(KILLS):
                victim = until("somebody leads", lambda: leader_of(control_plane, replicas), 120)
                for _ in range(3):
                    names.append(f"j{len(names)}")
                    apply(control_plane, job(names[-1], "stream", str(chance.randint(1, 2))))
                time.sleep(chance.uniform(0.0, 0.8))  # anywhere in what it does
                if number % 4 == 3:
                    freeze(control_plane, replicas, victim)
                else:
                    victim.end(signal.SIGKILL)
                    victim.start()
            until("all are done", lambda: watched.done == set(names) or watched.wrong, 180)
        assert watched.wrong == []
        assert watched.starts == dict.fromkeys(names, 1), "each is let run once"
        assert watched.most > ROOM // 2, "there was something to count"

        def all_free() -> bool:
            status = control_plane.api.get(f"{KUEUE}/clusterqueues/stream")["status"]
            return (status["reservingWorkloads"], status["pendingWorkloads"]) == (0, 0)

        until("the quota is free, by the ClusterQueue's own word", all_free, 60)
        found = control_plane.api.get(WORKLOADS)["items"]
        assert len(found) == len(names)
        assert all(is_true(one, "Finished") for one in found)
        for one in replicas:
            assert "defect" not in one.text, one.text[-3000:]
    finally:
        for one in replicas:
            if one.process is not None:
                one.end(signal.SIGKILL)
