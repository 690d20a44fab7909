"""Which pod takes which decision: by its own name, or one of those that its owners make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.core.queue import pod_work
from nodeagent.core.queue.book import QueueBook
from nodeagent.ports.kubelet import OwnerRef, PodIdentity
from nodeagent.ports.queue import Work, WorkKey, WorkState
from nodeagent.shell.grants.reading import Grants
from nodeagent.units import NS_PER_S, PodUid

CLAIM_NS: Final = 60 * NS_PER_S
"""The kubelet tries to start a container again every 10 to 15 s."""


@dataclass(frozen=True, slots=True)
class Claim:
    pod: str
    """UID."""
    until_ns: int


class Claims:
    def __init__(self, book: QueueBook, grants: Grants, boot_ns: Callable[[], int]) -> None:
        self._book = book
        self._grants = grants
        self._boot_ns = boot_ns
        self._claims: dict[WorkKey, Claim] = {}
        """Decisions that a pod is about to start with."""

    def work_of_pod(self, pod: PodIdentity, owners: Sequence[OwnerRef]) -> Work | None:
        """Work decided for this pod, or for one of those that its owners make: then it is this
        pod's from now on, until the pod has its grant or does not ask for it any more."""
        work = pod_work.named(self._book.works.values(), pod.namespace, pod.name)
        if work is not None:
            return work
        now_ns = self._boot_ns()
        for key, claim in list(self._claims.items()):
            if now_ns >= claim.until_ns or key not in self._book.works:
                del self._claims[key]
        mine = self.works_of_owners(pod, owners)
        for one in mine:  # A retry, or another container of the pod.
            claimed = self._claims.get(one.key)
            if self._pod_in(one) == pod.uid or (claimed is not None and claimed.pod == pod.uid):
                work = one
                break
        else:
            work = pod_work.free(mine, self._claims.keys())
        if work is not None and work.state is WorkState.OFFERED:
            self._claims[work.key] = Claim(pod.uid, now_ns + CLAIM_NS)
        return work

    def works_of_owners(self, pod: PodIdentity, owners: Sequence[OwnerRef]) -> list[Work]:
        return pod_work.of_owners(self._book.works.values(), pod.namespace, pod.name, owners)

    def _pod_in(self, work: Work) -> str:
        """UID of the pod whose container has the work's grant; empty: none has."""
        held = self._grants.grant(work.grant)
        container = held.record.container if held is not None else None
        return container.pod_uid if container is not None else ""

    def pod_gone(self, pod: PodUid) -> None:
        """Frees at once what the pod had claimed."""
        for key, claim in list(self._claims.items()):
            if claim.pod == pod:
                del self._claims[key]
