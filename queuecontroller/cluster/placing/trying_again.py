"""Pods that were refused on every node just before room was heard of.

kube-scheduler tries a refused pod again with the next change that it hears of, and it may hear of
a pod's end before we do: it then asks too early, and nothing follows that it would ask again for.
So the pod itself is changed once we have heard, which is such a change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS

log = logging.getLogger(__name__)
LATE_S: Final = 10.0
"""Of what was refused longer ago kube-scheduler knows that there was a change since."""
UNHEARD_S: Final = 300.0
"""The same of what it does not hear of: then it tries all pods again by itself."""
MOST: Final = 256
"""Refused pods that are remembered, the newest."""
AT_ONCE: Final = 8
"""Of them for one pod that is gone."""
TRIED_FOR: Final = "sluice.dev/tried-for"
"""On a pod that waits: the UID of the pod after whose end it is to be tried again, or since when
there is room that was made for it."""


class TryingAgain:
    def __init__(self, client: ApiClient, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write
        self._refused: dict[str, tuple[float, str, str]] = {}
        """When, namespace and name, by UID; the newest last."""
        self._tasks: set[asyncio.Task[None]] = set()

    def refused(self, pod: Mapping[str, Any]) -> None:
        """It was refused on every node."""
        head = pod["metadata"]
        uid, name = head.get("uid"), head.get("name")
        if not isinstance(uid, str) or not isinstance(name, str):
            return
        self._refused.pop(uid, None)
        self._refused[uid] = (monotonic(), str(head.get("namespace") or "default"), name)
        if len(self._refused) > MOST:
            del self._refused[next(iter(self._refused))]

    def freed(self, uid: str, late_s: float = LATE_S) -> None:
        """The pod `uid` holds nothing any more; or what else gave room, in words, that
        kube-scheduler hears nothing of."""
        self._refused.pop(uid, None)
        since_s = monotonic() - late_s
        for old in [one for one, (at_s, _, _) in self._refused.items() if at_s < since_s]:
            del self._refused[old]
        for one in list(self._refused)[:AT_ONCE]:
            _, namespace, name = self._refused.pop(one)
            self._begin(one, namespace, name, uid)

    def try_now(self, pod: Mapping[str, Any], why: str) -> None:
        """`why`: what it was not changed for before."""
        head = pod["metadata"]
        uid = str(head["uid"])
        self._refused.pop(uid, None)
        self._begin(uid, str(head.get("namespace") or "default"), str(head["name"]), why)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _begin(self, uid: str, namespace: str, name: str, why: str) -> None:
        task = asyncio.get_running_loop().create_task(self._change(uid, namespace, name, why))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _change(self, uid: str, namespace: str, name: str, why: str) -> None:
        if not self._may_write():
            return
        patch = {"metadata": {"uid": uid, "annotations": {TRIED_FOR: why}}}
        try:
            await self._client.merge_patch(PODS, name, patch, namespace)
        except (ApiAway, ApiRefused) as error:
            log.info("pod %s/%s is not tried again at once: %s", namespace, name, error)
