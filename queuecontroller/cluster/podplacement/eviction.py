"""Evicts victims of a preemption and nominates the preemptor, with kube-scheduler's writes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from queuecontroller.cluster.status.workload_status import stamp
from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.scheduler.model.reasons import DISRUPTION_TARGET, PREEMPTION_BY_SCHEDULER
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS

Document = Mapping[str, Any]
MANAGER: Final = "sluice-queue-extender"
TOO_MANY: Final = 429
GUARDED: Final = "disruption budget"
"""Part of the message of an eviction refused for a budget; rate limiting answers 429, too."""
SEVERAL: Final = "more than one PodDisruptionBudget"
"""Part of the message of an eviction of a pod with several budgets: it is deleted instead."""


class Guarded(Exception):
    """A PodDisruptionBudget allows no further disruption."""


class Evictions:
    def __init__(
        self, client: ApiClient, may_write: Callable[[], bool], now_ns: Callable[[], int]
    ) -> None:
        self._client = client
        self._may_write = may_write
        self._now_ns = now_ns

    async def name(self, pod: Document, node: str | None) -> None:
        """Set nominatedNodeName; None removes it. Raises ApiAway, ApiRefused."""
        head = pod["metadata"]
        patch = {"metadata": {"uid": head["uid"]}, "status": {"nominatedNodeName": node}}
        await self._client.merge_patch(PODS, head["name"], patch, head["namespace"], "status")

    async def evict(self, victim: HeldPod, message: str) -> None:
        """Evict a pod within its budgets, which the API server enforces. Idempotent.

        Raises Guarded, ApiAway, ApiRefused.
        """
        self._check()
        try:
            await self._client.create_part(
                PODS, victim.name, "eviction", eviction(victim), victim.namespace
            )
        except ApiRefused as refused:
            if refused.status == TOO_MANY and GUARDED in refused.message:
                raise Guarded from None
            if SEVERAL in refused.message:
                await self.delete(victim, message)
                return
            _ignore_gone(refused)
            return
        await self._mark(victim, message)  # Last: the eviction sets the same condition.

    async def delete(self, victim: HeldPod, message: str) -> None:
        """Delete a pod against its budgets, as kube-scheduler does as a last resort.

        Raises ApiAway, ApiRefused.
        """
        self._check()
        await self._mark(victim, message)
        try:
            await self._client.delete(PODS, victim.name, victim.namespace, victim.uid)
        except ApiRefused as refused:
            _ignore_gone(refused)

    def _check(self) -> None:
        if not self._may_write():
            raise ApiAway("this replica does not lead any more")

    async def _mark(self, victim: HeldPod, message: str) -> None:
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": PREEMPTION_BY_SCHEDULER,
            "message": message,
            "lastTransitionTime": stamp(self._now_ns()),
        }
        document = {
            "apiVersion": PODS.api_version,
            "kind": PODS.kind,
            "metadata": {
                "name": victim.name,
                "namespace": victim.namespace,
                "uid": victim.uid,
            },
            "status": {"conditions": [condition]},
        }
        with contextlib.suppress(ApiRefused):  # It was deleted, or recreated.
            await self._client.apply(
                PODS, victim.name, document, MANAGER, victim.namespace, "status"
            )


def _ignore_gone(refused: ApiRefused) -> None:
    """Ignore that a pod was deleted or recreated; raises all other refusals."""
    if not refused.not_found and not refused.conflict:
        raise refused


def eviction(pod: HeldPod) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
