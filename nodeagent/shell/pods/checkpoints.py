"""Checkpoints pods that would be stopped, as the queue controller tells them by an annotation.

The controller writes `save` or `restore`, each with the time of its decision, and this node's next
report has the answer. Nothing is kept here: after a restart the pods have the same annotations, and
the grants know where their memory is. A pod whose annotation is taken away stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodeagent.core.grants.states import Held
from nodeagent.core.kubelet.placed import is_queued
from nodeagent.core.kubelet.pod_documents import PodFacts
from nodeagent.core.kubelet.pod_limits import parse_quantity
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.ledger import GrantState, Spill
from nodeagent.ports.queue import PodCheckpoint
from nodeagent.shell.queue.spilling import Spills
from nodeagent.units import GrantId, PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.pod_annotations import CHECKPOINT, PLACEMENT, SAVE

log = logging.getLogger(__name__)

MOVING: Final = "moving"
SAVED: Final = "saved"
RESTORED: Final = "restored"
REFUSED: Final = "refused"
AGAIN_S: Final = 5.0
"""Seconds between two tries of a pod to return to GPUs that have no room."""
LONGEST_WHY: Final = 500
NO_GRANT: Final = "none of its containers runs with a GPU"
OVERDUE: Final = "it was on the host for longer than checkpoint.longest_s"


@dataclass(frozen=True, slots=True)
class _Answer:
    pod: PodFacts
    told: str
    state: str = MOVING
    why: str = ""


class PodCheckpoints:
    def __init__(
        self,
        live: Callable[[], Mapping[GrantId, Held]],
        spills: Spills,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`live` returns the grants."""
        self._live = live
        self._spills = spills
        self._background = BackgroundTasks(fatal)
        self._answers: dict[PodUid, _Answer] = {}
        self._working: set[PodUid] = set()
        self._turn = asyncio.Lock()
        self.again_s = AGAIN_S
        self.on_saved: Callable[[], None] = lambda: None
        """Called when `uncounted` has changed."""
        self.is_counted: Callable[[], bool] = lambda: True
        """True once the Node's sums are those without `uncounted`: before that a pod in the place
        of a checkpointed one would be refused by the kubelet."""

    # -- pods -------------------------------------------------------------------------------------

    def changed(self, pod: PodFacts) -> None:
        """A pod is there, or another one than before."""
        told = _told(pod)
        if pod.is_over or not told:
            self._answers.pop(pod.uid, None)
            return
        known = self._answers.get(pod.uid)
        if known is not None and known.told == told:
            return
        self._answers[pod.uid] = _Answer(pod, told)
        if pod.uid not in self._working:
            self._working.add(pod.uid)
            self._background.spawn(self._work(pod.uid), "checkpoint of a pod")

    def gone(self, pod: PodUid) -> None:
        self._answers.pop(pod, None)

    def overdue(self, grant: GrantId) -> bool:
        """A grant was on the host for too long: the controller has its pod stopped. False: it is
        no such pod's."""
        held = self._live().get(grant)
        ref = held.record.container if held is not None else None
        answer = self._answers.get(PodUid(ref.pod_uid)) if ref is not None else None
        if answer is None or answer.state != SAVED:
            return False
        self._answers[answer.pod.uid] = replace(answer, state=REFUSED, why=OVERDUE)
        return True

    def answers(self) -> dict[PodUid, PodCheckpoint]:
        """The answers of this node's pods, for its next report."""
        return {uid: self._now(one) for uid, one in self._answers.items()}

    def uncounted(self) -> dict[str, int]:
        """Amounts that checkpointed pods request and do not use, by resource; rounded down."""
        found: Counter[str] = Counter()
        for answer in self._answers.values():
            if answer.state == SAVED:
                for _, resources in answer.pod.containers[answer.pod.init_containers :]:
                    for name, text in resources:
                        with contextlib.suppress(ValueError):
                            found[name] += int(parse_quantity(text)) if "/" in name else 0
        return dict(found)

    def _now(self, answer: _Answer) -> PodCheckpoint:
        """An answer as it is true now: another program may have restored a pod, a container may
        have ended."""
        state, why = answer.state, answer.why
        if state == SAVED:
            spills = [held.record.spill for _, held in self._grants(answer.pod.uid)]
            if not spills:
                state, why = REFUSED, NO_GRANT
            elif Spill.RESIDENT in spills:
                state, why = (
                    REFUSED,
                    "its memory is on its GPUs, and was not restored for the queue",
                )
            elif any(one is not Spill.SPILLED for one in spills):
                state, why = MOVING, "its memory goes to the host again"
            elif not self.is_counted():
                state, why = MOVING, "the sums in the Node's status are not written yet"
        pod = answer.pod
        return PodCheckpoint(pod.namespace, pod.name, answer.told, state, why[:LONGEST_WHY])

    # -- one pod ----------------------------------------------------------------------------------

    async def _work(self, uid: PodUid) -> None:
        """Do what a pod is told, until that is done, refused, or it is told something else."""
        try:
            while (answer := self._answers.get(uid)) is not None and answer.state == MOVING:
                async with self._turn:
                    act = self._save if answer.told.startswith(SAVE) else self._restore
                    state, why = await act(uid)
                now = self._answers.get(uid)
                if now is None or now.told != answer.told:
                    continue
                self._answers[uid] = replace(now, state=state, why=why)
                self.on_saved()
                if state == REFUSED:
                    log.warning("pod %s: %s: %s", now.pod.name, now.told, why)
                if state == MOVING:
                    await asyncio.sleep(self.again_s)
        finally:
            self._working.discard(uid)

    def _grants(self, uid: PodUid) -> list[tuple[GrantId, Held]]:
        return [
            (grant, held)
            for grant, held in self._live().items()
            if held.record.container is not None
            and held.record.container.pod_uid == uid
            and held.record.state is GrantState.ACTIVE
        ]

    async def _save(self, uid: PodUid) -> tuple[str, str]:
        grants = self._grants(uid)
        if not grants:
            return REFUSED, NO_GRANT
        moved: list[GrantId] = []
        for grant, held in grants:
            was_there = held.record.spill is Spill.RESIDENT
            try:
                await self._spills.spill(grant)
            except Refused as refused:
                for one in moved:
                    await self._bring_back(one)
                return REFUSED, refused.reason
            if was_there:
                moved.append(grant)
        return SAVED, ""

    async def _bring_back(self, grant: GrantId) -> None:
        """Undo what was done for a pod of which another container cannot be saved."""
        try:
            await self._spills.resume(grant)
        except Refused as refused:
            log.warning("grant %s: %s", grant, refused)  # The controller has the pod stopped.

    async def _restore(self, uid: PodUid) -> tuple[str, str]:
        for grant, held in self._grants(uid):
            if held.record.spill is Spill.RESIDENT and not held.record.paused:
                continue
            try:
                await self._spills.resume(grant)
            except Refused as refused:
                waits = refused.kind is RefusalKind.EXHAUSTED
                return MOVING if waits else REFUSED, refused.reason
        return RESTORED, ""


def _told(pod: PodFacts) -> str:
    """The annotation of a pod; empty for one that it has not placed for a workload."""
    annotations = dict(pod.annotations)
    told = annotations.get(CHECKPOINT, "")
    return told if told and is_queued(annotations.get(PLACEMENT, "")) else ""
