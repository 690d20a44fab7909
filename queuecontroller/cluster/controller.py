"""The queue as a controller of a cluster: follows all objects, and decides while it leads.

Every replica has the objects in its cache, so a new leader can decide at once; only the leader has
a book. A leader that lost its lease drops its book and keeps following. Long, for following,
election and the session share one cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster import beside_kueue
from queuecontroller.cluster.admissionchecks.provisioner import CONFIGS
from queuecontroller.cluster.admissionchecks.requests import REQUESTS
from queuecontroller.cluster.autoscaling.scale_down import ANNOTATIONS
from queuecontroller.cluster.beside_kueue import Beside
from queuecontroller.cluster.cache.claims import KINDS as CLAIM_KINDS
from queuecontroller.cluster.cache.job_context import FOLLOWED, FRAMEWORKS
from queuecontroller.cluster.cache.kinds import (
    BUDGETS,
    CAPACITY_PROVIDERS,
    CRDS,
    ELASTIC_PODS,
    MANAGED,
    MANAGED_PODS,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    OBJECTS,
    ORCHESTRATORS,
    PLACED_PODS,
    RUNTIMES,
    TOPOLOGIES,
    WORKLOADS,
)
from queuecontroller.cluster.cache.node_context import (
    ON_NODES,
    NodeContext,
    is_on_a_node,
    slim_node,
    slim_pod,
)
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    key_of,
    labels_of,
    pruned,
    version_of,
)
from queuecontroller.cluster.cache.pod_scheduling import SELECTOR, PodScheduling, read_scheduled
from queuecontroller.cluster.cache.views import View, Views
from queuecontroller.cluster.leader.holder import LEASE, Holder
from queuecontroller.cluster.leader.lease import Elector
from queuecontroller.cluster.plan import Followed, Leadership, Plan
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods, read_budget, seen
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.session import Defect, Session
from queuecontroller.frameworks.names import QUEUE_NAME
from queuecontroller.frameworks.table import OfRuntime
from queuecontroller.gpushares.claims.in_use import read_claim
from queuecontroller.gpushares.claims.room import AllocatedClaims
from queuecontroller.gpushares.extender.numa import TOPOLOGIES as NODE_TOPOLOGIES
from queuecontroller.gpushares.extender.pod_groups import KINDS as GROUP_KINDS
from queuecontroller.kueueapi import GROUP
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import (
    Change,
    Changed,
    Parameters,
    Reflector,
    Removed,
    Synced,
)
from sluicecommon.kubernetes.resources import (
    DEPLOYMENTS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RUNTIME_CLASSES,
    Resource,
)
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)
SERVED_S: Final = 30.0
"""Seconds between two checks of whether more frameworks' kinds are served."""
SYNC_S: Final = 0.05
AWAY_S: Final = 1.0
"""Seconds until kinds are looked for again after the API server did not answer."""
VANISHED_S: Final = 2.0
ENDS_S: Final = 15.0
"""Seconds in which a session that is cancelled ends; its requests have shorter deadlines."""
UNLISTED_S: Final = 30.0
"""Seconds between two log lines about lists that this replica has to have before it may lead."""
POD_SELECTORS: Final[tuple[Parameters, ...]] = (
    MANAGED_PODS,
    (("labelSelector", f"{ELASTIC_PODS}=true"),),
)
"""Selectors of the pods that are gated one by one."""
IN_A_QUEUE: Final[Parameters] = (("labelSelector", QUEUE_NAME),)
"""Selector of the Deployments that name a queue: their pods are queued, they themselves are not."""
_GATED: Final = (MANAGED, ELASTIC_PODS)
"""Labels of these pods."""


class Controller:
    def __init__(self, watching: ApiClient, writing: ApiClient, plan: Plan) -> None:
        self._watching = watching
        self._writing = writing
        self._plan = plan
        self._cache = ObjectCache(plan.policy)
        self._cache.on_update = self._updated
        self._elector = Elector(plan.identity, plan.lease_s)
        self._holder = Holder(writing, self._elector, plan.namespace, plan.own_url)
        self._uids: dict[tuple[Resource, str], str] = {}
        """UIDs as the watches reported them: the cache may have a newer object of that name."""
        self._followers: dict[tuple[Resource, Parameters], Follower[Any]] = {}
        self._following: dict[tuple[Resource, Parameters], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._session: Session | Beside | None = None
        self._leads_on: Callable[[], bool] = lambda: False
        """True if the lease was held without a gap since the session began: in a gap, changes would
        have been missed."""
        self._deciding: asyncio.Task[None] | None = None
        self._gpu_pods = GpuPods()
        self._budgets = Budgets()
        self._scheduling = PodScheduling()
        self._claims = AllocatedClaims()
        self._pods: Views | None = None
        """Consumers of the watch of all pods; None: pods are watched by selectors."""
        self._last_ok_s = monotonic()
        self._trouble = "starting"
        self._node_context = NodeContext(self._cache, self._room_changed)
        self._found = False
        """True once it is known which frameworks' kinds are served."""
        self._unlisted_at_s: float | None = None
        """When the next log line about missing lists is due; None: none is missing."""

    # -- state ------------------------------------------------------------------------------------

    @property
    def why_not_ready(self) -> str:
        """Reason of a failed readiness probe; "" when it decides, or could at once."""
        followers = self._followers.items()
        unlisted = [one.kind for (one, _), each in followers if not each.reflector.synced]
        if self._plan.sharing is not None and not self._plan.sharing.is_synced:
            unlisted.append("ResourceQuota, Node")
        if unlisted:
            return f"not listed yet: {', '.join(unlisted)}"
        return self._trouble

    def silent_loops(self, seconds: float) -> list[str]:
        found = ["election"] if monotonic() - self._last_ok_s > seconds else []
        shell = self.shell
        return found + (shell.silent_loops(seconds) if shell is not None else [])

    @property
    def shell(self) -> Shell | None:
        """Shell of the book; None while this replica does not lead."""
        return self._session.shell if self._session is not None else None

    @property
    def leader(self) -> str:
        """Identity of the leader, as far as is known."""
        return self._elector.holder

    @property
    def sharing(self) -> SharePods | None:
        return self._plan.sharing

    @property
    def leader_url(self) -> str:
        """URL of the leader; "" if it is not known."""
        return self._holder.leader_url

    def answer_scheduler(self, verb: str, body: bytes) -> bytes | Coroutine[Any, Any, bytes] | None:
        """Answer a scheduler's request; None: this replica does not lead."""
        extender = self._session.extender if isinstance(self._session, Session) else None
        return extender.answer(verb, body) if extender is not None else None

    @property
    def cache(self) -> ObjectCache:
        return self._cache

    @property
    def session(self) -> Session | Beside | None:
        return self._session

    @property
    def lists_total(self) -> int:
        return sum(one.reflector.lists_total for one in self._followers.values())

    # -- the loops --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow and lead until cancelled; raises errors that are defects."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._follow_all(group)
                group.create_task(self._elect())
        finally:
            await self._step_down("stopping")
            await self._holder.give_back()

    def _follow_all(self, group: asyncio.TaskGroup) -> None:
        if self._plan.beside:
            for kind in beside_kueue.KINDS:
                self._follow(kind)
            self._follow(PODS, beside_kueue.PLACED_PODS)
            self._found = True
            return
        kinds = (*OBJECTS, CONFIGS, MULTIKUEUE_CLUSTERS, MULTIKUEUE_CONFIGS, WORKLOADS)
        for kind in (RUNTIME_CLASSES, *kinds):
            self._follow(kind)
        for kind in CLAIM_KINDS if self._plan.counts_claims else ():
            self._follow(kind)
        if self._plan.sharing is not None:
            self._plan.sharing.follow(group, self._watching)
            self._follow_every_pod(self._plan.sharing)
        elif self._plan.policy.has_pods:
            for selectors in POD_SELECTORS:
                self._follow(PODS, selectors)
        if self._plan.policy.has(FRAMEWORKS[DEPLOYMENTS]):
            self._follow(DEPLOYMENTS, IN_A_QUEUE)
        if self._plan.book.pods_ready.unscheduled_timeout_s is not None or (
            self._plan.checks_devices
        ):
            self._follow(PODS, SELECTOR, read_scheduled, self._scheduling.changed)
        if self._plan.checks_devices:
            self._follow(RESOURCE_CLAIMS, (), read_claim, self._claims.changed)
            self._follow_nodes()
        group.create_task(self._find_frameworks())
        group.create_task(self._detect_removed_crds())

    def _follow(
        self,
        kind: Resource,
        selectors: Parameters = (),
        read: Callable[[Mapping[str, Any]], Any] = pruned,
        changed: Callable[[Change[Any]], None] | None = None,
    ) -> None:
        assert self._group is not None
        reflector: Reflector[Any] = Reflector(
            Decoder(read), selectors, jitter=lambda: random.uniform(0.5, 1.5)
        )
        handler = changed or partial(self._changed, kind)
        follower = Follower(self._watching, kind, reflector, handler)
        self._followers[kind, selectors] = follower
        self._following[kind, selectors] = self._group.create_task(follower.run())

    def _follow_every_pod(self, sharing: SharePods) -> None:
        """Watch all pods once; each consumer has a filtered view of them."""
        views = [View(sharing.seen, sharing.pod_changed)]
        if self._plan.policy.has_pods:
            views.append(View(pruned, partial(self._changed, PODS), self._is_queued))
        if (given := self._plan.extender) is not None:
            views.append(View(partial(seen, names=given.names), self._gpu_pods.changed))
            self._follow(BUDGETS, (), read_budget, self._budgets.changed)
        self._pods = Views(*views)
        self._follow(PODS, (), self._pods.read, self._pods.notify)
        if given is not None:
            self._follow_nodes()

    def _is_queued(self, pod: Document) -> bool:
        labels = labels_of(pod)
        if any(labels.get(name) == "true" for name in _GATED) or labels.get(QUEUE_NAME):
            return True
        return labels.get(PLACED_PODS) == "true" and (NODES, ()) in self._followers

    def _follow_nodes(self) -> None:
        """Follow nodes and the pods on them, once there is a Topology or an extender."""
        if (NODES, ()) in self._followers:
            return
        log.info("following nodes and the pods on them")
        self._node_context.ground.missing_input = "the nodes and the pods on them"
        noted = ANNOTATIONS if self._plan.autoscaling is not None else ()
        self._follow(NODES, (), partial(slim_node, annotations=noted), self._node_changed)
        if self._pods is None:
            self._follow(PODS, ON_NODES, slim_pod, self._pod_changed)
            self._follow(PODS, (("labelSelector", f"{PLACED_PODS}=true"),))
            return
        more = [View(slim_pod, self._pod_changed, is_on_a_node)]
        if not self._plan.policy.has_pods:
            more.append(View(pruned, partial(self._changed, PODS), self._is_queued))
        self._pods.add(*more)
        self._restart_watch(PODS)

    def _restart_watch(self, kind: Resource) -> None:
        """Close the open watch and list all objects again."""
        assert self._group is not None
        self._following[kind, ()].cancel()
        follower = self._followers[kind, ()]
        follower.reflector.restart()
        self._following[kind, ()] = self._group.create_task(follower.run())

    def _node_changed(self, change: Change[Document]) -> None:
        session = self._session
        match change:
            case Changed(item):
                self._cache.take(NODES, item.value)
                self._node_context.node(item.key, item.value)
                if isinstance(session, Session):
                    session.node_changed(item.key, item.value)
            case Removed(key):
                known = self._cache.get(NODES, key)
                if known is not None:
                    self._cache.drop(NODES, key, str(known["metadata"].get("uid")))
                self._node_context.node(key, None)
                if isinstance(session, Session):
                    session.node_changed(key, None)
            case Synced():
                self._nodes_synced()

    def _pod_changed(self, change: Change[Document]) -> None:
        match change:
            case Changed(item):
                self._node_context.pod(item.key, item.value)
            case Removed(key):
                self._node_context.pod(key, None)
            case Synced():
                self._nodes_synced()

    def _nodes_synced(self) -> None:
        pods = ON_NODES if self._pods is None else ()
        each = [self._followers.get(one) for one in ((NODES, ()), (PODS, pods))]
        if all(one is not None and one.reflector.synced for one in each):
            self._node_context.ground.inputs_received()
            self._room_changed()

    def _room_changed(self) -> None:
        if isinstance(self._session, Session):
            self._session.room_changed()

    def _updated(self, kind: Resource, key: str, document: Document) -> None:
        if self._session is not None:
            self._session.changed(kind, key, document)

    def _changed(self, kind: Resource, change: Change[Document]) -> None:
        session = self._session
        if kind == TOPOLOGIES and isinstance(change, Changed):
            self._follow_nodes()
        match change:
            case Changed(item):
                self._uids[kind, item.key] = str(item.value["metadata"].get("uid"))
                self._cache.update(kind, item.value)
            case Removed(key):
                # Two watches may report one deletion; the second is ignored.
                uid = self._uids.pop((kind, key), "")
                if uid and self._cache.drop(kind, key, uid) and session is not None:
                    session.changed(kind, key, None)
            case Synced():
                self._compare(kind)
                if isinstance(session, Session):
                    session.followed(kind)

    def _compare(self, kind: Resource) -> None:
        """Drop objects that only an answer to a write reported and that a newer list lacks: they
        were created and deleted without a watch."""
        follower = self._followers.get((kind, ()))
        if follower is None:
            return
        newest = follower.reflector.version
        for document in self._cache.all_of(kind):
            key = key_of(document)
            if (kind, key) in self._uids or version_of(document) > newest:
                continue
            self._forget(kind, document)

    def _forget(self, kind: Resource, document: Document) -> None:
        key = key_of(document)
        self._cache.drop(kind, key, str(document["metadata"].get("uid")))
        if self._session is not None:
            self._session.changed(kind, key, None)

    async def _find_frameworks(self) -> None:
        """Follow jobs of all kinds that are served, also of kinds that are installed later."""
        while True:
            away = False
            for group, version in {(one.group, one.version) for one in self._wanted()}:
                path = f"/apis/{group}/{version}" if group else f"/api/{version}"
                try:
                    served = await self._watching.get_path(path)
                except ApiRefused as refused:
                    if not refused.not_found:
                        log.warning("%s: %s", path, refused)
                    continue
                except ApiAway as error:
                    log.warning("%s", error)
                    away = True
                    continue
                plurals = {one.get("name") for one in served.get("resources") or ()}
                for kind in self._wanted():
                    of_it = (kind.group, kind.version) == (group, version)
                    if of_it and kind.plural in plurals and (kind, ()) not in self._followers:
                        log.info("following %s.%s", kind.plural, kind.group)
                        self._follow(kind)
            # A leader without a kind that is served would take its objects for missing.
            self._found = self._found or not away
            await asyncio.sleep(AWAY_S if away else SERVED_S)

    async def _detect_removed_crds(self) -> None:
        """Drop the objects of a kind of Kueue's whose CRD was deleted: otherwise finalizers of
        objects that they refer to would stay for ever, and block deleting the other CRDs."""
        while True:
            await asyncio.sleep(VANISHED_S)
            for (kind, _), follower in list(self._followers.items()):
                if kind.group != GROUP or not follower.reflector.missing:
                    continue
                if not self._cache.count(kind):
                    continue
                try:
                    await self._watching.get(CRDS, f"{kind.plural}.{kind.group}")
                except ApiRefused as refused:
                    if refused.not_found and follower.reflector.missing:
                        log.warning(
                            "%s.%s: the CRD was deleted, its objects are dropped",
                            kind.plural,
                            kind.group,
                        )
                        follower.vanished()
                        # Those that only answers to writes reported.
                        for one in self._cache.all_of(kind):
                            self._forget(kind, one)
                except ApiAway as error:
                    log.warning("%s", error)

    def _wanted(self) -> list[Resource]:
        policy = self._plan.policy
        wanted = [one for one in FOLLOWED if policy.wants(FRAMEWORKS[one])]
        trains = any(isinstance(FRAMEWORKS[one].pods, OfRuntime) for one in wanted)
        dynamic = Feature.DYNAMIC_QUOTA in policy.features
        more = (CAPACITY_PROVIDERS, ORCHESTRATORS) if dynamic else ()
        placing = self._plan.extender is not None
        groups = (*GROUP_KINDS, NODE_TOPOLOGIES) if placing else ()
        # A mapping needs all of CLAIM_KINDS; without one a class may name an extended resource.
        extended = Feature.EXTENDED_RESOURCES in policy.features
        devices = (DEVICE_CLASSES,) if extended else ()
        devices = (DEVICE_TAINT_RULES,) if self._plan.counts_claims else devices
        return [*wanted, *(RUNTIMES if trains else ()), REQUESTS, *more, *groups, *devices]

    def _is_followed(self, kind: Resource) -> bool:
        follower = self._followers.get((kind, ()))
        return follower is not None and follower.reflector.synced

    def _is_synced(self) -> bool:
        return self._found and all(one.reflector.synced for one in self._followers.values())

    async def _elect(self) -> None:
        elector = self._elector
        while True:
            self._last_ok_s = monotonic()
            if not self._is_synced() and self._session is None:
                self._note_unlisted()
                await asyncio.sleep(SYNC_S)
                continue
            self._trouble, self._unlisted_at_s = "", None
            try:
                async with asyncio.timeout(self._plan.lease_s / 3):
                    await self._holder.step()
            except (ApiAway, TimeoutError) as error:
                log.warning("lease %s: %s", LEASE, error_text(error))
            except ApiRefused as refused:
                if not refused.conflict:
                    self._trouble = f"lease {LEASE}: {refused}"
                    log.warning("%s", self._trouble)
            if self._session is not None and not self._leads_on():
                await self._step_down("the lease is lost")
                continue
            if self._session is None and elector.leads(monotonic()):
                self._step_up()
            self._raise_if_failed()
            await asyncio.sleep(elector.retry_s * random.uniform(0.9, 1.1))

    def _note_unlisted(self) -> None:
        now_s = monotonic()
        if self._unlisted_at_s is None:
            self._unlisted_at_s = now_s + UNLISTED_S
        elif now_s >= self._unlisted_at_s:
            self._unlisted_at_s = now_s + UNLISTED_S
            missing = "" if self._found else "; it is not known which kinds are served"
            log.warning("cannot lead: %s%s", self.why_not_ready, missing)

    def _raise_if_failed(self) -> None:
        """Raise the error that has ended the session, if any."""
        deciding = self._deciding
        if deciding is not None and deciding.done() and not deciding.cancelled():
            deciding.result()

    def _step_up(self) -> None:
        plan, elector = self._plan, self._elector
        log.info("leading, term %d, as %s", elector.term, plan.identity)
        term = elector.term
        self._leads_on = lambda: elector.term == term and elector.leads(monotonic())
        self._session = self._make_session()
        self._deciding = asyncio.create_task(self._session.run())

    def _make_session(self) -> Session | Beside:
        followed = Followed(
            self._cache,
            self._node_context,
            self._gpu_pods,
            self._budgets,
            self._scheduling,
            self._claims,
            self._is_followed,
        )
        leadership = Leadership(self._elector.term, self._holder.uid, self._leads_on)
        make = Beside if self._plan.beside else Session
        return make(self._plan, self._writing, followed, leadership)

    async def _step_down(self, why: str) -> None:
        """End the session. Raises Defect if it does not end: then the process has to be restarted,
        since a second session beside its tasks would not be the only one that decides."""
        session, deciding = self._session, self._deciding
        self._session = self._deciding = None
        self._scheduling.on_change = lambda key: None
        self._scheduling.on_end = lambda pod: None
        self._claims.on_change = lambda key, before, after: None
        if session is None or deciding is None:
            return
        log.warning("no longer leading, term %d: %s", session.term, why)
        deciding.cancel()
        done, _ = await asyncio.wait({deciding}, timeout=ENDS_S)
        if not done:
            running = "; ".join(map(_where, asyncio.all_tasks()))
            raise Defect(f"the session did not end within {ENDS_S:g} s; all tasks: {running}")
        with contextlib.suppress(asyncio.CancelledError):
            await deciding


def _where(task: asyncio.Task[Any]) -> str:
    """Return the name of a task and the function and line in which it waits."""
    waits = [f"{one.f_code.co_qualname}:{one.f_lineno}" for one in task.get_stack(limit=1)]
    return f"{task.get_name()} at {waits[0] if waits else 'its end'}"
