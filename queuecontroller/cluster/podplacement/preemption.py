"""Preemption for pods that lack only GPU shares, by evicting pods of lower priority.

kube-scheduler calls an extender's `preempt` only for nodes where its own rules need victims: for a
pod that all nodes refuse for GPU shares it finds none. So the leader preempts here, with the same
choice that answers `preempt`, and with kube-scheduler's writes: it sets the pod's
`nominatedNodeName`, evicts the victims, and waits. Meanwhile the ledger reserves the room.

Nothing is stored except in the pods. The next leader finds preemptors by their nominated node, and
counts terminating pods as gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.podplacement.eviction import TOO_MANY, Evictions, Guarded
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods
from queuecontroller.cluster.podplacement.requeueing import Requeueing
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.status.workload_status import stamp
from queuecontroller.gpushares.extender.answers import Extender
from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.gpushares.extender.pods import PodAsk
from queuecontroller.gpushares.extender.victims import Victims, by_node
from queuecontroller.scheduler.model.reasons import PREEMPTED
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.newest import Newest

log = logging.getLogger(__name__)
Document = Mapping[str, Any]
SETTLES_S: Final = 0.3
"""Seconds to wait after a refusal, in which kube-scheduler requests victims itself."""
TICK_S: Final = 0.5
RESTS_S: Final = 5.0
"""Seconds until the same pod is tried again; kube-scheduler retries it every few seconds."""
FAILED_RESTS_S: Final = 60.0
"""The same, in seconds, after a preemption that failed or whose room the pod did not use."""
KEEPS_S: Final = 30.0
"""Seconds for which free room stays reserved; kube-scheduler retries within 10 s."""
NUDGED_S: Final = 1.0
"""Seconds of free room without a request until the pod is requeued."""
LEAVES_S: Final = 60.0
"""Seconds within which a terminating pod must end to be waited for instead of another victim."""
OVERDUE_S: Final = 60.0
"""Seconds beyond the victims' grace periods until a preemption is given up."""
STALE_S: Final = 60.0
"""Seconds for which a refusal counts; the feasible nodes may have changed since."""
MAX_AT_ONCE: Final = 16
"""Concurrent preemptions."""
MAX_WAITING: Final = 256
MAX_CANDIDATES: Final = 100
"""Candidate nodes that are compared, as in kube-scheduler."""
MAX_S: Final = 0.3
"""Seconds of one search once a candidate is found; a node with 80 pods takes up to 9 ms."""
MAX_FAILURES: Final = 5
PAUSE_S: Final = 0.05
"""Seconds between two evictions."""
SECOND_NS: Final = 1_000_000_000


@dataclass(slots=True)
class _Refused:
    ask: PodAsk
    nodes: dict[str, None]
    """All nodes that kube-scheduler found feasible."""
    due_s: float
    last_s: float
    delayed: bool = False
    """True if it waited for KAI's preemption delay: kube-scheduler tries the pod again then."""


@dataclass(slots=True)
class _Plan:
    ask: PodAsk
    node: str
    nodes: tuple[str, ...]
    until_s: float
    victims: dict[str, HeldPod] = field(default_factory=dict)
    """Victims by UID."""
    to_go: list[HeldPod] = field(default_factory=list)
    """Victims that are not evicted yet."""
    broken: set[str] = field(default_factory=set)
    """UIDs of victims whose eviction violates a budget, without an alternative."""
    guarded: set[str] = field(default_factory=set)
    """UIDs of pods whose eviction the API server refused for a budget."""
    named: bool = False
    """True once the pod has the node as nominatedNodeName."""
    taken_over: bool = False
    """True if an earlier leader began it: its choice of victims is not known."""
    ready_s: float | None = None
    nudged: bool = False
    failures: int = 0


class PodPreemption:
    def __init__(
        self,
        client: ApiClient,
        extender: Extender,
        pods: GpuPods,
        budgets: Budgets,
        again: Requeueing,
        may_write: Callable[[], bool],
        now_ns: Callable[[], int],
        look: Callable[[], None],
        refusals: Callable[[Document, Sequence[str]], Collection[str]],
        record: Callable[[Document, KubernetesEvent], None],
    ) -> None:
        """`look` takes in the nodes' reports; `refusals` returns nodes that are not feasible for
        other reasons known here; `record` is called with the event of each victim."""
        self._evictions = Evictions(client, may_write, now_ns)
        self._extender = extender
        self._ledger = extender.ledger
        self._pods = pods
        self._budgets = budgets
        self._again = again
        self._may_write = may_write
        self._now_ns = now_ns
        self._look = look
        self._refusals = refusals
        self._record = record
        self._refused = Newest[str, _Refused](MAX_WAITING)
        self._plans: dict[str, _Plan] = {}
        self._rests: dict[str, float] = {}
        """Time until which a pod is not tried again, in s."""
        self._going: dict[str, None] = {}
        """UIDs of evicted pods that still hold GPUs."""
        self._nominated: dict[str, str] = {}
        """Nominated nodes of preemptors of an earlier leader, by the pod's UID."""
        self._nominated_until_s = 0.0
        self._news = asyncio.Event()

    @property
    def making_room(self) -> int:
        return len(self._plans)

    # -- requests ---------------------------------------------------------------------------------

    def refused(self, pod: Document, nodes: Collection[str], by_scheduler: bool = False) -> None:
        """Record a pod that lacks only GPU shares on all feasible nodes, or on one of them
        first; or one for which kube-scheduler proposes victims of its own on these nodes."""
        uid, now_s = str(pod["metadata"].get("uid") or ""), monotonic()
        plan = self._plans.get(uid)
        if not uid or not nodes or (plan is not None and not plan.taken_over):
            return
        if now_s < self._rests.get(uid, 0.0):
            return
        known = self._refused.get(uid)
        ask = self._extender.read(pod) if known is None or known.delayed else known.ask
        due_s = now_s + max(SETTLES_S, self._delay_s(ask))
        if known is not None:
            known.nodes.update(dict.fromkeys(nodes))
            known.last_s = now_s
            if known.delayed:
                known.ask, known.due_s = ask, due_s
            return
        if not ask.may_displace or self._extender.is_queued(pod):
            return
        least = self._ledger.least_priority
        if not by_scheduler and (least is None or least >= ask.priority):
            return
        delayed = due_s > now_s + SETTLES_S
        self._refused[uid] = _Refused(ask, dict.fromkeys(nodes), due_s, now_s, delayed)
        self._news.set()

    def is_delayed(self, pod: Document, nodes: Collection[str]) -> bool:
        """True while no pod may be preempted for this one, by its annotation. It is tried again
        after that."""
        if self._delay_s(self._extender.read(pod)) <= 0:
            return False
        self.refused(pod, nodes, by_scheduler=True)
        return True

    def _delay_s(self, ask: PodAsk) -> float:
        """Seconds for which no pod may be preempted for this one."""
        if not ask.displaces_after_s:
            return 0.0
        return ask.displaces_after_s - self._now_ns() / SECOND_NS

    def is_displacing_for(self, uid: str) -> bool:
        return uid in self._plans

    def by_scheduler(self, uid: str) -> None:
        """Forget a pod for which kube-scheduler has got victims."""
        self._refused.pop(uid, None)
        self._rest(uid, RESTS_S)

    def take_over(self) -> None:
        """Find the preemptors of the earlier leader, once all pods are known."""
        for uid, document in self._pods.all():
            node = (document.get("status") or {}).get("nominatedNodeName")
            if node and not document["spec"].get("nodeName"):
                self._nominated[uid] = str(node)
        self._nominated_until_s = monotonic() + STALE_S
        self.restore()

    def restore(self) -> None:
        """Reserve their room again as their nodes report; called before each answer."""
        if self._nominated and monotonic() > self._nominated_until_s:
            self._nominated.clear()
        for uid, node in list(self._nominated.items()):
            if node not in self._extender.stock.nodes:
                continue
            del self._nominated[uid]
            document = self._pods.get(uid)
            if document is None or document["spec"].get("nodeName") or uid in self._plans:
                continue
            ask = self._extender.read(document)
            if ask.wrong or not ask.containers or self._extender.is_queued(document):
                continue
            leaving = any(
                one.leaving and one.priority < ask.priority for _, one in self._ledger.on_node(node)
            )
            victims = self._displaced(ask, node)
            if victims is None or victims.place is None or (victims.pods and not leaving):
                continue  # No victim was evicted yet.
            log.info(
                "pod %s: still preempting on node %s, begun by an earlier leader", ask.key, node
            )
            self._ledger.keep(uid, victims.place, ask.priority)
            until_s = monotonic() + LEAVES_S + OVERDUE_S
            plan = _Plan(ask, node, (node,), until_s, named=True, taken_over=True)
            plan.nudged = not victims.pods
            self._plans[uid] = plan
            self._news.set()

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run preemptions until cancelled."""
        while True:
            busy = self._refused or self._plans or self._nominated
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if busy else None):
                    await self._news.wait()
            if self._news.is_set():
                self._news.clear()
                await asyncio.sleep(SETTLES_S)
            await self.step()

    async def step(self) -> None:
        """Advance all preemptions, and begin new ones."""
        if not self._may_write():
            return
        self._look()
        self.restore()
        for uid in list(self._plans):
            await self._advance(uid, self._plans[uid])
        await self._decide_all()
        self._tidy()

    def _tidy(self) -> None:
        now_s, there = monotonic(), self._ledger.holding
        self._going = {uid: None for uid in self._going if there(uid) is not None}
        self._rests = {uid: until for uid, until in self._rests.items() if until > now_s}
        for uid, one in list(self._refused.items()):
            if now_s > max(one.last_s, one.due_s) + STALE_S:
                del self._refused[uid]

    # -- choosing victims -------------------------------------------------------------------------

    async def _decide_all(self) -> None:
        """Begin preemptions, for the highest priority first."""
        while len(self._plans) < MAX_AT_ONCE:
            now_s = monotonic()
            due = [uid for uid, one in self._refused.items() if one.due_s <= now_s]
            if not due:
                return
            uid = min(due, key=lambda one: -self._refused[one].ask.priority)
            one = self._refused.pop(uid)
            plan = await self._decide(uid, one)
            if plan is not None:
                await self._advance(uid, plan)
            elif one.delayed:  # kube-scheduler may find victims now.
                if (document := self._waits(uid)) is not None:
                    self._requeue(document)
            else:
                self._rest(uid, RESTS_S)

    async def _decide(self, uid: str, one: _Refused) -> _Plan | None:
        document = self._waits(uid)
        if document is None:
            return None
        ask = self._extender.read(document)
        nodes = [name for name in one.nodes if name in self._extender.stock.nodes]
        refused = self._refusals(document, nodes) if nodes else ()
        nodes = [name for name in nodes if name not in refused]
        if self._extender.filter(document, nodes).names:
            self._requeue(document)  # It fits by now.
            return None
        nominated = str((document.get("status") or {}).get("nominatedNodeName") or "")
        # An earlier leader may have begun it.
        begun = [name for name in nodes if name == nominated]
        chosen = await self._choose(ask, begun) if begun else None
        if chosen is None:
            chosen = await self._choose(ask, nodes)
        if chosen is None or self._waits(uid) is None:
            return None
        node, victims = chosen
        plan = _Plan(ask, node, tuple(nodes), 0.0, named=nominated == node)
        self._go(uid, plan, victims)
        names = ", ".join(victim.key for victim in victims.pods) or "terminating pods"
        log.info("pod %s: preempting on node %s: %s", ask.key, node, names)
        return plan

    async def _choose(
        self, ask: PodAsk, nodes: Collection[str], guarded: Collection[str] = ()
    ) -> tuple[str, Victims] | None:
        found: dict[str, Victims] = {}
        spent_s = 0.0
        for name in nodes:
            began_s = monotonic()
            victims = self._displaced(ask, name, guarded)
            spent_s += monotonic() - began_s
            if victims is not None:
                found[name] = victims
                if not victims.pods or len(found) >= MAX_CANDIDATES or spent_s > MAX_S:
                    break
            await asyncio.sleep(0)  # Requests are answered meanwhile.
        while found:
            node = by_node(found)
            victims = self._displaced(ask, node, guarded)
            if victims == found[node]:
                assert victims is not None
                return node, victims
            del found[node]
            if victims is not None:
                found[node] = victims
            await asyncio.sleep(0)
        return None

    def _displaced(self, ask: PodAsk, node: str, guarded: Collection[str] = ()) -> Victims | None:
        soon = stamp(self._now_ns() + int(LEAVES_S * SECOND_NS))
        return self._extender.displaced(ask, node, self._budgets.all(), self._going, guarded, soon)

    def _go(self, uid: str, plan: _Plan, victims: Victims) -> None:
        """Begin to evict these victims, and reserve the room."""
        assert victims.place is not None
        plan.to_go = list(victims.pods)
        plan.broken = set(victims.broken)
        for victim in victims.pods:
            plan.victims[victim.uid] = victim
            self._going[victim.uid] = None
        longest_s = max((one.grace_s for one in plan.victims.values()), default=LEAVES_S)
        plan.until_s = monotonic() + longest_s + OVERDUE_S
        self._plans[uid] = plan
        self._ledger.keep(uid, victims.place, plan.ask.priority)

    # -- carrying out -----------------------------------------------------------------------------

    async def _advance(self, uid: str, plan: _Plan) -> None:
        document = self._waits(uid)
        if document is None:
            if self._ledger.place(uid) is None or self._is_bound(uid):
                self._end(uid)
            return
        if monotonic() > plan.until_s or plan.failures > MAX_FAILURES:
            await self._give_up(uid, plan, "timed out waiting for the victims")
            return
        going = {*self._going, *plan.victims}
        if not plan.taken_over and not self._extender.is_promised(uid, going):
            still = self._extender.displaced(plan.ask, plan.node, self._budgets.all(), going)
            if still is None or still.pods or still.place is None:
                await self._give_up(uid, plan, "the room was taken")
                return
            # Its binding may have been refused.
            self._ledger.keep(uid, still.place, plan.ask.priority)
        try:
            await self._name(plan, document)
            while plan.to_go:
                await self._evict(uid, plan, plan.to_go[0])
                await asyncio.sleep(PAUSE_S)
        except ApiAway as error:
            plan.failures += 1
            log.info("pod %s: %s", plan.ask.key, error)
            return
        except ApiRefused as refused:
            plan.failures += 1
            log.warning("pod %s: preempting on node %s: %s", plan.ask.key, plan.node, refused)
            return
        await self._check_room(uid, plan, document)

    async def _check_room(self, uid: str, plan: _Plan, document: Document) -> None:
        now_s = monotonic()
        if not self._extender.is_ready(uid):
            plan.ready_s = None
            # More victims are needed: kube-scheduler requests them.
            if not plan.nudged and plan.taken_over:
                plan.nudged = True
                self._requeue(document)
            return
        if plan.ready_s is None:
            plan.ready_s, plan.nudged = now_s, False
        if now_s > plan.ready_s + KEEPS_S:
            await self._give_up(uid, plan, "the pod did not use the room")
        elif not plan.nudged and now_s > plan.ready_s + NUDGED_S:
            plan.nudged = True
            self._requeue(document)

    async def _name(self, plan: _Plan, document: Document) -> None:
        """Nominate the node before the first eviction: the next leader finds it there."""
        if not plan.named and plan.victims:
            await self._evictions.name(document, plan.node)
            plan.named = True

    async def _evict(self, uid: str, plan: _Plan, victim: HeldPod) -> None:
        """Evict a victim. Raises ApiAway, ApiRefused; it is tried again then."""
        message = f"preempting to accommodate a higher priority pod: {plan.ask.key} (UID: {uid})"
        try:
            if victim.uid in plan.broken:
                await self._evictions.delete(victim, message)
            else:
                await self._evictions.evict(victim, message)
        except Guarded:
            await self._choose_again(uid, plan, victim)
            return
        plan.to_go.remove(victim)
        document = self._pods.get(victim.uid) or _document(victim)
        text = f"Preempted by pod {uid} on node {plan.node}"
        self._record(document, KubernetesEvent(PREEMPTED, text))

    async def _choose_again(self, uid: str, plan: _Plan, victim: HeldPod) -> None:
        """Choose other victims after a budget has refused one; raises ApiRefused if there are
        none."""
        plan.guarded.add(victim.uid)
        left = {one.uid for one in plan.to_go}
        for one in left:
            self._going.pop(one, None)
            plan.victims.pop(one, None)
        self._ledger.unkeep(uid)
        begun = bool(plan.victims)
        nodes = (plan.node,) if begun else plan.nodes
        chosen = await self._choose(plan.ask, nodes, plan.guarded)
        if chosen is None or self._waits(uid) is None:
            plan.to_go = []
            raise ApiRefused(
                TOO_MANY, "TooManyRequests", f"pod {victim.key} is protected by a disruption budget"
            )
        node, victims = chosen
        if node != plan.node:
            plan.node, plan.named = node, False
        self._go(uid, plan, victims)
        document = self._waits(uid)
        assert document is not None
        await self._name(plan, document)

    async def _give_up(self, uid: str, plan: _Plan, why: str) -> None:
        log.info("pod %s: preemption on node %s ended: %s", plan.ask.key, plan.node, why)
        self._end(uid)
        self._rest(uid, FAILED_RESTS_S if plan.victims else RESTS_S)
        document = self._waits(uid)
        if document is None:
            return
        if (document.get("status") or {}).get("nominatedNodeName") == plan.node:
            with contextlib.suppress(ApiAway, ApiRefused):
                await self._evictions.name(document, None)

    def _requeue(self, document: Document) -> None:
        self._again.try_now(document, f"room since {stamp(self._now_ns())}")

    def _end(self, uid: str) -> None:
        del self._plans[uid]
        self._ledger.unkeep(uid)

    def _waits(self, uid: str) -> Document | None:
        """Return a pending pod; None if it is deleted, bound, or about to be."""
        document = self._pods.get(uid)
        if document is None or document["spec"].get("nodeName"):
            return None
        if document["metadata"].get("deletionTimestamp") or self._ledger.place(uid) is not None:
            return None
        return document

    def _is_bound(self, uid: str) -> bool:
        document = self._pods.get(uid)
        return document is not None and bool(document["spec"].get("nodeName"))

    def _rest(self, uid: str, seconds: float) -> None:
        self._rests[uid] = monotonic() + seconds


def _document(pod: HeldPod) -> Document:
    """Return the part of a pod that an event needs."""
    return {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}}
