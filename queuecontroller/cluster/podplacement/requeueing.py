"""Pods that were refused on every node, and are to be tried again once room is heard of.

kube-scheduler tries a refused pod again with the next change that it hears of. It may hear of a
change before we do, of a pod's end or of a cordon that is taken away: it then asks too early, and
nothing follows that it would ask again for. And of some it never hears: a node that has a session
again, a card that is healthy again, a quota that has grown. So the pod itself is changed once we
have heard, which is a change that it tries it again for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS

log = logging.getLogger(__name__)
LATE_S: Final = 10.0
"""Of what was refused longer ago kube-scheduler knows that there was a change since, where it hears
of it, too."""
MOST: Final = 256
"""Refused pods that are remembered, the newest."""
AT_ONCE: Final = 8
"""Of them that are changed at a time, and for one pod that is gone."""
REST_S: Final = 0.25
"""Between two times: where many wait and much ends, it is 32 writes a second. The first that is
bound lets kube-scheduler try all others in any case."""
TRIED_FOR: Final = "sluice.dev/tried-for"
"""On a pod that waits: the UID of the pod after whose end it is to be tried again, or what else
happened, and when."""


class _Pod(NamedTuple):
    refused_s: float
    namespace: str
    name: str


class Requeueing:
    def __init__(self, client: ApiClient, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write
        self._refused: dict[str, _Pod] = {}
        """By UID; the newest last."""
        self._due: dict[str, tuple[_Pod, str]] = {}
        """Those that are to be changed, and for what."""
        self._task: asyncio.Task[None] | None = None

    def refused(self, pod: Mapping[str, Any]) -> None:
        """It was refused on every node, by what is known now."""
        head = pod["metadata"]
        uid, name = head.get("uid"), head.get("name")
        if not isinstance(uid, str) or not isinstance(name, str):
            return
        self.forget(uid)
        self._refused[uid] = _Pod(monotonic(), str(head.get("namespace") or "default"), name)
        if len(self._refused) > MOST:
            del self._refused[next(iter(self._refused))]

    def forget(self, uid: str) -> None:
        """It is bound, or gone."""
        self._refused.pop(uid, None)
        self._due.pop(uid, None)

    def ended(self, uid: str) -> None:
        """The pod `uid` holds less, or nothing any more: of which kube-scheduler hears as we do."""
        since_s = monotonic() - LATE_S
        recent = [one for one, pod in self._refused.items() if pod.refused_s >= since_s]
        self._try(recent[:AT_ONCE], uid)

    def room(self, what: str) -> None:
        """There is more than there was, for a reason of which kube-scheduler may never hear. `what`
        is another text each time."""
        self._try(list(self._refused), what)

    def try_now(self, pod: Mapping[str, Any], why: str) -> None:
        """Whether it was refused lately or not. `why`: what it was not changed for before."""
        self.refused(pod)
        self._try([one for one in (str(pod["metadata"].get("uid")),) if one in self._refused], why)

    def _try(self, uids: list[str], what: str) -> None:
        for uid in uids:
            self._due[uid] = (self._refused.pop(uid), what)
        if self._due and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._change_all())

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _change_all(self) -> None:
        try:
            while self._due:
                now = [(uid, *self._due.pop(uid)) for uid in list(self._due)[:AT_ONCE]]
                await asyncio.gather(*(self._change(*one) for one in now))
                await asyncio.sleep(REST_S)
        finally:
            self._task = None

    async def _change(self, uid: str, pod: _Pod, what: str) -> None:
        if not self._may_write():
            return
        patch = {"metadata": {"uid": uid, "annotations": {TRIED_FOR: what}}}
        try:
            await self._client.merge_patch(PODS, pod.name, patch, pod.namespace)
        except (ApiAway, ApiRefused) as error:
            log.info("pod %s/%s is not tried again at once: %s", pod.namespace, pod.name, error)
