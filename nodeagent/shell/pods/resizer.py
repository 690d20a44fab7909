"""Resizes the grants of running pods as their annotations say; see `core/kubelet/resizing.py`.

A pod is evaluated when it changes, when one of its containers gets a grant, and, if there was no
room, when a grant ends. Results are recorded in the pod's events, once for each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.states import Held
from nodeagent.core.kubelet.pod_documents import PodFacts
from nodeagent.core.kubelet.pod_limits import DefaultLimits, limits_from_requests
from nodeagent.core.kubelet.resizing import in_words, parse_resize, resize_texts, to_ask
from nodeagent.ports.clients import GrantAsk, RefusalKind, Refused
from nodeagent.ports.kubelet import PermanentError
from nodeagent.ports.ledger import GrantRecord, GrantState
from nodeagent.units import GrantId, PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import ResourceNames
from sluicecommon.pod_annotations import SHARE_POLICY

log = logging.getLogger(__name__)

DONE: Final = "SluiceResized"
REFUSED: Final = "SluiceResizeRefused"
WAITS: Final = "SluiceResizeDeferred"

RecordPodEvent = Callable[[PodUid, str, str, bool], Awaitable[None]]
"""Pod, reason, text, and whether it is a warning."""


class Resizable(Protocol):
    """Methods of the keeper that this needs."""

    on_ended: list[Callable[[GrantId], None]]
    on_registered: list[Callable[[], None]]

    def live(self) -> Mapping[GrantId, Held]: ...
    def grant(self, grant: GrantId | None) -> Held | None: ...
    def apply(self, event: ev.Event) -> None: ...


@dataclass(frozen=True, slots=True)
class ResizeRules:
    """Rules of the current configuration."""

    mode: str
    """off, down or on."""
    names: ResourceNames
    defaults: DefaultLimits


class Resizer:
    def __init__(
        self,
        grants: Resizable,
        pods: Callable[[], Collection[PodFacts]],
        is_queued: Callable[[GrantId], bool],
        rules: Callable[[], ResizeRules],
        record: RecordPodEvent,
    ) -> None:
        """`pods`: of this node. `is_queued`: a queue controller decides what it has."""
        self._grants = grants
        self._pods = pods
        self._is_queued = is_queued
        self._rules = rules
        self._record = record
        self._reported: dict[GrantId, tuple[str, str]] = {}
        """The last request that was answered, and the reason in the answer."""
        self._background = BackgroundTasks()
        grants.on_ended.append(self._ended)
        grants.on_registered.append(self.look)

    def look(self) -> None:
        """Evaluate all pods of this node."""
        for pod in list(self._pods()):
            self.changed(pod)

    def changed(self, pod: PodFacts) -> None:
        """A pod is there, or another one than before."""
        rules = self._rules()
        if rules.mode == "off" or pod.is_over:
            return
        asked = resize_texts(dict(pod.annotations))
        for grant, held in list(self._grants.live().items()):
            of = held.record.container
            if of is None or of.pod_uid != pod.uid or held.record.state is not GrantState.ACTIVE:
                continue
            if of.container in asked or grant in self._reported:
                self._resize(pod, grant, held, asked.get(of.container, ""), rules)

    def _ended(self, grant: GrantId) -> None:
        """Its room may be what another one waits for."""
        self._reported.pop(grant, None)
        if any(reason == WAITS for _wish, reason in self._reported.values()):
            asyncio.get_running_loop().call_soon(self.look)

    def _resize(
        self, pod: PodFacts, grant: GrantId, held: Held, text: str, rules: ResizeRules
    ) -> None:
        of = held.record.container
        assert of is not None
        before = in_words(held.record)
        try:
            if self._is_queued(grant):
                raise PermanentError(
                    "the queue decides what this pod has: change its Workload's resources"
                )
            wish = parse_resize(of.container, text, rules.names)
            made = _made(pod, held.record, of.container, rules)
            ask = to_ask(held.record, made, wish, rules.mode == "on")
            if ask is not None:
                self._grants.apply(ev.Resized(grant, ask))
        except PermanentError as refused:
            self._answer(pod, grant, text, REFUSED, f"{of.container}: {refused}")
        except Refused as refused:
            reason = WAITS if refused.kind is RefusalKind.EXHAUSTED else REFUSED
            self._answer(pod, grant, text, reason, f"{of.container}: {refused.reason}")
        else:
            now = self._grants.grant(grant)
            after = in_words(now.record) if now is not None else before
            if ask is not None or self._reported.get(grant, (text, DONE))[1] != DONE:
                self._answer(pod, grant, text, DONE, f"{of.container}: {before} -> {after}")
            self._reported[grant] = (text, DONE)

    def _answer(self, pod: PodFacts, grant: GrantId, wish: str, reason: str, text: str) -> None:
        if reason != DONE and self._reported.get(grant) == (wish, reason):
            return
        self._reported[grant] = (wish, reason)
        log.info("grant %s: %s: %s", grant, reason, text)
        self._background.spawn(
            self._say(pod.uid, reason, text, reason != DONE), "event of a resize"
        )

    async def _say(self, pod: PodUid, reason: str, text: str, warns: bool) -> None:
        await self._record(pod, reason, text, warns)


def _made(pod: PodFacts, record: GrantRecord, container: str, rules: ResizeRules) -> GrantAsk:
    """Limits from the container's resources and the grant's policy, which do not change while it
    runs; an annotation may. Raises PermanentError."""
    requests = pod.requests(container)
    if requests is None:
        raise PermanentError(f"the pod has no container {container}")
    return limits_from_requests(
        dict(requests.resources),
        len(record.devices),
        rules.names,
        rules.defaults,
        {SHARE_POLICY: record.policy.value},
    ).ask
