"""Requeues pods that were refused on every node, once resources are free.

kube-scheduler retries a refused pod after the next event that it receives. It may receive an event
before this process does, such as a pod's end or an uncordon: it then retries too early, and no
further event follows. Other changes it never sees: a node that has reconnected, a GPU that is
healthy again, a quota that has grown. So the pod is patched here, and kube-scheduler retries it for
that event.
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
from sluicecommon.newest import Newest

log = logging.getLogger(__name__)
LATE_S: Final = 10.0
"""Seconds after a refusal in which the end of a pod requeues it. Pods refused longer ago:
kube-scheduler has requeued them by itself."""
MOST: Final = 256
"""Refused pods that are remembered; the oldest are dropped."""
AT_ONCE: Final = 8
"""Pods patched at a time, and for one pod that has ended."""
REST_S: Final = 0.25
"""Seconds between two batches: at most 32 writes a second. The first pod that is bound makes
kube-scheduler retry all others anyway."""
TRIED_FOR: Final = "sluice.dev/tried-for"
"""Annotation of a pending pod: the UID of the pod whose end it is retried for, or another event
with its time."""


class _Pod(NamedTuple):
    refused_s: float
    namespace: str
    name: str


class Requeueing:
    def __init__(self, client: ApiClient, may_write: Callable[[], bool]) -> None:
        self._client = client
        self._may_write = may_write
        self._refused = Newest[str, _Pod](MOST)
        """Refused pods by UID; the newest last."""
        self._due: dict[str, tuple[_Pod, str]] = {}
        """Pods to patch, and the annotation's value."""
        self._task: asyncio.Task[None] | None = None

    def refused(self, pod: Mapping[str, Any]) -> None:
        """Record a pod that was refused on every node."""
        head = pod["metadata"]
        uid, name = head.get("uid"), head.get("name")
        if not isinstance(uid, str) or not isinstance(name, str):
            return
        self.forget(uid)
        self._refused[uid] = _Pod(monotonic(), str(head.get("namespace") or "default"), name)

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or deleted."""
        self._refused.pop(uid, None)
        self._due.pop(uid, None)

    def ended(self, uid: str) -> None:
        """Requeue pods after pod `uid` released resources, an event that kube-scheduler gets,
        too."""
        since_s = monotonic() - LATE_S
        recent = [one for one, pod in self._refused.items() if pod.refused_s >= since_s]
        self._try(recent[:AT_ONCE], uid)

    def room(self, what: str) -> None:
        """Requeue all refused pods after an event that kube-scheduler may not see.

        `what` must differ each time, so that the patch changes the pod.
        """
        self._try(list(self._refused), what)

    def try_now(self, pod: Mapping[str, Any], why: str) -> None:
        """Requeue a pod, refused before or not. `why` must be a new text for this pod."""
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
            log.info("pod %s/%s: requeueing failed: %s", pod.namespace, pod.name, error)
