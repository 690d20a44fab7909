"""Random sequences of arrivals, ends, moves, kills of the controller and of nodes, with laws that are checked after
every step:

- no GPU is promised, or used, beyond what it has, and none that is promised whole is shared;
- no workload is moved twice within the cool-down, and no two of one owner are moved at a time;
- quota in use is what the stored workloads hold, and never grows beyond what there is;
- nothing runs twice at a time.

At the end all nodes are there, every workload comes to its turn and ends, and no quota and no GPU is left in use.

`python -m tests.queue.state.moves.sequences --count 1000` plays a thousand of them (a few minutes); a failure names its
seed, and `--first SEED --count 1` repeats it. The normal test suite plays the first few. Long, for all steps share
one player and its laws.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.nodes.sessions import computes, is_away
from queuecontroller.state.objects.submission import Submission
from queuecontroller.state.records import Desired, GpuAsk, OnPreemption, PodState, SharePolicy
from tests.kit.queue import queues
from tests.kit.queue.sequences import Broken, main
from tests.queue.state.moves.fleet import MEMORY, Fleet, Node
from tests.queue.state.world import GIB, SECOND, World, gpu

COOLDOWN_S: Final = 300
QUOTAS: Final = {queues.GPU: 12, queues.GPU_MEMORY: 400_000, queues.GPU_CORES: 600}
SMALL_QUOTAS: Final = {queues.GPU: 5, queues.GPU_MEMORY: 160_000, queues.GPU_CORES: 250}
TEAMS: Final = "ab"
STEPS: Final = 80
MOVED: Final = "due to consolidation"


def _queue(team: str, quotas: dict[str, int]) -> str:
    text = queues.cluster_queue(
        team,
        "gpus",
        quotas,
        "preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}",
        cohort="both",
    )
    permits = "annotations: {sluice.dev/consolidation: restart}"
    return text.replace(f"{{name: {team}}}", f"{{name: {team}, {permits}}}")


def manifests() -> str:
    return "\n" + queues.manifests(
        queues.flavor("gpus"),
        *(queues.namespace(f"team-{team}") for team in TEAMS),
        queues.priority_class("urgent", 1000),
        *(_queue(team, QUOTAS) for team in TEAMS),
        *(queues.local_queue("q", f"team-{team}", team) for team in TEAMS),
    )


def _group(name: str, team: str, pods: int, gib: int, cores: int) -> dict[str, Any]:
    limits = {queues.GPU: 1, queues.GPU_MEMORY: gib * 1024, queues.GPU_CORES: cores}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    pod_set = {"name": "main", "count": pods, "template": {"spec": {"containers": containers}}}
    return {
        "apiVersion": queues.V1BETA1,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": f"team-{team}"},
        "spec": {"queueName": "q", "podSets": [pod_set]},
    }


class CheckedWorld(World):
    """Checks the laws after every step."""

    fleet: Fleet

    def __init__(self, requeue_lost: bool) -> None:
        self.moves: dict[WorkloadKey, list[int]] = {}
        """Times of the moves of each workload, ns."""
        self._moving: dict[WorkloadKey, str] = {}
        """Owners of the workloads that were stopped for a move and have no quota again yet."""
        self._lines_read = self._checked = 0
        self._used: dict[Fr, int] = {}
        super().__init__(
            manifests(),
            BookSettings(
                engine=EngineSettings(consolidation=True),
                move_cooldown_ns=COOLDOWN_S * SECOND,
                lease_s=15,
                lost_after_s=60,
                requeue_lost=requeue_lost,
            ),
        )

    def check(self) -> None:
        """Check all laws, unless nothing was stored since the last time."""
        if len(self.store.labels) != self._checked:
            self.check_all()

    def check_all(self) -> None:
        self._checked = len(self.store.labels)
        super().check()
        self._moves_are_rare()
        self._quota_is_kept()
        self._no_gpu_is_over_promised()
        if hasattr(self, "fleet"):
            self._nodes_run_what_fits_once()

    def _moves_are_rare(self) -> None:
        records = self.book.workloads.records
        for key in list(self._moving):
            record = records.get(key)
            if (
                record is None
                or record.workload.is_true(FINISHED)
                or not record.workload.active  # Its owner holds it: it is not on its way.
                or (record.workload.admission is not None and not record.workload.is_true(EVICTED))
            ):
                del self._moving[key]
        lines, self._lines_read = self.store.lines[self._lines_read :], len(self.store.lines)
        for line in lines:
            if line.kind != "Evicted" or MOVED not in line.text:
                continue
            key = WorkloadKey(line.subject.removeprefix("Workload/"))
            owner = f"namespace {key.partition('/')[0]}"
            times = self.moves.setdefault(key, [])
            if times and line.at_ns - times[-1] < COOLDOWN_S * SECOND:
                raise Broken(f"{key} was moved at {times[-1]} and at {line.at_ns} ns")
            if owner in self._moving.values():
                raise Broken(f"{key} is moved, and of its owner also {[*self._moving]}")
            times.append(line.at_ns)
            if key in records:
                self._moving[key] = owner
                if records[key].moved_ns != line.at_ns:
                    raise Broken(f"{key}: the time of its move is not stored")

    def _quota_is_kept(self) -> None:
        held: dict[str, Counter[str]] = {team: Counter() for team in TEAMS}
        for record in self.store.held.workloads:
            given = record.workload.admission
            if given is not None and not record.workload.is_true(FINISHED):
                for one in given.pod_sets:
                    held[given.cluster_queue].update(one.usage)
        for team, expected in held.items():
            state = self.book.engine.cache.queues.get(team)
            if state is None:
                continue  # not applied yet
            used = self.book.engine.cache.numbers.by_resource(state.node.usage)
            if used != {name: much for name, much in expected.items() if much}:
                raise Broken(f"queue {team} counts {used}, its workloads hold {dict(expected)}")
            root, before = state.node.root, self._used
            for fr, much in root.usage.items():
                if much > max(root.subtree_quota.get(fr, 0), before.get(fr, 0)):
                    raise Broken(f"{fr}: {much} of {root.subtree_quota.get(fr, 0)} are in use")
            self._used = dict(root.usage)

    def _no_gpu_is_over_promised(self) -> None:
        memory: Counter[str] = Counter()
        time_ppm: Counter[str] = Counter()
        computing: Counter[str] = Counter()
        alone: set[str] = set()
        for one in self.book.nodes.assignments.values():
            for share in () if is_away(one) else one.gpus:
                memory[share.uuid] += share.memory_bytes
                if not computes(one):
                    continue
                computing[share.uuid] += 1
                if one.ask.policy is not SharePolicy.ELASTIC:
                    time_ppm[share.uuid] += share.share_ppm
                if one.ask.policy is SharePolicy.EXCLUSIVE:
                    alone.add(share.uuid)
        for uuid, total in memory.items():
            if total > MEMORY or time_ppm[uuid] > 1_000_000:
                raise Broken(f"{uuid}: {total / GIB:.1f} GiB and {time_ppm[uuid]} ppm are promised")
            if uuid in alone and computing[uuid] > 1:
                raise Broken(f"{uuid} is promised whole to one of {computing[uuid]}")

    def _nodes_run_what_fits_once(self) -> None:
        running: Counter[tuple[str, str]] = Counter()
        for node in self.fleet.nodes:
            wrong = node.overdrawn()
            if wrong:
                raise Broken(f"{node.name}: {wrong}")
            if self.now_ns < node.lease_until_ns:
                running.update(
                    (work.one.uid, work.one.pod)
                    for work in node.works.values()
                    if work.state == "running"
                )
        twice = [one for one, count in running.items() if count > 1]
        if twice:
            raise Broken(f"run on two nodes: {twice}")


class Sequence:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = CheckedWorld(requeue_lost=self.chance.random() < 0.5)
        self.fleet = Fleet(self.world, self.chance)
        self.world.fleet = self.fleet
        self.kills = 0
        """Kills of the controller and of nodes."""
        self._attention = self.chance.choice((0.4, 0.9))
        """Probability that a node reads its decisions, or reports, after a step."""
        self._pauses = self.chance.choice((0.0, 0.4))
        """Probability that a workload names what becomes of it when it is preempted."""
        self._number = 0
        for n in range(self.chance.randint(2, 3)):
            name = f"n{n}"
            count = self.chance.randint(1, 3)
            cards = tuple(gpu(100 * n + i, MEMORY) for i in range(count))
            self.fleet.nodes.append(Node(self.fleet, name, cards))
        for node in self.fleet.nodes:
            node.connect()

    def moves_made(self) -> int:
        return sum(map(len, self.world.moves.values()))

    def play(self, steps: int = STEPS) -> None:
        doings: list[tuple[float, Callable[[], None]]] = [
            (22, self.arrive),
            (10, self.finish_one),
            (4, self.change_one),
            (2, self.change_quota),
            (22, self.node_turn),
            (14, self.time_passes),
            (4, self.controller_dies),
            (4, self.controller_dies_in_a_step),
            (6, self.node_dies),
            (4, self.node_comes_back),
            (2, self.card_changes),
        ]
        weights = [weight for weight, _ in doings]
        calls = [call for _, call in doings]
        for _ in range(steps):
            self.chance.choices(calls, weights)[0]()
            for node in self.fleet.nodes:
                if self.chance.random() < self._attention:
                    node.receive()
                if self.chance.random() < self._attention:
                    node.stop_slowly()
                if self.chance.random() < self._attention:
                    node.say()
            self.world.check_all()
        self.drain()

    # -- users ----------------------------------------------------------------------------------

    def _ask(self) -> GpuAsk:
        kind = self.chance.random()
        if kind < 0.2:
            return GpuAsk(1, memory_bytes=79 * GIB, policy=SharePolicy.EXCLUSIVE)
        if kind < 0.3:
            return GpuAsk(2, memory_bytes=79 * GIB, policy=SharePolicy.EXCLUSIVE)
        gib = self.chance.choice((10, 20, 30, 40, 60))
        policy = SharePolicy.ELASTIC if kind < 0.4 else SharePolicy.HARD
        share_ppm = self.chance.choice((100_000, 200_000, 500_000))
        return GpuAsk(1, memory_bytes=gib * GIB, share_ppm=share_ppm, policy=policy)

    def _submission(self) -> Submission:
        self._number += 1
        chance = self.chance
        return Submission(
            f"team-{chance.choice(TEAMS)}",
            "q",
            self._ask(),
            name=f"w{self._number}",
            priority_class="urgent" if chance.random() < 0.2 else "",
            on_preemption=chance.choice([*OnPreemption])
            if chance.random() < self._pauses
            else None,
        )

    def arrive(self) -> None:
        if len(self._open()) > 14:
            return
        self.world.now_ns += SECOND
        if self.chance.random() < 0.15:
            self._number += 1
            pods, gib = self.chance.randint(2, 3), self.chance.choice((20, 40))
            group = _group(f"w{self._number}", self.chance.choice(TEAMS), pods, gib, 20)
            self.world.step("apply", lambda book, now: book.apply([group], False, now))
        else:
            asked = self._submission()
            self.world.step("submit", lambda book, now: book.submit(asked, now))
        self.world.settle()

    def _open(self) -> list[WorkloadKey]:
        records = self.world.book.workloads.records
        return sorted(key for key, one in records.items() if not one.workload.is_true(FINISHED))

    def finish_one(self) -> None:
        running = [
            (node, key)
            for node in self.fleet.nodes
            for key, work in node.works.items()
            if work.state == "running" and node.up
        ]
        if running:
            node, key = self.chance.choice(running)
            node.finish(key)

    def change_one(self) -> None:
        keys = self._open()
        if keys:
            what = self.chance.choice(("delete", "hold", "resume"))
            self._change(what, self.chance.choice(keys))
            self.world.settle()

    def _change(self, what: str, key: WorkloadKey) -> None:
        namespace, name = key.split("/")
        who = ("Workload", namespace, name)
        calls: dict[str, Callable[[Book, int], None]] = {
            "delete": lambda book, now: book.delete(who, "", now),
            "hold": lambda book, now: book.hold(who, False, now),
            "resume": lambda book, now: book.resume(who, now),
        }
        self.world.step(what, calls[what])

    def change_quota(self) -> None:
        team = self.chance.choice(TEAMS)
        kind = self.chance.random()
        who = ("ClusterQueue", "", team)
        if kind < 0.6:
            self.world.apply("\n" + _queue(team, self.chance.choice((QUOTAS, SMALL_QUOTAS))))
            return
        drain = self.chance.random() < 0.5
        if kind < 0.8:
            self.world.step("hold", lambda book, now: book.hold(who, drain, now))
        else:
            self.world.step("resume", lambda book, now: book.resume(who, now))
        self.world.settle()

    # -- nodes ----------------------------------------------------------------------------------

    def node_turn(self) -> None:
        node = self.chance.choice(self.fleet.nodes)
        if not node.up:
            return
        if not node.session:
            node.connect()
        node.receive()
        if self.chance.random() < 0.7:
            node.stop_slowly()
        node.say(self.chance.random() < 0.7)

    def node_dies(self) -> None:
        node = self.chance.choice(self.fleet.nodes)
        self.kills += 1
        kind = self.chance.random()
        if kind < 0.4:  # the connection is lost, its work goes on
            node.up = node.session = False
        else:
            node.lose_power(disk=kind > 0.7)
        if self.chance.random() < 0.5:
            self.node_comes_back()

    def node_comes_back(self) -> None:
        for node in self.fleet.nodes:
            if not node.up and self.chance.random() < 0.7:
                node.up = True
                node.connect()

    def card_changes(self) -> None:
        node = self.chance.choice(self.fleet.nodes)
        uuid = self.chance.choice(node.cards).uuid
        if self.chance.random() < 0.5:
            node.sick ^= {uuid}
        elif not any(s.uuid == uuid for work in node.works.values() for s in work.one.gpus):
            node.missing ^= {uuid}
        node.report()

    # -- fate -----------------------------------------------------------------------------------

    def time_passes(self) -> None:
        self._pass(self.chance.choice((1, 1, 5, 5, 20, 20, 100, COOLDOWN_S)))

    def _pass(self, seconds: float) -> None:
        while seconds > 0:
            step_s = min(seconds, 7)
            seconds -= step_s
            for node in self.fleet.nodes:
                node.report()
            self.world.pass_time(step_s)

    def controller_dies(self) -> None:
        self.kills += 1
        self.world.restart()
        self.fleet.controller_restarted()
        self.world.now_ns += self.chance.choice((1, 30, 100)) * SECOND
        self.world.settle()
        for node in self.fleet.nodes:
            if self.chance.random() < 0.7:
                node.report()

    def controller_dies_in_a_step(self) -> None:
        """Its decisions since the last commit are lost, before anything has learnt of them."""
        book, now_ns = self.world.book, self.world.now_ns
        if self.chance.random() < 0.5:
            book.submit(self._submission(), now_ns)
        if self.chance.random() < 0.5:
            book.tick(now_ns)
        book.workloads.cycle(now_ns)
        self.controller_dies()

    # -- the end --------------------------------------------------------------------------------

    def drain(self) -> None:
        """All of it comes to its turn, and nothing is left."""
        world = self.world
        world.apply(manifests())
        for key in self._open():
            self._change("resume", key)
        for node in self.fleet.nodes:
            node.up, node.missing, node.sick = True, frozenset(), frozenset()
        most = max(len(node.cards) for node in self.fleet.nodes)
        for key in self._open():
            asks = world.record(key).asks.values()
            if max(one.gpus for one in asks) > most or self._pods(key) > self._cards():
                self._change("delete", key)
        for _ in range(200):
            if not self._open():
                break
            for _ in range(3):
                for node in self.fleet.nodes:
                    if not node.session:
                        node.connect()
                    node.stop_slowly()
                    node.receive()
                    node.say()
            self._quota_has_work()
            self.finish_one()
            for node in self.fleet.nodes:
                node.say()
            self._pass(7)
        else:
            raise Broken(f"never came to their turn: {self._stuck()}")
        for queue in world.book.engine.cache.queues.values():
            left = {fr: much for fr, much in queue.node.usage.items() if much}
            if left:
                raise Broken(f"quota of {queue.name} is left in use: {left}")
        for node in self.fleet.nodes:
            left_on = world.book.nodes_room.stock.held_at(node.name)
            if left_on or node.works:
                raise Broken(f"{node.name} is left with {left_on} and {node.works}")
        if world.book.nodes.assignments:
            raise Broken(f"decisions are left: {[*world.book.nodes.assignments]}")

    def _cards(self) -> int:
        return sum(len(node.cards) for node in self.fleet.nodes)

    def _pods(self, key: WorkloadKey) -> int:
        return sum(one.count for one in self.world.record(key).workload.pod_sets)

    def _quota_has_work(self) -> None:
        """Once every node has obeyed and reported, each admitted workload runs on a node."""
        known = {(key.workload, key.pod) for node in self.fleet.nodes for key in node.works}
        for one in self.world.book.nodes.assignments.values():
            lost = one.desired is Desired.RUN and one.state is not PodState.DECIDED
            if lost and (one.workload, one.pod) not in known:
                raise Broken(f"{one.key} is held to run on {one.node}, which does not have it")

    def _stuck(self) -> list[str]:
        status = {key: self.world.status(key) for key in self._open()}
        return [f"{key}: {one.phase} {one}" for key, one in status.items()]


if __name__ == "__main__":
    sys.exit(main(__doc__, Sequence))
