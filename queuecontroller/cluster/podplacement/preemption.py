"""Room for pods that lack nothing but shares of GPUs, made by pods of lower priority that leave.

kube-scheduler asks an extender for victims only on nodes where its own rules need some: for a pod
that all nodes refuse for shares it finds that nobody has to go. So whoever leads decides that here,
by the same choice that answers `preempt`, and does what kube-scheduler would: it names the node at
the pod (`nominatedNodeName`), evicts, and waits. Meanwhile the room is kept in the ledger.

Nothing of it is stored but what stands at the pods. Who leads next sees whom others are making way
for by its node, and counts those as gone who are leaving.
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

log = logging.getLogger(__name__)
Document = Mapping[str, Any]
SETTLES_S: Final = 0.3
"""kube-scheduler asks whom it may displace itself right after the refusal."""
TICK_S: Final = 0.5
RESTS_S: Final = 5.0
"""Until the same pod is looked at again: kube-scheduler tries it every few seconds."""
FAILED_RESTS_S: Final = 60.0
"""The same after room was made that it did not take, or that was not to be had."""
KEEPS_S: Final = 30.0
"""Room that is free: kube-scheduler tries again after 10 s at most."""
NUDGED_S: Final = 1.0
"""Room is free for so long, and nobody has asked."""
LEAVES_S: Final = 60.0
"""Who is leaving anyway, and is gone by then, is waited for instead of another."""
OVERDUE_S: Final = 60.0
"""Beyond the time that those have who leave."""
STALE_S: Final = 60.0
"""A refusal; which nodes would do but for the shares may have changed since."""
MOST_AT_ONCE: Final = 16
"""Pods for which room is being made."""
MOST_WAITING: Final = 256
MOST_CANDIDATES: Final = 100
"""Nodes that would do; kube-scheduler compares as many."""
MOST_S: Final = 0.3
"""Of one search, once there is a node that would do: one with 80 pods takes up to 9 ms."""
MOST_FAILURES: Final = 5
PAUSE_S: Final = 0.05
"""Between two evictions."""
SECOND_NS: Final = 1_000_000_000


@dataclass(slots=True)
class _Refused:
    ask: PodAsk
    nodes: dict[str, None]
    """All that kube-scheduler would have taken."""
    due_s: float
    last_s: float


@dataclass(slots=True)
class _Plan:
    ask: PodAsk
    node: str
    nodes: tuple[str, ...]
    until_s: float
    victims: dict[str, HeldPod] = field(default_factory=dict)
    """By UID, all whose going makes the room."""
    to_go: list[HeldPod] = field(default_factory=list)
    """Those who have not been told."""
    broken: set[str] = field(default_factory=set)
    """Whose going breaks a budget, and nobody else's would do."""
    guarded: set[str] = field(default_factory=set)
    """Whom the API server does not let go for a budget."""
    named: bool = False
    """The node stands at the pod."""
    taken_over: bool = False
    """From another leader: whom it chose is not known."""
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
        tell: Callable[[Document, KubernetesEvent], None],
    ) -> None:
        """`look`: at what nodes have reported since; `refusals`: nodes that do not do for the pod
        for other reasons that are known here; `tell` hears of each pod that was displaced."""
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
        self._tell = tell
        self._refused: dict[str, _Refused] = {}
        self._plans: dict[str, _Plan] = {}
        self._rests: dict[str, float] = {}
        """Until when a pod is not looked at."""
        self._going: dict[str, None] = {}
        """UIDs of all who were told to go and hold something still."""
        self._nominated: dict[str, str] = {}
        """Nodes of pods that others made way for under another leader."""
        self._nominated_until_s = 0.0
        self._news = asyncio.Event()

    @property
    def making_room(self) -> int:
        return len(self._plans)

    # -- what is heard ----------------------------------------------------------------------------

    def refused(self, pod: Document, nodes: Collection[str]) -> None:
        """For shares alone, on all nodes that would do otherwise; perhaps on one of them first."""
        uid, now_s = str(pod["metadata"].get("uid") or ""), monotonic()
        plan = self._plans.get(uid)
        if not uid or not nodes or (plan is not None and not plan.taken_over):
            return
        if now_s < self._rests.get(uid, 0.0):
            return
        known = self._refused.get(uid)
        if known is not None:
            known.nodes.update(dict.fromkeys(nodes))
            known.last_s = now_s
            return
        ask = self._extender.read(pod)
        if not ask.may_displace or self._extender.is_queued(pod):
            return
        least = self._ledger.least_priority
        if least is None or least >= ask.priority:
            return
        while len(self._refused) >= MOST_WAITING:
            del self._refused[next(iter(self._refused))]
        self._refused[uid] = _Refused(ask, dict.fromkeys(nodes), now_s + SETTLES_S, now_s)
        self._news.set()

    def is_displacing_for(self, uid: str) -> bool:
        return uid in self._plans

    def by_scheduler(self, uid: str) -> None:
        """kube-scheduler was told whom it may displace for the pod."""
        self._refused.pop(uid, None)
        self._rest(uid, RESTS_S)

    def take_over(self) -> None:
        """All pods are known: those for which room was being made keep it."""
        for uid, document in self._pods.all():
            node = (document.get("status") or {}).get("nominatedNodeName")
            if node and not document["spec"].get("nodeName"):
                self._nominated[uid] = str(node)
        self._nominated_until_s = monotonic() + STALE_S
        self.restore()

    def restore(self) -> None:
        """As their nodes report; asked before each answer."""
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
                continue  # nobody has begun to make way
            log.info("pod %s: room on node %s is kept for it still", ask.key, node)
            self._ledger.keep(uid, victims.place, ask.priority)
            until_s = monotonic() + LEAVES_S + OVERDUE_S
            plan = _Plan(ask, node, (node,), until_s, named=True, taken_over=True)
            plan.nudged = not victims.pods
            self._plans[uid] = plan
            self._news.set()

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
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
        """Goes on with all that is under way."""
        if not self._may_write():
            return
        self._look()
        self.restore()
        for uid in list(self._plans):
            await self._tend(uid, self._plans[uid])
        await self._decide_all()
        self._tidy()

    def _tidy(self) -> None:
        now_s, there = monotonic(), self._ledger.holding
        self._going = {uid: None for uid in self._going if there(uid) is not None}
        self._rests = {uid: until for uid, until in self._rests.items() if until > now_s}
        for uid, one in list(self._refused.items()):
            if now_s > one.last_s + STALE_S:
                del self._refused[uid]

    # -- whom -------------------------------------------------------------------------------------

    async def _decide_all(self) -> None:
        """Who matters most comes first."""
        while len(self._plans) < MOST_AT_ONCE:
            now_s = monotonic()
            due = [uid for uid, one in self._refused.items() if one.due_s <= now_s]
            if not due:
                return
            uid = min(due, key=lambda one: -self._refused[one].ask.priority)
            one = self._refused.pop(uid)
            plan = await self._decide(uid, one)
            if plan is None:
                self._rest(uid, RESTS_S)
            else:
                await self._tend(uid, plan)

    async def _decide(self, uid: str, one: _Refused) -> _Plan | None:
        document = self._waits(uid)
        if document is None:
            return None
        ask = self._extender.read(document)
        nodes = [name for name in one.nodes if name in self._extender.stock.nodes]
        refused = self._refusals(document, nodes) if nodes else ()
        nodes = [name for name in nodes if name not in refused]
        if self._extender.filter(document, nodes).names:
            self._nudge(document)  # there is room by now
            return None
        nominated = str((document.get("status") or {}).get("nominatedNodeName") or "")
        begun = [name for name in nodes if name == nominated]  # perhaps under another leader
        chosen = await self._choose(ask, begun) if begun else None
        if chosen is None:
            chosen = await self._choose(ask, nodes)
        if chosen is None or self._waits(uid) is None:
            return None
        node, victims = chosen
        plan = _Plan(ask, node, tuple(nodes), 0.0, named=nominated == node)
        self._go(uid, plan, victims)
        names = ", ".join(victim.key for victim in victims.pods) or "nobody: some are leaving"
        log.info("pod %s: room is made on node %s by %s", ask.key, node, names)
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
                if not victims.pods or len(found) >= MOST_CANDIDATES or spent_s > MOST_S:
                    break
            await asyncio.sleep(0)  # others are answered meanwhile
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
        """From now on these are to go, and the room is the pod's."""
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

    # -- what becomes of it -----------------------------------------------------------------------

    async def _tend(self, uid: str, plan: _Plan) -> None:
        document = self._waits(uid)
        if document is None:
            if self._ledger.place(uid) is None or self._is_bound(uid):
                self._end(uid)
            return
        if monotonic() > plan.until_s or plan.failures > MOST_FAILURES:
            await self._give_up(uid, plan, "it has not become free in time")
            return
        going = {*self._going, *plan.victims}
        if not plan.taken_over and not self._extender.is_promised(uid, going):
            still = self._extender.displaced(plan.ask, plan.node, self._budgets.all(), going)
            if still is None or still.pods or still.place is None:
                await self._give_up(uid, plan, "it is another's by now")
                return
            self._ledger.keep(uid, still.place, plan.ask.priority)  # or its binding was refused
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
            log.warning("pod %s: room on node %s: %s", plan.ask.key, plan.node, refused)
            return
        await self._see_if_ready(uid, plan, document)

    async def _see_if_ready(self, uid: str, plan: _Plan, document: Document) -> None:
        now_s = monotonic()
        if not self._extender.is_ready(uid):
            plan.ready_s = None
            if not plan.nudged and plan.taken_over:  # more have to go: kube-scheduler is to ask
                plan.nudged = True
                self._nudge(document)
            return
        if plan.ready_s is None:
            plan.ready_s, plan.nudged = now_s, False
        if now_s > plan.ready_s + KEEPS_S:
            await self._give_up(uid, plan, "it was not taken")
        elif not plan.nudged and now_s > plan.ready_s + NUDGED_S:
            plan.nudged = True
            self._nudge(document)

    async def _name(self, plan: _Plan, document: Document) -> None:
        """Before anybody goes: whoever leads after us knows then where."""
        if not plan.named and plan.victims:
            await self._evictions.name(document, plan.node)
            plan.named = True

    async def _evict(self, uid: str, plan: _Plan, victim: HeldPod) -> None:
        """Raises ApiAway, ApiRefused; the victim is told again then."""
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
        self._tell(document, KubernetesEvent(PREEMPTED, text))

    async def _choose_again(self, uid: str, plan: _Plan, victim: HeldPod) -> None:
        """A budget has no disruption left that we know of: another goes where one will do, and only
        else this one."""
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
            raise ApiRefused(TOO_MANY, "TooManyRequests", f"pod {victim.key} is guarded by now")
        node, victims = chosen
        if node != plan.node:
            plan.node, plan.named = node, False
        self._go(uid, plan, victims)
        document = self._waits(uid)
        assert document is not None
        await self._name(plan, document)

    async def _give_up(self, uid: str, plan: _Plan, why: str) -> None:
        log.info("pod %s: room on node %s is kept no longer: %s", plan.ask.key, plan.node, why)
        self._end(uid)
        self._rest(uid, FAILED_RESTS_S if plan.victims else RESTS_S)
        document = self._waits(uid)
        if document is None:
            return
        if (document.get("status") or {}).get("nominatedNodeName") == plan.node:
            with contextlib.suppress(ApiAway, ApiRefused):
                await self._evictions.name(document, None)

    def _nudge(self, document: Document) -> None:
        self._again.try_now(document, f"room since {stamp(self._now_ns())}")

    def _end(self, uid: str) -> None:
        del self._plans[uid]
        self._ledger.unkeep(uid)

    def _waits(self, uid: str) -> Document | None:
        """None: it is gone, bound, or about to be."""
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
    """As much of it as an event takes."""
    return {"metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}}
