"""A leader that has preempted pods checkpointed, with nodes that answer: for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.podplacement.checkpoints import PodCheckpointing
from queuecontroller.cluster.podplacement.gpu_pods import GpuPods, seen
from queuecontroller.cluster.status.queue_status import QueueStatus
from queuecontroller.cluster.status.workload_status import patch_of, pending
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.placement.capacity import (
    Checkpoint,
    CheckpointState,
    PodGpus,
    PodShare,
)
from queuecontroller.state.nodes.pod_checkpoints import Step, Tell
from queuecontroller.state.nodes.sessions import Hello
from sluicecommon.pod_annotations import CHECKPOINT
from tests.queue.cluster.podplacement.moving import NOW, Lab, S
from tests.queue.gpushares.extender.rooms import node

CHECKPOINTED = {"sluice.dev/on-preemption": "checkpoint"}
HALF: dict[str, Any] = {"gpumem": 50_000, "gpucores": 50}
"""Two of them do not fit on a GPU of 81,920 MiB."""
PREEMPTS = {"preemption": {"withinClusterQueue": "LowerPriority"}}


class CheckpointLab(Lab):
    """A Lab whose decisions are stored, and whose nodes report their pods."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.answers: dict[WorkloadKey, Checkpoint] = {}
        self.gpu_pods = GpuPods()
        self.epochs: dict[str, int] = {}
        self.number = 0
        self.now_ns = NOW
        more.setdefault("more", PREEMPTS)
        super().__init__(*args, **more)
        self.checkpointing = PodCheckpointing(
            self.shell,
            None,  # type: ignore[arg-type]  # what pods are told is played here
            self.gpu_pods,
            lambda: True,
            lambda: True,
            lambda key: self.cache.get(WORKLOADS, key),
            lambda document, kind, event: self.events.append((kind.kind, event.reason)),
        )
        self.events: list[tuple[str, str]] = []
        for document in self.cache.all_of(WORKLOADS):
            head = document["metadata"]
            self.checkpointing.changed(f"{head['namespace']}/{head['name']}", document)

    def run(self, document: dict[str, Any]) -> None:
        super().run(document)
        self._keep(document)

    def _keep(self, document: dict[str, Any]) -> None:
        self.number += 1
        document["metadata"]["resourceVersion"] = str(self.number)
        head = document["metadata"]
        self.gpu_pods.take(f"{head['namespace']}/{head['name']}", seen(document))

    # -- nodes ------------------------------------------------------------------------------------

    def report(self, away: tuple[str, ...] = ()) -> None:
        """All nodes report their pods with what has become of them."""
        self.number += 1
        for name in self.nodes:
            if name in away:
                continue
            pods = []
            for key, document in self.pods.items():
                if document["spec"].get("nodeName") != name:
                    continue
                head, answer = document["metadata"], self.answers.get(key)
                saved = answer is not None and answer.state is CheckpointState.SAVED
                shares = () if saved else (PodShare(f"GPU-{name}-0", 1, 0),)
                pods.append(PodGpus(head["uid"], head["namespace"], head["name"], shares, answer))
            capacity = replace(node(name, 1), pods=tuple(pods))
            if name not in self.epochs:
                found, _ = self.book.desk.connect(Hello(name, capacity=capacity), self.now_ns)
                self.epochs[name] = found.record.epoch
            self.book.desk.report(name, self.epochs[name], self.number, capacity, self.now_ns)
        self.book.nodes_room.follow(self.now_ns)

    def answer(self, key: WorkloadKey, state: CheckpointState, why: str = "") -> None:
        """The node has done what the pod's annotation tells it."""
        self.answers[key] = Checkpoint(self.told(key), state, why)
        self.report()

    def told(self, key: WorkloadKey) -> str:
        return str(self.pods[key]["metadata"]["annotations"].get(CHECKPOINT) or "")

    # -- the leader -------------------------------------------------------------------------------

    def write(self) -> None:
        """Store what the leader has decided about all Workloads."""
        for document in list(self.cache.all_of(WORKLOADS)):
            head = document["metadata"]
            key = WorkloadKey(f"{head['namespace']}/{head['name']}")
            workload = self.of(key)
            waits = None
            if workload.admission is None and (why := self.book.workloads.why_not(key)):
                waits = pending(why.reason, why.message, self.now_ns)
            patch = patch_of(document, self.mirror.as_read(document), workload, waits, self.now_ns)
            if not patch:
                continue
            status = {**(document.get("status") or {}), **patch}
            kept = {name: one for name, one in status.items() if one is not None}
            self.number += 1
            head = {**head, "resourceVersion": str(self.number)}
            after = {**document, "metadata": head, "status": kept}
            self.cache.take(WORKLOADS, after)
            self.mirror.workload(key, after, self.now_ns)
            self.checkpointing.changed(key, after)

    def look(self) -> list[Step]:
        """The leader decides, and what it decides is stored and told."""
        self.write()
        found = self.checkpointing.decide(self.book, self.now_ns)
        for key, step, pod in found:
            self.checkpointing.announce(key, step, pod)
            if isinstance(step, Tell) and pod is not None:
                annotations = self.pods[key]["metadata"]["annotations"]
                annotations.pop(CHECKPOINT, None)
                if step.value is not None:
                    annotations[CHECKPOINT] = step.value
                self._keep(self.pods[key])
                self.book.nodes_room.pods.take(self.pods[key])
        self.settle(self.now_ns)
        self.write()
        return [step for _, step, _ in found]

    def later(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)
        self.report()

    # -- answers ----------------------------------------------------------------------------------

    def of(self, key: WorkloadKey) -> Workload:
        return self.book.workloads.records[key].workload

    def document(self, key: WorkloadKey) -> dict[str, Any]:
        found = self.cache.get(WORKLOADS, key)
        assert found is not None
        return dict(found)

    def phase(self, key: WorkloadKey) -> str:
        return self.of(key).checkpoint_phase

    def used(self) -> dict[str, str]:
        """The ClusterQueue's reservation by resource, as its status has it."""
        status = QueueStatus(self.mirror)
        document = {"kind": "ClusterQueue", "metadata": {"name": "cq"}}
        [flavor] = status.status(document, NOW)["flavorsReservation"]
        return {one["name"]: one["total"] for one in flavor["resources"] if one["total"] != "0"}

    def free_mib(self, name: str = "a") -> int:
        return self.book.nodes_room.stock.nodes[name].gpus[f"GPU-{name}-0"].memory_bytes >> 20
