"""Nodes of a queue in one process: each remembers what it runs and what it has not reported yet, loses its connection,
its power or its disk, and refuses what does not fit.

They behave as `nodeagent.core.queue.book` does, without its file and its messages' encoding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

from queuecontroller.scheduler.placement.capacity import GpuCapacity
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.sessions import Held, StaleEpoch
from queuecontroller.state.records import Assignment, Desired, PodKey, PodState, SharePolicy
from tests.queue.state.world import GIB, SECOND, World

MEMORY: Final = 80 * GIB
LEASE_NS: Final = 15 * SECOND
OVER: Final = frozenset({"stopped", "finished", "refused"})
RUNS: Final = frozenset({"running", "stopping"})


@dataclass
class Work:
    """The work of one pod on a node."""

    one: Assignment
    """The newest decision about it that arrived."""
    state: str
    """As in `Held`."""
    started: bool = True
    is_away: bool = False
    """Its memory is on the node's host."""
    is_idle: bool = False
    """It was paused when its stop was decided, and stays so until it is gone."""
    said: bool = False
    """False while a message about this state has to be sent."""
    reason: str = ""

    @property
    def computes(self) -> bool:
        return self.state in RUNS and not self.is_idle

    @property
    def on_gpu(self) -> bool:
        return self.state not in OVER and not self.is_away

    @property
    def time_ppm(self) -> int:
        """Guaranteed time that it takes from others."""
        promised = self.one.ask.policy is not SharePolicy.ELASTIC
        return self.one.ask.share_ppm if promised and self.computes else 0

    @property
    def is_alone(self) -> bool:
        return self.one.ask.policy is SharePolicy.EXCLUSIVE and self.computes


@dataclass
class Fleet:
    world: World
    chance: random.Random
    nodes: list[Node] = field(default_factory=list)

    def each_up(self) -> list[Node]:
        return [one for one in self.nodes if one.up]

    def controller_restarted(self) -> None:
        for one in self.nodes:
            one.session = False


@dataclass
class Node:
    fleet: Fleet
    name: str
    cards: tuple[GpuCapacity, ...]
    works: dict[PodKey, Work] = field(default_factory=dict)
    decisions: dict[PodKey, Assignment] = field(default_factory=dict)
    """As received."""
    done: set[tuple[str, str, int]] = field(default_factory=set)
    """Pod, UID and attempt of ended work."""
    up: bool = True
    """False without power or connection."""
    session: bool = False
    lease_until_ns: int = 0
    missing: frozenset[str] = frozenset()
    """Cards that fell off the bus."""
    sick: frozenset[str] = frozenset()

    @property
    def world(self) -> World:
        return self.fleet.world

    @property
    def capacity(self) -> tuple[GpuCapacity, ...]:
        present = [one for one in self.cards if one.uuid not in self.missing]
        return tuple(
            replace(one, health="unhealthy") if one.uuid in self.sick else one for one in present
        )

    # -- messages -------------------------------------------------------------------------------

    def connect(self) -> None:
        world = self.world
        held = tuple(
            Held(
                key.workload,
                key.pod,
                work.one.uid,
                work.one.attempt,
                work.state,
                reason=work.reason,
                gpus=work.one.gpus,
                started=work.started,
            )
            for key, work in self.works.items()
        )
        told = {key for key, work in self.works.items() if work.state in OVER}
        answer = world.connect(self.name, self.capacity, held)
        self.session = True
        self.lease_until_ns = world.now_ns + LEASE_NS
        for key in told:
            self._forget(key)
        self.decisions = {one.key: one for one in answer}
        for key, work in self.works.items():
            if key not in self.decisions and work.state not in OVER:
                self._set(work, "stopping", "the controller no longer has it")
        self._obey_all()

    def report(self) -> None:
        """Renew the lease."""
        if self.up and not self.session:
            self.connect()
        elif self.up:
            try:
                self.world.report(self.name, self.capacity)
                self.lease_until_ns = self.world.now_ns + LEASE_NS
            except StaleEpoch:
                self.session = False

    def receive(self) -> None:
        """The newest decisions arrive."""
        if self.up and self.session and self.is_current():
            self.decisions = {one.key: one for one in self.world.book.nodes.of_node(self.name)}
            self._obey_all()

    def is_current(self) -> bool:
        node = self.world.book.nodes.nodes.get(self.name)
        mine = self.world.epochs.get(self.name)
        return node is not None and node.connected and node.record.epoch == mine

    def say(self, everything: bool = True) -> None:
        """Send what has not been reported, or the first of it; a message may arrive twice."""
        for key in [key for key, work in self.works.items() if not work.said]:
            if not (self.up and self.session):
                return
            self._say(key)
            if self.fleet.chance.random() < 0.1 and key in self.works:
                self._say(key)
            if not everything:
                return

    def _say(self, key: PodKey) -> None:
        work, world = self.works[key], self.world
        one = work.one
        epoch = world.epochs.get(self.name, 0)
        about = WorkReport(
            self.name, epoch, key.workload, key.pod, one.uid, one.attempt, work.reason, work.started
        )
        state = work.state
        try:
            if state == "running":
                known = world.step("confirm", lambda b, now: b.desk.confirm(about, PodState.RUNNING, one.gpus, now))  # fmt: skip
            elif state == "paused" and work.reason:
                known = world.step("refuse", lambda b, now: b.desk.refuse_resume(about, now))
            elif state == "paused":
                known = world.step("confirm", lambda b, now: b.desk.confirm(about, PodState.PAUSED, one.gpus, now))  # fmt: skip
            elif state == "refused":
                known = world.step("refuse", lambda b, now: b.desk.refuse(about, now))
            elif state in OVER:
                finished = state == "finished"
                known = world.step("release", lambda b, now: b.desk.release(about, finished, now))
            else:
                return
        except StaleEpoch:
            self.session = False
            return
        if state in OVER:
            self._forget(key)
        else:
            work.said, work.reason = True, ""
            if not known:
                self.session = False
        world.settle()

    # -- work -----------------------------------------------------------------------------------

    def _obey_all(self) -> None:
        for one in sorted(self.decisions.values(), key=lambda one: one.revision):
            self._obey(one)

    def _obey(self, one: Assignment) -> None:
        work = self.works.get(one.key)
        if work is None:
            self._new(one)
        elif work.one.uid != one.uid:
            if work.state not in OVER:
                self._set(work, "stopping", "another workload has taken its name")
        elif work.state in OVER:
            if one.attempt <= work.one.attempt:
                work.said = False
            else:
                self._forget(one.key)
                self._new(one)
        elif work.state != "stopping" and one.revision >= work.one.revision:
            self._follow(work, one)

    def _follow(self, work: Work, one: Assignment) -> None:
        before, work.one = work.one, one
        if one.desired is Desired.STOP:
            self._set(work, "stopping", one.reason)
        elif one.desired is Desired.RUN:
            if work.state == "paused":
                self._resume(work)
            elif before.attempt != one.attempt:
                work.said = False
        elif work.state == "running" or (one.desired is Desired.CHECKPOINT and not work.is_away):
            work.state, work.said = "paused", False
            work.is_away |= one.desired is Desired.CHECKPOINT

    def _resume(self, work: Work) -> None:
        if self.world.now_ns >= self.lease_until_ns:
            return
        work.state = "running"
        was_away, work.is_away = work.is_away, False
        work.said = False
        why = self.overdrawn(work)
        if why:
            work.state, work.is_away, work.reason = "paused", was_away, why
            raise AssertionError(f"{self.name}: {work.one.key} cannot resume: {why}")

    def _new(self, one: Assignment) -> None:
        if (one.pod, one.uid, one.attempt) in self.done:
            self.works[one.key] = Work(one, "stopped", reason="already over")
        elif one.desired is not Desired.RUN:
            self.works[one.key] = Work(one, "stopped", started=False)
        elif self.world.now_ns < self.lease_until_ns:
            work = self.works[one.key] = Work(one, "running")
            why = self.overdrawn(work)
            if why:
                work.state, work.started, work.reason = "refused", False, why
                gone = {share.uuid for share in one.gpus} & self.missing
                assert gone, f"{self.name}: no room for {one.key}: {why}"

    def overdrawn(self, asking: Work | None = None) -> str:
        """A card that cannot have all that the processes on it take, in words."""
        cards = {one.uuid for one in self.cards} - self.missing
        for uuid in sorted({s.uuid for s in asking.one.gpus} if asking is not None else cards):
            if uuid not in cards:
                return f"{uuid} is not there"
            there = [
                (work, share)
                for work in self.works.values()
                if work.on_gpu
                for share in work.one.gpus
                if share.uuid == uuid
            ]
            memory = sum(share.memory_bytes for _, share in there)
            time_ppm = sum(work.time_ppm for work, _ in there)
            if memory > MEMORY or time_ppm > 1_000_000:
                return f"{uuid} has {memory / GIB:.1f} GiB and {time_ppm} ppm on it"
            running = [work for work, _ in there if work.computes]
            if len(running) > 1 and any(work.is_alone for work in running):
                return f"{uuid} is shared although it is promised whole"
        return ""

    def _set(self, work: Work, state: str, reason: str = "") -> None:
        work.is_idle = state == "stopping" and (work.is_idle or work.state == "paused")
        work.state, work.said, work.reason = state, state == "stopping", reason

    def _forget(self, key: PodKey) -> None:
        work = self.works.pop(key)
        if work.state in OVER and work.state != "refused":
            self.done.add((key.pod, work.one.uid, work.one.attempt))

    def finish(self, key: PodKey) -> None:
        self._set(self.works[key], "finished")

    def stop_slowly(self) -> None:
        """The processes that were killed are gone."""
        for work in self.works.values():
            if work.state == "stopping":
                self._set(work, "stopped", work.reason)

    def lose_power(self, disk: bool) -> None:
        """All processes die; with `disk`, the node also forgets that it ran them."""
        self.up = self.session = False
        self.decisions = {}
        for work in self.works.values():
            if work.state not in OVER:
                self._set(work, "stopped", "the node was started again")
        if disk:
            self.works = {}
