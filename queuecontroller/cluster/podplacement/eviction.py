"""What is written at pods that make way for another, and at that one, as kube-scheduler would."""

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
"""In the words of an eviction that is refused for one; the API server says 429 for haste, too."""
SEVERAL: Final = "more than one PodDisruptionBudget"
"""In the words of one that is not served: who has so many is deleted."""


class Guarded(Exception):
    """A budget has no disruption left."""


class Evictions:
    def __init__(
        self, client: ApiClient, may_write: Callable[[], bool], now_ns: Callable[[], int]
    ) -> None:
        self._client = client
        self._may_write = may_write
        self._now_ns = now_ns

    async def name(self, pod: Document, node: str | None) -> None:
        """Where the pod is to go; None: nowhere any more. Raises ApiAway, ApiRefused."""
        head = pod["metadata"]
        patch = {"metadata": {"uid": head["uid"]}, "status": {"nominatedNodeName": node}}
        await self._client.merge_patch(PODS, head["name"], patch, head["namespace"], "status")

    async def evict(self, victim: HeldPod, message: str) -> None:
        """Within its budgets, by the API server's word. Raises Guarded, ApiAway, ApiRefused; the
        same again does no harm."""
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
            _is_gone_or(refused)
            return
        await self._mark(victim, message)  # after: the API server writes a reason, too

    async def delete(self, victim: HeldPod, message: str) -> None:
        """Against its budgets, as kube-scheduler does where nothing else helps. Raises ApiAway,
        ApiRefused."""
        self._check()
        await self._mark(victim, message)
        try:
            await self._client.delete(PODS, victim.name, victim.namespace, victim.uid)
        except ApiRefused as refused:
            _is_gone_or(refused)

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
        with contextlib.suppress(ApiRefused):  # gone at once, or another by its name
            await self._client.apply(
                PODS, victim.name, document, MANAGER, victim.namespace, "status"
            )


def _is_gone_or(refused: ApiRefused) -> None:
    """Gone, or another by its name; raises what is neither."""
    if not refused.not_found and not refused.conflict:
        raise refused


def eviction(pod: HeldPod) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
