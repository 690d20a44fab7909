"""Random sequences of arrivals, ends, moves and losses of nodes in mode kubernetes, with leaders that are killed before or after
their last decisions are stored. The laws, after every step:

- no GPU is promised beyond what it has, to pods that are there and to reservations that have no pod yet;
- no workload is moved twice within the cool-down, and no two of one namespace at a time;
- the quota in use is what the stored Workloads hold, and never more than there is.

At the end every workload ends, and no quota and no GPU is left in use.

`python -m tests.queue.cluster.podplacement.sequences --count 1000` plays a thousand of them (some minutes); a failure names its
seed, and `--first SEED --count 1` repeats it. The normal test suite plays the first few.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, condition_of, key_of, seconds_of
from queuecontroller.cluster.status.workload_status import patch_of
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED, PREEMPTED
from queuecontroller.scheduler.placement.stock import Share
from sluicecommon.pod_annotations import PLACEMENT
from tests.kit.queue.sequences import Broken, main
from tests.queue.cluster.podplacement.moving import COOLDOWN_S, NEVER, RESTART, Lab, S
from tests.queue.gpushares.extender.rooms import GIB, pod

MEMORY: Final = 80 * GIB
QUOTAS: Final = {"nvidia.com/gpu": 14, "nvidia.com/gpucores": 700}
ASKS: Final = (
    {"gpucores": 100},
    {"gpucores": 100},
    {"gpumem": 20_000, "gpucores": 20},
    {"gpumem": 30_000, "gpucores": 20},
    {"gpumem": 50_000, "gpucores": 20},
    {"gpumem": 65_000, "gpucores": 40},
)
TEAMS: Final = "tu"
STEPS: Final = 80


class Sequence:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lab = Lab("abcdef"[: self.chance.randint(3, 6)], quotas=QUOTAS)
        self.asked: dict[WorkloadKey, dict[str, Any]] = {}
        self.terminating: set[WorkloadKey] = set()
        """Workloads with a pod that is being deleted."""
        self.lost: set[str] = set()
        self.moves: dict[WorkloadKey, list[float]] = {}
        """Times of the moves of each workload, in seconds."""
        self.kills = 0
        self._number = 0

    def moves_made(self) -> int:
        return sum(map(len, self.moves.values()))

    def play(self) -> None:
        doings: list[tuple[float, Callable[[], None]]] = [
            (30, self.arrive),
            (18, self.finish_one),
            (3, self.delete_one),
            (20, self.pods_start),
            (14, self.pods_end),
            (14, self.time_passes),
            (6, self.leader_dies),
            (3, self.node_is_lost),
            (4, self.node_comes_back),
        ]
        weights = [weight for weight, _ in doings]
        calls = [call for _, call in doings]
        for _ in range(STEPS):
            self.chance.choices(calls, weights)[0]()
            self.lab.settle()
            if self.chance.random() < 0.05:
                self.leader_dies()  # before any of it is stored
            self.write()
            self.check()
        self.drain()

    # -- what happens -----------------------------------------------------------------------------

    def arrive(self) -> None:
        if len(self._open()) > 14:
            return
        self._number += 1
        asked = self.chance.choice(ASKS)
        spread = {
            "hami.io/node-scheduler-policy": self.chance.choice(("spread", "spread", "binpack"))
        }
        made = self.lab.workload(
            f"w{self._number}",
            asked,
            self.chance.choice(TEAMS),
            template=spread,
            annotations=self.chance.choice((RESTART, RESTART, RESTART, NEVER)),
            priority=self.chance.choice((0, 0, 0, 10)),
        )
        made["metadata"]["resourceVersion"] = "1"
        self.asked[WorkloadKey(key_of(made))] = asked
        self.lab.store(made)

    def pods_start(self) -> None:
        """kube-scheduler binds the pods of Workloads that are admitted, where the extender says."""
        for key in self._open():
            if self.chance.random() < 0.9:
                self._start(key)

    def _start(self, key: WorkloadKey) -> None:
        stored = self._stored(key)
        slots = self.lab.book.nodes_room.pods.reserved.slots(key)
        held = bool((stored.get("status") or {}).get("admission"))
        if not held or self._is(stored, EVICTED) or key in self.lab.pods or not slots:
            return
        place = replace(slots[0].place, workload=key)
        if place.node in self.lost:
            return
        namespace, _, name = key.partition("/")
        made = pod(f"{name}-0", **self.asked[key])
        made["metadata"] |= {"namespace": namespace}
        made["metadata"]["annotations"][PLACEMENT] = place.text()
        made["spec"]["nodeName"] = place.node
        self.lab.run(made)

    def pods_end(self) -> None:
        """The jobs of evicted Workloads are suspended: their pods are being deleted, then gone."""
        for key in self._open():
            if self._is(self._stored(key), EVICTED) and self.chance.random() < 0.7:
                self._stop(key)
        for key in sorted(self.terminating):
            if self.chance.random() < 0.6:
                self._gone(key)

    def _stop(self, key: WorkloadKey) -> None:
        if key in self.lab.pods:
            self.terminating.add(key)
        self.lab.stopping(key)

    def _gone(self, key: WorkloadKey) -> None:
        self.terminating.discard(key)
        self.lab.elsewhere.running.discard(key)
        self.lab.book.nodes_room.pods.drop(self.lab.pods.pop(key)["metadata"]["uid"])

    def finish_one(self) -> None:
        running = sorted(self.lab.pods.keys() - self.terminating)
        if running:
            self._finish(self.chance.choice(running), "Succeeded")

    def _finish(self, key: WorkloadKey, reason: str) -> None:
        if key in self.lab.pods:
            self._gone(key)
        if key in self.lab.book.workloads.records:
            self.lab.book.workloads.finish(key, reason, "it has ended", self.lab.now_ns)

    def delete_one(self) -> None:
        waiting = [key for key in self._open() if key not in self.lab.pods]
        if waiting:
            key = self.chance.choice(waiting)
            self.lab.cache.drop(WORKLOADS, key, self._stored(key)["metadata"]["uid"])
            self.lab.mirror.workload(key, None, self.lab.now_ns)

    def time_passes(self) -> None:
        self._pass(self.chance.choice((1, 1, 10, 10, 60, COOLDOWN_S // 2, COOLDOWN_S)))

    def _pass(self, seconds: int) -> None:
        """The agents report before their sessions expire."""
        self.lab.now_ns += seconds * S
        for node in sorted(set(self.lab.nodes) - self.lost):
            self.lab.join(node)
        self.lab.book.nodes_room.follow(self.lab.now_ns)

    def leader_dies(self) -> None:
        """With what it has stored; the rest of its decisions is lost."""
        self.kills += 1
        self.lab = self.lab.new_leader(decided=False)
        for node in self.lost:
            self._leaves(node)
        for key in self.terminating:
            self.lab.book.nodes_room.pods.take(self.lab.pods[key])
        self.lab.settle()

    def node_is_lost(self) -> None:
        """Its pods are deleted with it, and their jobs fail."""
        up = sorted(set(self.lab.nodes) - self.lost)
        if len(up) < 2:
            return
        node = self.chance.choice(up)
        self.lost.add(node)
        self._leaves(node)
        for key, document in sorted(self.lab.pods.items()):
            if document["spec"]["nodeName"] == node:
                self._finish(key, "Failed")

    def _leaves(self, node: str) -> None:
        self.lab.ground.drop_node(node)
        self.lab.book.nodes_room.stock.forget(node)

    def node_comes_back(self) -> None:
        for node in sorted(self.lost):
            self.lost.discard(node)
            self.lab.join(node)
            self.lab.book.nodes_room.follow(self.lab.now_ns)

    # -- the API server ---------------------------------------------------------------------------

    def write(self) -> None:
        """Store what the leader has decided: what frees quota first."""
        changed = []
        for document in [*self.lab.cache.all_of(WORKLOADS)]:
            key = WorkloadKey(key_of(document))
            record = self.lab.book.workloads.records.get(key)
            if record is None:
                continue
            workload, now_ns = record.workload, self.lab.now_ns
            patch = patch_of(document, self.lab.mirror.as_read(document), workload, None, now_ns)
            if patch:
                changed.append((workload.admission is not None, key, document, patch))
        for _, key, document, patch in sorted(changed, key=lambda one: one[:2]):
            version = str(int(document["metadata"]["resourceVersion"]) + 1)
            stored = {
                **document,
                "metadata": {**document["metadata"], "resourceVersion": version},
                "status": {**(document.get("status") or {}), **patch},
            }
            self._note_move(key, document, stored)
            self.lab.mirror.expected[key] = self.lab.book.workloads.records[key].workload
            self.lab.store(stored)
            self.lab.mirror.expected.pop(key)

    def _note_move(self, key: WorkloadKey, before: Document, after: Document) -> None:
        now, then = (condition_of(one, PREEMPTED) for one in (after, before))
        if now.get("reason") != "Consolidation" or now.get("status") != "True" or now == then:
            return
        at_s = seconds_of(now["lastTransitionTime"]) or 0.0
        times = self.moves.setdefault(key, [])
        if times and at_s - times[-1] < COOLDOWN_S:
            raise Broken(f"{key} was moved at {times[-1]} s and at {at_s} s")
        times.append(at_s)
        owner = key.partition("/")[0]
        # One that has quota again may be moved on to by the next, though that is stored later.
        for other, record in self.lab.book.workloads.records.items():
            moving = record.workload.is_moving and not record.workload.is_true(FINISHED)
            if other != key and other.partition("/")[0] == owner and moving:
                raise Broken(f"{key} is moved while {other} is")

    def _stored(self, key: WorkloadKey) -> Document:
        return self.lab.cache.get(WORKLOADS, key) or {"metadata": {}}

    def _is(self, document: Document, condition: str) -> bool:
        return condition_of(document, condition).get("status") == "True"

    def _open(self) -> list[WorkloadKey]:
        every = self.lab.cache.all_of(WORKLOADS)
        return sorted(WorkloadKey(key_of(one)) for one in every if not self._is(one, FINISHED))

    # -- the laws ---------------------------------------------------------------------------------

    def check(self) -> None:
        self._no_gpu_is_over_promised()
        self._quota_is_kept()

    def _no_gpu_is_over_promised(self) -> None:
        memory: Counter[str] = Counter()
        ppm: Counter[str] = Counter()
        ledger = self.lab.book.nodes_room.pods
        shares: list[Share] = []
        there = {document["metadata"]["uid"] for document in self.lab.pods.values()}
        for uid in there:
            place = ledger.place(uid)
            if place is None:
                raise Broken(f"pod {uid} runs and is not counted")
            shares += place.held
        for key, record in self.lab.book.workloads.records.items():
            if record.workload.admission is None:
                continue
            for slot in ledger.reserved.slots(key):
                if not (
                    slot.firm and slot.pod in there
                ):  # One that is being deleted keeps it, too.
                    shares += slot.place.held
        for one in shares:
            memory[one.uuid] += one.memory_bytes
            ppm[one.uuid] += one.share_ppm
        for uuid, total in memory.items():
            if total > MEMORY or ppm[uuid] > 1_000_000:
                raise Broken(f"{uuid}: {total / GIB:.1f} GiB and {ppm[uuid]} ppm are promised")

    def _quota_is_kept(self) -> None:
        held: Counter[str] = Counter()
        for document in self.lab.cache.all_of(WORKLOADS):
            given = self.lab.mirror.as_read(document).admission
            if given is not None and not self._is(document, FINISHED):
                for one in given.pod_sets:
                    held.update(one.usage)
        state = self.lab.book.engine.cache.queues["cq"]
        used = self.lab.book.engine.cache.numbers.by_resource(state.node.usage)
        expected = {name: much for name, much in held.items() if much}
        if {name: much for name, much in used.items() if much} != expected:
            raise Broken(f"the queue counts {dict(used)}, the stored Workloads hold {expected}")
        for name, most in QUOTAS.items():
            if held[name] > most:
                raise Broken(f"{held[name]} of {most} {name} are in use")

    def drain(self) -> None:
        self.node_comes_back()
        for _ in range(400):
            self._pass(COOLDOWN_S)
            self.lab.settle()
            self.write()
            self.check()
            for key in self._open():
                if self._is(self._stored(key), EVICTED):
                    self._stop(key)
                self._start(key)
            for key in sorted(self.terminating):
                self._gone(key)
            for key in sorted(self.lab.pods):
                self._finish(key, "Succeeded")
            self.write()
            self.check()
            if not self._open():
                break
        if stuck := self._open():
            raise Broken(f"these never come to their turn: {stuck}")
        for node in self.lab.nodes:
            if left := self.lab.book.nodes_room.stock.held_at(node):
                raise Broken(f"{node} is left with {left}")


if __name__ == "__main__":
    sys.exit(main(__doc__, Sequence))
