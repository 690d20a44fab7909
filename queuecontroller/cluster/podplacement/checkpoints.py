"""Has the pods of preempted Workloads checkpointed, and restored once they have quota again; see
`state.nodes.pod_checkpoints` for what is decided.

A pod is told by its annotation, and its node answers with its reports. Both may be late or
repeated: each value has the time of the decision that it is of, and an answer counts for its value
only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, condition_of, has_condition
from queuecontroller.cluster.podplacement.gpu_pods import GpuPods
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.status.workload_status import stamp
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    CHECKPOINT_FAILED,
    CHECKPOINTED,
    EVICTED,
    FINISHED,
    QUOTA_RESERVED,
    RESTORED,
)
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.pod_checkpoints import (
    Facts,
    GiveUp,
    NoteRestored,
    NoteSaved,
    Step,
    Tell,
    next_step,
)
from queuecontroller.state.nodes.sessions import SECOND_NS
from queuecontroller.state.shell import Shell
from queuecontroller.state.workloads.conditions import SAVED
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource
from sluicecommon.pod_annotations import CHECKPOINT, RESTORE, SAVE

log = logging.getLogger(__name__)
EVERY_S: Final = 0.5
"""Seconds between two looks at the Workloads that are concerned; the nodes report once a second."""


class PodCheckpointing:
    def __init__(
        self,
        shell: Shell,
        client: ApiClient,
        pods: GpuPods,
        may_write: Callable[[], bool],
        knows_all: Callable[[], bool],
        stored: Callable[[WorkloadKey], Document | None],
        record: Callable[[Document, Resource, KubernetesEvent], None],
    ) -> None:
        """`knows_all` returns True once all pods that hold GPUs are known; `stored` returns a
        Workload as the API server has it."""
        self._shell = shell
        self._client = client
        self._pods = pods
        self._may_write = may_write
        self._knows_all = knows_all
        self._stored = stored
        self._record = record
        self._concerned: dict[WorkloadKey, None] = {}
        """Workloads whose pods are checkpointed, or were since they were last admitted."""
        self._away_since_ns: dict[str, int] = {}
        """Nodes that do not report, and since when."""

    def changed(self, key: str, document: Document | None) -> None:
        """Note a Workload that was stored."""
        mine = WorkloadKey(key)
        if document is not None and _is_concerned(document):
            self._concerned[mine] = None
        else:
            self._concerned.pop(mine, None)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if self._concerned and self._may_write() and self._knows_all():
                for key, step, pod in self._shell.step("checkpoints", self.decide):
                    self.announce(key, step, pod)
                    if isinstance(step, Tell) and pod is not None:
                        await self._tell(pod, step.value)
            await asyncio.sleep(EVERY_S)

    def decide(self, book: Book, now_ns: int) -> list[tuple[WorkloadKey, Step, Document | None]]:
        """Take the steps that concern the queue; returns all steps, each with the pod."""
        book.nodes_room.follow(now_ns)
        found: list[tuple[WorkloadKey, Step, Document | None]] = []
        for key in list(self._concerned):
            facts = self._facts(book, key, now_ns)
            step = next_step(facts) if facts is not None else None
            if facts is None or step is None:
                continue
            pod = self._pods.get(facts.pod.uid) if facts.pod is not None else None
            self._apply(book, facts, step, now_ns)
            found.append((key, step, pod))
        return found

    def _facts(self, book: Book, key: WorkloadKey, now_ns: int) -> Facts | None:
        record, document = book.workloads.records.get(key), self._stored(key)
        if record is None or document is None or book.checkpoints is None:
            return None
        workload, ledger = record.workload, book.nodes_room.pods
        if condition_of(document, CHECKPOINTED).get("reason") != workload.checkpoint_phase:
            return None  # The last step is not stored yet.
        pods = ledger.of_workload(key)
        pod = pods[0] if len(pods) == 1 else None
        save, since_ns = _value(SAVE, workload, EVICTED)
        restore, reserved_ns = _value(RESTORE, workload, QUOTA_RESERVED)
        since_ns = reserved_ns if workload.admission and not workload.is_true(EVICTED) else since_ns
        return Facts(
            record,
            pod,
            ledger.checkpoint(pod.uid) if pod is not None else None,
            save,
            restore,
            (now_ns - since_ns) / SECOND_NS,
            self._away_s(book, pod.node, now_ns) if pod is not None else 0.0,
            book.checkpoints.is_drained(record),
        )

    def _away_s(self, book: Book, name: str, now_ns: int) -> float:
        node = book.nodes.nodes.get(name)
        if node is not None and book.nodes.ready(node, now_ns):
            self._away_since_ns.pop(name, None)
            return 0.0
        return (now_ns - self._away_since_ns.setdefault(name, now_ns)) / SECOND_NS

    def _apply(self, book: Book, facts: Facts, step: Step, now_ns: int) -> None:
        key, admission = facts.record.key, facts.record.workload.admission
        match step:
            case NoteSaved() if admission is not None and book.checkpoints is not None:
                book.workloads.note_saved(key, book.checkpoints.kept(admission), now_ns)
            case NoteRestored():
                book.workloads.note_restored(key, now_ns)
            case GiveUp(why):
                text = f"Its pods are stopped, not checkpointed: {why}"
                book.workloads.give_up_checkpoint(key, text, now_ns)
            case _:
                pass

    def announce(self, key: WorkloadKey, step: Step, pod: Document | None) -> None:
        """Record the events of a step, on the Workload and on its pod."""
        match step:
            case NoteSaved():
                self._say(key, pod, KubernetesEvent(CHECKPOINTED, SAVED))
            case NoteRestored():
                self._say(
                    key, pod, KubernetesEvent(RESTORED, "Its GPU memory is on its GPUs again")
                )
            case GiveUp(why):
                text = f"Stopped, not checkpointed: {why}"
                self._say(key, pod, KubernetesEvent(CHECKPOINT_FAILED, text, warning=True))
            case _:
                pass

    async def _tell(self, pod: Document, value: str | None) -> None:
        head = pod["metadata"]
        patch: dict[str, Any] = {
            "metadata": {"uid": head["uid"], "annotations": {CHECKPOINT: value}}
        }
        try:
            await self._client.merge_patch(PODS, head["name"], patch, head["namespace"])
        except (ApiAway, ApiRefused) as error:  # It is told again, or is gone.
            log.info("pod %s/%s: not told %s: %s", head["namespace"], head["name"], value, error)

    def _say(self, key: WorkloadKey, pod: Document | None, event: KubernetesEvent) -> None:
        if (workload := self._stored(key)) is not None:
            self._record(workload, WORKLOADS, event)
        if pod is not None:
            self._record(pod, PODS, event)


def _is_concerned(document: Document) -> bool:
    found = condition_of(document, CHECKPOINTED)
    is_over = found.get("reason") == CHECKPOINT_FAILED or has_condition(document, FINISHED)
    return bool(found) and not is_over


def _value(what: str, workload: Workload, condition: str) -> tuple[str, int]:
    """The annotation's value for a decision, and the time of that."""
    found = workload.condition(condition)
    at_ns = found.changed_ns if found is not None else 0
    return f"{what} {stamp(at_ns)}", at_ns
