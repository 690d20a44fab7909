"""Writes answers to checks, and whether a check is active: conditional on the version looked at."""

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
from queuecontroller.cluster.status.workload_status import stamp
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
        """`stored` hears of each Workload that was written: before, as it is now, and whether that
        is news."""
        self._client = client
        self._cache = cache
        self._recorder = recorder
        self._now_ns = now_ns
        self._stored = stored
        self.writes_total = 0

    async def write_answers(self, workload: Document, answers: Mapping[str, Answer]) -> bool:
        """False: it is said already. Raises ApiAway, ApiRefused."""
        made = with_answers(workload, answers, stamp(self._now_ns()))
        if made is None:
            return False
        found = await self.patch(WORKLOADS, workload, {"status": {"admissionChecks": made}})
        is_news = self._cache.take(WORKLOADS, found)
        before = checks_of(workload)
        for name, answer in answers.items():
            was = before[name].get("state") if name in before else answer.state
            if was != answer.state:
                self.record(found, _told(name, str(was), answer))
        self._stored(workload, found, is_news)
        return True

    def record(self, workload: Document, told: KubernetesEvent) -> None:
        self._recorder.record(workload, WORKLOADS, told)

    async def write_active(self, check: Document, why_not: str) -> None:
        """Whether it is active: its ClusterQueues admit nobody while it is not. Raises ApiAway,
        ApiRefused."""
        wanted = {
            "type": ACTIVE,
            "status": "False" if why_not else "True",
            "reason": BAD_PARAMETERS if why_not else ACTIVE,
            "message": why_not or "The admission check is active",
            "observedGeneration": check["metadata"].get("generation", 0),
        }
        known = condition_of(check, ACTIVE)
        if all(known.get(name) == value for name, value in wanted.items()):
            return
        same = known.get("status") == wanted["status"]
        since = known.get("lastTransitionTime") if same else None
        wanted["lastTransitionTime"] = since or stamp(self._now_ns())
        others = (check.get("status") or {}).get("conditions") or ()
        kept = [dict(one) for one in others if one.get("type") != ACTIVE]
        found = await self.patch(CHECKS, check, {"status": {"conditions": [*kept, wanted]}})
        self._cache.take(CHECKS, found)

    async def patch(
        self, kind: Resource, document: Document, patch: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the API server made of it. Raises ApiAway, ApiRefused."""
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


def _told(name: str, was: str, answer: Answer) -> KubernetesEvent:
    text = f"Admission check {name} updated state from {was} to {answer.state}"
    said = f" with message: {answer.message}" if answer.message else ""
    return KubernetesEvent(CHECK_UPDATED, text + said)
