"""Writes answers to checks and the Active condition of AdmissionChecks, with optimistic locking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from queuecontroller.cluster.admissionchecks.states import Answer, checks_of, with_answers
from queuecontroller.cluster.cache.kinds import CHECKS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    condition_of,
    key_of,
    pruned,
    split_key,
)
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.status.workload_status import LONGEST, stamp
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.scheduler.model.reasons import ACTIVE, BAD_PARAMETERS, CHECK_UPDATED
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import Resource


class CheckStatusWriter:
    def __init__(
        self,
        client: ApiClient,
        cache: ObjectCache,
        recorder: EventRecorder,
        now_ns: Callable[[], int],
        stored: Callable[[Document, Document, bool], None],
    ) -> None:
        """`stored` is called after each write of a Workload: with it as it was, as it is now, and
        True if the cache did not have that version yet."""
        self._client = client
        self._cache = cache
        self._recorder = recorder
        self._now_ns = now_ns
        self._stored = stored
        self.writes_total = 0

    async def write_answers(
        self,
        workload: Document,
        answers: Mapping[str, Answer],
        more: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write answers, and `more` of the status in the same patch; returns False if the answers
        stand there already and there is no more. Raises ApiAway, ApiRefused."""
        made = with_answers(workload, answers, stamp(self._now_ns()))
        status = dict(more or {})
        if made is not None:
            status["admissionChecks"] = made
        if not status:
            return False
        found = await self.patch(WORKLOADS, workload, {"status": status})
        is_news = self._cache.take(WORKLOADS, found)
        before = checks_of(workload)
        for name, answer in answers.items():
            was = before[name].get("state") if name in before else answer.state
            if was != answer.state:
                self.record(found, _state_changed(name, str(was), answer))
        self._stored(workload, found, is_news)
        return True

    def record(self, workload: Document, event: KubernetesEvent) -> None:
        self._recorder.record(workload, WORKLOADS, event)

    async def write_active(self, check: Document, why_not: str) -> None:
        """Write the condition Active of a check; while it is False, its ClusterQueues admit no
        workloads.

        `why_not` is empty for an active check. Raises ApiAway, ApiRefused.
        """
        reason = BAD_PARAMETERS if why_not else ACTIVE
        message = why_not or "The admission check is active"
        await self.write_condition(CHECKS, check, not why_not, reason, message)

    async def write_condition(
        self, kind: Resource, document: Document, active: bool, reason: str, message: str
    ) -> None:
        """Write the condition Active of an object. Raises ApiAway, ApiRefused."""
        wanted = {
            "type": ACTIVE,
            "status": "True" if active else "False",
            "reason": reason,
            "message": message[:LONGEST],
            "observedGeneration": document["metadata"].get("generation", 0),
        }
        known = condition_of(document, ACTIVE)
        if all(known.get(name) == value for name, value in wanted.items()):
            return
        same = known.get("status") == wanted["status"]
        since = known.get("lastTransitionTime") if same else None
        wanted["lastTransitionTime"] = since or stamp(self._now_ns())
        others = (document.get("status") or {}).get("conditions") or ()
        kept = [dict(one) for one in others if one.get("type") != ACTIVE]
        found = await self.patch(kind, document, {"status": {"conditions": [*kept, wanted]}})
        self._cache.update(kind, found)

    async def patch(
        self, kind: Resource, document: Document, patch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Patch an object; returns it as stored. Raises ApiAway, ApiRefused."""
        namespace, name = split_key(key_of(document))
        self.writes_total += 1
        answer = await self._client.merge_patch(
            kind,
            name,
            patch,
            namespace,
            "status" if "status" in patch else "",
            str(document["metadata"]["resourceVersion"]),
        )
        return pruned(answer)


def _state_changed(name: str, was: str, answer: Answer) -> KubernetesEvent:
    text = f"Admission check {name} updated state from {was} to {answer.state}"
    suffix = f" with message: {answer.message}" if answer.message else ""
    return KubernetesEvent(CHECK_UPDATED, text + suffix)
