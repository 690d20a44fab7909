"""Exchanges reserved places of queued pods that kube-scheduler refuses for its own reasons: another
pod's anti-affinity, a taint, a volume's zone. The new place is on a node that kube-scheduler
accepts; it is stored in the Workload before the pod is bound there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache, labels_of
from queuecontroller.frameworks.names import POD_SET
from queuecontroller.gpushares.extender.answers import Extender
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book
from queuecontroller.state.exchanged_places import exchange, may_move
from queuecontroller.state.shell import Shell

RESTS_S: Final = 5.0
"""Seconds between two exchanges for one pod; each is a write."""
STORED_S: Final = 5.0
"""Seconds that a binding waits until the exchange is stored."""
LOOKS_S: Final = 0.02
MOST: Final = 10_000
"""Pods whose last exchange is remembered."""


class PlaceExchange:
    def __init__(self, shell: Shell, extender: Extender, cache: ObjectCache) -> None:
        self._shell = shell
        self._extender = extender
        self._cache = cache
        self._moved: dict[str, tuple[WorkloadKey, PodPlace]] = {}
        """Exchanged places that may not be stored yet, by the pod's UID."""
        self._rests: dict[str, float] = {}

    def try_for(self, pod: Document, names: Sequence[str]) -> bool:
        """Exchange a pod's place for one on these nodes; returns True if it has one now."""
        uid = str(pod["metadata"].get("uid") or "")
        ledger = self._extender.ledger
        place = ledger.reserved.offered(uid)
        if place is None or place.node in names or ledger.place(uid) is not None:
            return False
        if monotonic() < self._rests.get(uid, 0.0):
            return False
        key, pod_set = WorkloadKey(place.workload), str(labels_of(pod).get(POD_SET) or "main")
        book = self._shell.book
        there = [one for one in names if may_move(book, key, pod_set, place.node, one)]
        other = self._extender.best(self._extender.read(pod), there)
        if other is None:
            return False

        def step(book: Book, now_ns: int) -> bool:
            return exchange(book, key, pod_set, uid, other, now_ns)

        if not self._shell.step("place exchanged", step):
            return False
        self._forget_old()
        self._rests[uid] = monotonic() + RESTS_S
        self._moved[uid] = (key, other)
        return True

    def _forget_old(self) -> None:
        if len(self._rests) > MOST:
            now_s = monotonic()
            self._rests = {uid: until for uid, until in self._rests.items() if until > now_s}
            there = self._extender.ledger.reserved.offered
            self._moved = {uid: one for uid, one in self._moved.items() if there(uid) is not None}

    async def why_not_stored(self, uid: str) -> str:
        """Wait until a pod's exchanged place is stored; returns an error, "" if it may be bound."""
        found = self._moved.get(uid)
        if found is None:
            return ""
        key, place = found
        until_s = monotonic() + STORED_S
        while monotonic() < until_s:
            if self._extender.ledger.reserved.offered(uid) != replace(place, workload=key):
                del self._moved[uid]
                return "the pod's exchanged place was reassigned: try again"
            if _has(self._cache.get(WORKLOADS, key), place):
                del self._moved[uid]
                return ""
            await asyncio.sleep(LOOKS_S)
        return "the pod's exchanged place is not stored yet: try again"


def _has(workload: Mapping[str, Any] | None, place: PodPlace) -> bool:
    admission = ((workload or {}).get("status") or {}).get("admission") or {}
    wanted = json.loads(place.text())
    return any(
        wanted == json.loads(one["place"])
        for given in admission.get("podSetAssignments") or ()
        for one in given.get("gpuPlaces") or ()
    )
