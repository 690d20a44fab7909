"""Records an event on a pod of this node whose words of KAI's nothing honours.

A pod with only a fraction in its annotations requests no resource of the device plugin, so no other
part of the node meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from nodeagent.core.kubelet.pod_documents import PodFacts
from nodeagent.units import PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.kai.unread import unread_fraction, unread_words
from sluicecommon.newest import Seen
from sluicecommon.pod_annotations import PLACEMENT

REASON: Final = "SluiceAnnotationIgnored"
ADMITTED_AS: Final = "sluice.dev/admitted-as"
"""Annotation of pods that the queue's webhook has changed."""
MAX_TOLD: Final = 4096
Record = Callable[[PodUid, str, str], Coroutine[Any, Any, None]]


class ForeignWords:
    def __init__(self, record: Record, resource: Callable[[], str]) -> None:
        """`resource` returns the name of the device plugin's resource."""
        self._record = record
        self._resource = resource
        self._background = BackgroundTasks()
        self._told = Seen[PodUid](MAX_TOLD)
        """Pods that have the event."""

    def changed(self, pod: PodFacts) -> None:
        """Record the event once for each pod."""
        if pod.is_over or pod.uid in self._told:
            return
        texts = ignored(pod, self._resource())
        if not texts or not self._told.is_first(pod.uid):
            return
        self._background.spawn(self._record(pod.uid, REASON, "; ".join(texts)), "event of a pod")


def ignored(pod: PodFacts, resource: str) -> list[str]:
    """The pod's annotations of KAI's that have no effect, each with the remedy."""
    annotations, labels = dict(pod.annotations), dict(pod.labels)
    found = []
    if ADMITTED_AS not in annotations:
        names = [name for name, _ in pod.containers]
        order = [*names[pod.init_containers :], *names[: pod.init_containers]]
        fraction = unread_fraction(annotations, order)
        found += [fraction] if fraction else []
    if any(resource in dict(amounts) for _, amounts in pod.containers):
        found += unread_words(annotations, labels, PLACEMENT in annotations)
    return found
