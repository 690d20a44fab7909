"""Scheduler extender of a leader: answers filter, prioritize and preempt from memory; `binding`
writes to the API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.podplacement.binding import Bindings
from queuecontroller.cluster.podplacement.eviction import Evictions
from queuecontroller.cluster.podplacement.exchange import PlaceExchange
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods, SeenPod, seen
from queuecontroller.cluster.podplacement.left_out import LeftOutPods
from queuecontroller.cluster.podplacement.pod_gangs import GroupSources, PodGangs
from queuecontroller.cluster.podplacement.preemption import PodPreemption
from queuecontroller.cluster.podplacement.queued_pods import QueuedPods
from queuecontroller.cluster.podplacement.requeueing import Requeueing
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.gpushares.extender import wire
from queuecontroller.gpushares.extender.answers import NO_GPUS, Defaults, Extender
from queuecontroller.gpushares.extender.nominated import NominatedPods
from queuecontroller.gpushares.extender.numa import TOPOLOGIES
from queuecontroller.gpushares.extender.numa_nodes import NumaNodes
from queuecontroller.gpushares.extender.pods import OVER, PodPlace, refusal_of
from queuecontroller.state.book import Book
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource

log = logging.getLogger(__name__)
PAGE: Final = 500
AGAIN_S: Final = 0.5
LAG_S: Final = 0.05
"""Seconds to wait for a pod event before a pod is refused on all nodes: kube-scheduler gets the
same events, and may send a request before they arrive here."""
RESTS_S: Final = 0.25
"""Seconds between two such waits: kube-scheduler sends requests for one pod after the other."""
LOOKS_S: Final = 0.1
"""Seconds after a step of the book until freed resources are read: a thousand nodes report 200
times a second, and each read takes all of them."""
_WRONG: Final = (wire.BadQuestion, KeyError, TypeError, AttributeError, ValueError)
"""Errors of malformed requests."""
VERBS: Final = ("filter", "prioritize", "preempt", "bind")


class ExtenderService:
    def __init__(
        self,
        shell: Shell,
        client: ApiClient,
        pods: GpuPods,
        budgets: Budgets,
        may_write: Callable[[], bool],
        defaults: Defaults,
        sharing: SharePods | None = None,
        cache: ObjectCache | None = None,
        record: Callable[[Mapping[str, Any], KubernetesEvent], None] | None = None,
        groups: GroupSources | None = None,
        namespace: str = "",
    ) -> None:
        """`sharing` has quotas on GPU shares and other vendors' devices, `cache` the Workloads
        whose pods have reserved places. `record` records the event of a preempted pod; None: only
        kube-scheduler preempts. `groups`: what is known of pod groups beside their pods.
        `namespace`: the controller's own."""
        self._sharing = sharing
        self._shell = shell
        self._client = client
        self._pods = pods
        self._budgets = budgets
        room = shell.book.nodes_room
        self.ledger = room.pods
        self._cache = cache = cache or ObjectCache()
        self._queued = QueuedPods(
            cache,
            self.ledger.reserved,
            defaults,
            lambda uid: pods.get(uid) is not None,
        )
        self.numa = NumaNodes(self.ledger.reported)
        self.extender = Extender(
            room.stock,
            self.ledger,
            defaults,
            self._reserved,
            self._why_away,
            self._is_stopped,
            self.numa.numa_nodes,
        )
        self._on_the_way = NominatedPods(room.stock)
        self._exchanging = PlaceExchange(shell, self.extender, cache)
        self._again = Requeueing(client, may_write)
        self._gangs = PodGangs(
            self.extender,
            defaults,
            cache,
            groups or GroupSources(),
            self._is_stopped,
            self._refusals,
            self._again,
            Evictions(client, may_write, shell.now_ns),
            self._followed,
            shell.now_ns,
        )
        self._bindings = Bindings(
            client,
            self.extender,
            pods,
            self._exchanging,
            sharing,
            self._gangs,
            self.numa,
            self._take,
            may_write,
            shell.now_ns,
        )
        self._names = defaults.names
        self._left_out = LeftOutPods(
            client,
            cache,
            defaults.names,
            sharing,
            (groups or GroupSources()).record,
            may_write,
            namespace,
        )
        self._has_all_pods = False
        """True once all pods that were bound before this leader are known."""
        self._pod_event = asyncio.Event()
        """Set by the next pod event."""
        self._waited_s = -RESTS_S
        self._freed = 0
        """Count of freed resources at the last requeueing."""
        self._looking = False
        self._preemption: PodPreemption | None = None
        if record is not None:
            self._preemption = PodPreemption(
                client,
                self.extender,
                pods,
                budgets,
                self._again,
                may_write,
                shell.now_ns,
                self._look,
                self._refusals,
                record,
            )
        self.answers_total = dict.fromkeys(VERBS, 0)
        self.refused_total = dict.fromkeys(VERBS, 0)

    @property
    def book(self) -> Book:
        return self._shell.book

    @property
    def has_all_pods(self) -> bool:
        """True once all pods that were bound before this leader are known."""
        return self._has_all_pods

    def is_plain(self, pod: Mapping[str, Any]) -> bool:
        """True for a pod that is placed by the extender alone, and waits for no victims."""
        uid, preemption = str(pod["metadata"].get("uid")), self._preemption
        if uid in self.ledger.kept or (preemption and preemption.is_displacing_for(uid)):
            return False
        return not self.extender.is_queued(pod)

    # -- changes ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take over all pods, then follow changes until cancelled."""
        self._pods.on_change = self._pod_changed
        self.book.listen_to_room(self._followed)
        self._shell.listeners.append(self._decided)
        if self._sharing is not None:
            self._sharing.on_end = self._ended
            self._sharing.on_more = self._more
        for uid, document in self._pods.all():
            self._pod_changed(uid, document)
        try:
            await self._catch_up()
            if self._preemption is not None:
                self._preemption.take_over()
            self._gangs.gangs.take_over()
            self._take_over_numa_nodes()
            self._has_all_pods = True
            if self.book.shares is not None:
                self._shell.step("pods received", lambda book, now_ns: book.pods_received())
            self._take_over_refused()
            log.info("placing pods: %d hold GPUs", len(self.ledger))
            if self._preemption is not None:
                await self._preemption.run()
            await asyncio.Event().wait()
        finally:
            self._has_all_pods = False
            self._pods.on_change = lambda uid, document: None
            self.book.listen_to_room(None)
            self._shell.listeners.remove(self._decided)
            if self._sharing is not None:
                self._sharing.on_end = lambda uid: None
                self._sharing.on_more = lambda what: None
            self._again.end()
            self._gangs.end()
            self._bindings.end()
            self._left_out.end()

    def _take_over_numa_nodes(self) -> None:
        """Read the nodes' reports, and count the pods that the leader before has just bound."""
        for document in self._cache.all_of(TOPOLOGIES):
            self.topology_changed(str(document["metadata"]["name"]), document)
        for _, document in self._pods.all():
            starts = (document.get("status") or {}).get("phase") == "Pending"
            if starts and (node := document["spec"].get("nodeName")):
                self.numa.bind(document, str(node))

    def _take_over_refused(self) -> None:
        """Requeue the pods that the leader before refused on every node: this one knows nothing of
        its refusals, and kube-scheduler retries these pods by itself after five minutes."""
        for _, document in self._pods.all():
            if not document["spec"].get("nodeName") and refusal_of(document):
                self._again.refused(document)
        self._more("another leader")

    def _pod_changed(self, uid: str, document: Mapping[str, Any] | None) -> None:
        self._pod_event.set()
        freed = self.ledger.freed
        if document is None:
            self.ledger.drop(uid)
        else:
            self.ledger.take(document)
        if document is None or _is_over(document):
            self.numa.forget(uid)
        if document is None or document["spec"].get("nodeName") or _is_over(document):
            self._again.forget(uid)
            self._on_the_way.arrived(uid)
        self._left_out.pod_changed(uid, document)
        self._gangs.pod_changed(uid, document)
        more = self.ledger.freed - freed
        if not self._has_all_pods:
            return
        if document is None or _is_over(document) or more:
            self._again.ended(uid)
            self._freed += more
        if more:  # Pending workloads are evaluated again.
            self._shell.step("pods", lambda book, now_ns: None)

    def _decided(self, change: object, touched: object) -> None:
        """Read freed resources soon after a step of the book."""
        if self._has_all_pods and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOKS_S, self._look_for_room)

    def _look_for_room(self) -> None:
        """Take in resources that the queue or a node has freed: kube-scheduler does not get these
        events, and an uncordon it may get before this process does."""
        self._looking = False
        if self._has_all_pods:
            self._look()

    def _ended(self, uid: str) -> None:
        """Requeue pods after a pod with quota or another vendor's devices has ended."""
        self._pod_event.set()
        if self._has_all_pods:
            self._again.forget(uid)
            self._again.ended(uid)

    def _followed(self) -> None:
        """Requeue pods if reports or the queue have freed resources."""
        if self.ledger.freed != self._freed:
            self._freed = self.ledger.freed
            self._more("room on nodes")

    def _more(self, what: str) -> None:
        """Requeue pods: there is more of a resource that pods were refused for."""
        self._pod_event.set()
        if self._has_all_pods:
            self._again.room(f"{what}, {self._shell.now_ns()}")

    async def _catch_up(self) -> None:
        """List all pods: the watch may be behind the last bindings of the earlier leader."""
        token = ""
        while True:
            parameters = [("limit", str(PAGE)), *([("continue", token)] if token else [])]
            try:
                page = json.loads(await self._client.list_page(PODS, parameters))
            except (ApiAway, ApiRefused, ValueError) as error:
                log.warning("cannot list pods, trying again: %s", error)
                await asyncio.sleep(AGAIN_S)
                token = ""
                continue
            for one in page.get("items") or ():
                self._take(one)
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return

    def _take(self, document: Mapping[str, Any]) -> SeenPod:
        head = document["metadata"]
        if self._sharing is not None:
            self._sharing.take(document)
        found = seen(document, self._names)
        self._pods.take(f"{head.get('namespace')}/{head['name']}", found)
        return found

    def _is_stopped(self, node: str) -> bool:
        known = self.book.nodes.nodes.get(node)
        if known is not None and known.stopping:
            return True
        return self._sharing is not None and node in self._sharing.stopped

    def _why_away(self, node: str) -> str:
        known = self.book.nodes.nodes.get(node)
        if known is None:
            return NO_GPUS
        if not known.connected:
            return "its agent has not reported to this leader yet"
        return "its agent has not reported in time"

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, verb: str, body: bytes) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a JSON request of kube-scheduler; errors are in the answer.

        Only a binding is asynchronous: it is written to the API server.
        """
        self.answers_total[verb] += 1
        if verb == "bind":
            return self._bound(body)
        try:
            self._look()
            if verb != "filter":
                return self._from_memory(verb, body)
            question = wire.read_question(body)
            passed = self._filter(question)
            now_s = monotonic()
            if question.nodes is not None:
                return wire.write_filter(question, passed)
            if passed.names:
                return self._passed(question, passed)
            if now_s < self._waited_s + RESTS_S:
                return self._refused_everywhere(question, passed)
            self._waited_s = now_s
            return self._look_again(question)
        except _WRONG as error:
            return self._refused(verb, error)

    async def _look_again(self, question: wire.Question) -> bytes:
        """Filter again before a pod is refused on all nodes: it is retried only after the next
        event, and the event of this attempt may not have arrived here yet."""
        try:
            passed = self._filter(question)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAG_S):
                    while not passed.names:
                        self._pod_event.clear()
                        await self._pod_event.wait()
                        self._look()
                        passed = self._filter(question)
            if passed.names:
                return self._passed(question, passed)
            return self._refused_everywhere(question, passed)
        except _WRONG as error:
            return self._refused("filter", error)

    def _passed(self, question: wire.Question, passed: wire.Passed) -> bytes:
        ask = self.extender.read(question.pod)
        names = passed.names
        if ask.containers and ask.uid not in self.ledger.kept:
            names = self._on_the_way.apart(ask, names, monotonic())
        names = self.extender.narrowed(question.pod, names)
        if len(names) == 1 and not self.extender.is_queued(question.pod):
            self._on_the_way.sent(ask, names[0], monotonic())
        return wire.write_filter(question, replace(passed, names=names))

    def _refused_everywhere(self, question: wire.Question, passed: wire.Passed) -> bytes:
        self._again.refused(question.pod)
        if self._preemption is not None:
            self._preemption.refused(question.pod, passed.failed)
        return wire.write_filter(question, passed)

    async def _bound(self, body: bytes) -> bytes:
        try:
            self._look()
            request = wire.read_bind(body)
            self._on_the_way.arrived(request.uid)
            return wire.write_bind(await self._bindings.bind(request))
        except _WRONG as error:
            return self._refused("bind", error)

    def _look(self) -> None:
        """Take in the nodes' reports. Raises BadQuestion while not all pods are known."""
        if not self._has_all_pods:
            raise wire.BadQuestion("this leader has not listed all pods yet: try again")
        self.book.nodes_room.follow(self._shell.now_ns())
        if self._preemption is not None:
            self._preemption.restore()
        self._gangs.gangs.restore()

    def _refused(self, verb: str, error: Exception) -> bytes:
        self.refused_total[verb] += 1
        if isinstance(error, wire.BadQuestion):
            return refusal(verb, str(error))
        log.debug("malformed request", exc_info=error)
        return refusal(verb, f"malformed request: {type(error).__name__}: {error}"[:300])

    def _from_memory(self, verb: str, body: bytes) -> bytes:
        if verb == "preempt":
            pod, proposed = wire.read_preemption(body)
            uid, own = str(pod["metadata"].get("uid")), self._preemption
            if own is not None and own.is_displacing_for(uid):
                return wire.write_preemption({})  # Its victims are being evicted already.
            if own is not None and own.is_delayed(pod, proposed):
                return wire.write_preemption({})
            found = self.extender.preempt(pod, proposed, self._budgets.all())
            if own is not None and found:
                own.by_scheduler(uid)
            return wire.write_preemption(found)
        question = wire.read_question(body)
        points = self.extender.prioritize(question.pod, question.names)
        best, most = max(points, key=lambda one: one[1], default=("", 0))
        if most:
            self._on_the_way.sent(self.extender.read(question.pod), best, monotonic())
        return wire.write_points(points)

    def group_changed(self, kind: Resource, name: str, document: Mapping[str, Any] | None) -> None:
        """Requeue the pods of a group that was created, changed or deleted."""
        if self._has_all_pods:
            self._gangs.group_changed(kind, name, document)

    def topology_changed(self, name: str, document: Mapping[str, Any] | None) -> None:
        """Take in the NodeResourceTopology of a node; None: it was deleted."""
        freed = self.numa.freed
        if why := self.numa.report(name, document):
            log.warning("%s %s is ignored: %s", TOPOLOGIES.kind, name, why)
        if self.numa.freed != freed:
            self._more(f"NUMA nodes of {name}")

    def _reserved(
        self, pod: Mapping[str, Any], names: Sequence[str] | None
    ) -> PodPlace | str | None:
        """See `answers.Queued`."""
        found = self._queued.place(pod, names)
        return found if found is not None else self._gangs.place(pod, names)

    def _refusals(self, pod: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, str]:
        """Nodes that are not feasible for other reasons than the room on their GPUs."""
        return {**self.numa.refusals(pod, names), **self._share_refusals(pod, names)}

    def _share_refusals(self, pod: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, str]:
        return self._sharing.refusals(pod, names) if self._sharing is not None else {}

    def _filter(self, question: wire.Question) -> wire.Passed:
        misaligned = self.numa.refusals(question.pod, question.names)
        names = [one for one in question.names if one not in misaligned]
        with self._gangs.gangs.dry_run(question.nodes is not None):
            passed = self.extender.filter(question.pod, names)
        nothing = not passed.names and question.nodes is None
        if nothing and self._exchanging.try_for(question.pod, names):
            passed = self.extender.filter(question.pod, names)
        refused = self._share_refusals(question.pod, passed.names) if passed.names else {}
        if not refused and not misaligned:
            return passed
        names = [one for one in passed.names if one not in refused]
        failed = {**misaligned, **passed.failed, **refused}
        return replace(passed, names=tuple(names), failed=failed)


def _is_over(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def refusal(verb: str, why: str) -> bytes:
    """Return an error in the form of the verb's answer, if that has a field for it."""
    if verb == "prioritize":
        return wire.write_points([])
    if verb == "preempt":
        return wire.write_preemption({})
    return wire.write_bind(why)


__all__ = ["VERBS", "ExtenderService", "refusal"]
