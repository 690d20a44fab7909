"""A pod is bound: one write to the API server that carries the node and the placement, or neither.

The GPUs are taken in memory before; a write that was refused gives them back, one whose fate is
unknown keeps them until the API server has told it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.cluster.podplacement.exchange import PlaceExchange
from queuecontroller.cluster.podplacement.gpu_pods import GpuPods, SeenPod
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.gpushares.admission.hami_annotations import allocation
from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import Extender
from queuecontroller.gpushares.extender.pods import PLACEMENT, PodPlace
from queuecontroller.gpushares.vendors.asks import containers_of
from sluicecommon.background import BackgroundTasks
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS

AGAIN_S: Final = 0.5
CARRIED_OUT_S: Final = 65.0
"""The API server gives up what it was asked a minute ago (--request-timeout)."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Bindings:
    def __init__(
        self,
        client: ApiClient,
        extender: Extender,
        pods: GpuPods,
        exchanging: PlaceExchange,
        sharing: SharePods | None,
        take: Callable[[Mapping[str, Any]], SeenPod],
        may_write: Callable[[], bool],
        now_ns: Callable[[], int],
    ) -> None:
        """`take` hears of a pod that was read from the API server."""
        self._client = client
        self._extender = extender
        self._ledger = extender.ledger
        self._pods = pods
        self._exchanging = exchanging
        self._sharing = sharing
        self._take = take
        self._may_write = may_write
        self._now_ns = now_ns
        self._given: dict[str, Mapping[str, str]] = {}
        """Annotations of bindings that are under way, by the pod's UID."""
        self._unknown: dict[str, PodPlace] = {}
        """Bindings without an answer, by the pod's UID."""
        self._background = BackgroundTasks()

    def end(self) -> None:
        self._background.cancel()

    async def bind(self, asked: wire.BindQuestion) -> str:
        """Empty: done."""
        document = self._pods.get(asked.uid)
        if document is None:  # the watch may be a moment behind the scheduler's
            try:
                stored = await self._client.get(PODS, asked.name, asked.namespace)
                document = self._take(stored).document or stored
            except (ApiAway, ApiRefused) as error:
                return f"pod {asked.namespace}/{asked.name} cannot be read: {error}"
        if document["metadata"].get("uid") != asked.uid:
            return f"pod {asked.namespace}/{asked.name} is another one by now"
        if why := await self._exchanging.why_not_stored(asked.uid):
            return why
        again = self._unknown.get(asked.uid)
        if again is None and self._ledger.place(asked.uid) is not None:
            return f"pod {asked.namespace}/{asked.name} is being bound, or is bound already"
        if again is not None and again.node != asked.node:
            return f"whether the pod was bound to node {again.node} is not known yet"
        place = again or self._extender.place(document, asked.node)
        if isinstance(place, str):
            return place
        if not self._may_write():
            return "this replica does not lead any more: ask again"
        if again is None:
            given = self._reserve(document, asked.node, place)
            if isinstance(given, str):
                return given
            self._given[asked.uid] = given
        if again is None and place is not None:
            self._ledger.assume(asked.uid, place)
        try:
            more = self._given.get(asked.uid, {})
            await self._client.create_part(
                PODS, asked.name, "binding", binding(asked, place, more), asked.namespace
            )
        except ApiRefused as refused:
            if again is None:
                self._forget(document)
            return f"the API server does not bind the pod: {refused}"
        except ApiAway as error:
            if again is None and (place is not None or self._given[asked.uid]):
                self._unknown[asked.uid] = place or PodPlace(asked.node, {})
                self._background.spawn(self._find_out(asked), "outcome of a binding")
            return f"whether the pod was bound is not known: {error}"
        if again is None:
            self._given.pop(asked.uid, None)
        return ""

    def _reserve(
        self, document: Mapping[str, Any], node: str, place: PodPlace | None
    ) -> Mapping[str, str] | str:
        """What else it is bound with: what other tools and other vendors' plugins read."""
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
        self._given.pop(uid, None)
        if self._sharing is not None:
            self._sharing.give_back(document)

    async def _find_out(self, asked: wire.BindQuestion) -> None:
        """What became of a binding without an answer: its GPUs are kept until that is known, which
        is when the pod is bound or gone, or the API server cannot carry it out any more. Meanwhile
        the pod may be bound there again, and nowhere else."""
        try:
            await self._until_known(asked)
        finally:
            self._unknown.pop(asked.uid, None)
            self._given.pop(asked.uid, None)

    async def _until_known(self, asked: wire.BindQuestion) -> None:
        began_s = monotonic()
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                document = await self._client.get(PODS, asked.name, asked.namespace)
            except ApiRefused as refused:
                if not refused.not_found:
                    continue
                self._lost(asked)
                return
            except ApiAway:
                continue
            self._take(document)
            if document["metadata"].get("uid") != asked.uid:
                self._lost(asked)
                return
            if document["spec"].get("nodeName"):
                return
            if monotonic() - began_s > CARRIED_OUT_S:
                self._forget(document)
                return

    def _lost(self, asked: wire.BindQuestion) -> None:
        """The pod is gone, or another one by now."""
        self._ledger.forget(asked.uid)
        if self._sharing is not None:
            self._sharing.foreign.forget(asked.uid)
            self._sharing.quotas.no_pod(asked.uid)


def binding(
    asked: wire.BindQuestion, place: PodPlace | None, more: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """Annotations of a Binding become the pod's, in the same write."""
    head: dict[str, Any] = {"name": asked.name, "namespace": asked.namespace, "uid": asked.uid}
    annotations = dict(more)
    if place is not None and place.containers:
        annotations[PLACEMENT] = place.text()
    if annotations:
        head["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": head,
        "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
    }


__all__ = ["Bindings", "binding"]
