"""Binds pods: one write to the API server stores both the node and the placement, or neither.

The GPUs are reserved in memory first. A refused write releases them; a write without an answer
keeps them until the API server shows what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.cluster.podplacement.exchange import PlaceExchange
from queuecontroller.cluster.podplacement.gpu_pods import GpuPods, SeenPod
from queuecontroller.cluster.podplacement.pod_gangs import PodGangs
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.gpushares.admission.hami_annotations import allocation
from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import Extender
from queuecontroller.gpushares.extender.numa_nodes import NumaNodes
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.gpushares.vendors.asks import containers_of
from sluicecommon.background import BackgroundTasks
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS
from sluicecommon.pod_annotations import PLACEMENT

AGAIN_S: Final = 0.5
CARRIED_OUT_S: Final = 65.0
"""Seconds after which the API server has ended a request (--request-timeout, one minute)."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Bindings:
    def __init__(
        self,
        client: ApiClient,
        extender: Extender,
        pods: GpuPods,
        exchanging: PlaceExchange,
        sharing: SharePods | None,
        gangs: PodGangs,
        numa: NumaNodes,
        take: Callable[[Mapping[str, Any]], SeenPod],
        may_write: Callable[[], bool],
        now_ns: Callable[[], int],
    ) -> None:
        """`take` is called with a pod that was read from the API server."""
        self._client = client
        self._extender = extender
        self._ledger = extender.ledger
        self._pods = pods
        self._exchanging = exchanging
        self._sharing = sharing
        self._gangs = gangs
        self._numa = numa
        self._take = take
        self._may_write = may_write
        self._now_ns = now_ns
        self._given: dict[str, Mapping[str, str]] = {}
        """Annotations of bindings in flight, by the pod's UID."""
        self._unknown: dict[str, PodPlace] = {}
        """Bindings without an answer, by the pod's UID."""
        self._background = BackgroundTasks()

    def end(self) -> None:
        self._background.cancel()

    async def bind(self, request: wire.BindQuestion) -> str:
        """Bind a pod; returns the error, "" if it was bound."""
        document = self._pods.get(request.uid)
        if document is None:  # The watch may be behind the scheduler's.
            try:
                stored = await self._client.get(PODS, request.name, request.namespace)
                document = self._take(stored).document or stored
            except (ApiAway, ApiRefused) as error:
                return f"pod {request.namespace}/{request.name} cannot be read: {error}"
        if document["metadata"].get("uid") != request.uid:
            return f"pod {request.namespace}/{request.name} was recreated (UID differs)"
        if why := await self._exchanging.why_not_stored(request.uid):
            return why
        again = self._unknown.get(request.uid)
        if again is None and self._ledger.place(request.uid) is not None:
            return f"pod {request.namespace}/{request.name} is being bound, or is bound already"
        if again is not None and again.node != request.node:
            return f"an earlier binding to node {again.node} has no answer yet"
        place = again or self._extender.place(document, request.node)
        if isinstance(place, str):
            return place
        if not self._may_write():
            return "this replica does not lead any more: try again"
        if again is None:
            given = self._reserve(document, request.node, place)
            if isinstance(given, str):
                return given
            self._given[request.uid] = given
            self._numa.bind(document, request.node)
        if again is None and place is not None:
            self._ledger.assume(request.uid, place)
            if why := await self._why_not_together(request.uid):
                self._forget(document)
                self._gangs.gangs.keep_again(request.uid)
                return why
        try:
            more = self._given.get(request.uid, {})
            await self._client.create_part(
                PODS, request.name, "binding", binding(request, place, more), request.namespace
            )
        except ApiRefused as refused:
            if again is None:
                self._forget(document)
            return f"the API server refused the binding: {refused}"
        except ApiAway as error:
            if again is None and (place is not None or self._given[request.uid]):
                self._unknown[request.uid] = place or PodPlace(request.node, {})
                self._background.spawn(self._find_out(request), "outcome of a binding")
            return f"the binding has no answer, the pod may be bound: {error}"
        if again is None:
            self._given.pop(request.uid, None)
        return ""

    async def _why_not_together(self, uid: str) -> str:
        """Wait for the other pods of the pod's group; returns an error, "" if it may be bound."""
        if why := await self._gangs.why_not_bound(uid):
            return why
        if not self._may_write():
            return "this replica does not lead any more: try again"
        return "" if self._ledger.place(uid) is not None else "the pod was deleted"

    def _reserve(
        self, document: Mapping[str, Any], node: str, place: PodPlace | None
    ) -> Mapping[str, str] | str:
        """Reserve quota and other vendors' devices; returns annotations for the binding, or an
        error."""
        shares = place.held if place is not None else ()
        given: Mapping[str, str] | str = {}
        if self._sharing is not None:
            amounts = [(one.memory_bytes, one.share_ppm) for one in shares]
            given = self._sharing.reserve(document, node, amounts)
        if isinstance(given, str) or place is None:
            return given
        names = [one.name for one in containers_of(document)]
        facts = allocation(names, place.containers, node, self._now_ns())
        return {**facts, **given}

    def _forget(self, document: Mapping[str, Any]) -> None:
        uid = str(document["metadata"]["uid"])
        self._ledger.forget(uid)
        self._numa.forget(uid)
        self._given.pop(uid, None)
        if self._sharing is not None:
            self._sharing.give_back(document)

    async def _find_out(self, request: wire.BindQuestion) -> None:
        """Find out whether a binding without an answer was stored. Its GPUs stay reserved until the
        pod is bound or gone, or the API server has ended the request. Meanwhile the pod may be
        bound to the same node again, and to no other."""
        try:
            await self._until_known(request)
        finally:
            self._unknown.pop(request.uid, None)
            self._given.pop(request.uid, None)

    async def _until_known(self, request: wire.BindQuestion) -> None:
        began_s = monotonic()
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                document = await self._client.get(PODS, request.name, request.namespace)
            except ApiRefused as refused:
                if not refused.not_found:
                    continue
                self._lost(request)
                return
            except ApiAway:
                continue
            self._take(document)
            if document["metadata"].get("uid") != request.uid:
                self._lost(request)
                return
            if document["spec"].get("nodeName"):
                return
            if monotonic() - began_s > CARRIED_OUT_S:
                self._forget(document)
                return

    def _lost(self, request: wire.BindQuestion) -> None:
        """Release what was reserved for a pod that was deleted or recreated."""
        self._ledger.forget(request.uid)
        self._numa.forget(request.uid)
        if self._sharing is not None:
            self._sharing.foreign.forget(request.uid)
            self._sharing.quotas.no_pod(request.uid)


def binding(
    request: wire.BindQuestion, place: PodPlace | None, more: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """Return the Binding; its annotations become the pod's in the same write."""
    head: dict[str, Any] = {
        "name": request.name,
        "namespace": request.namespace,
        "uid": request.uid,
    }
    annotations = dict(more)
    if place is not None and place.containers:
        annotations[PLACEMENT] = place.text()
    if annotations:
        head["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": head,
        "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
    }


__all__ = ["Bindings", "binding"]
