"""Session of a leader beside a running Kueue: answers the placement check of Workloads with quota,
by the GPU shares that they request.

Nodes have their sessions with a book as in the other modes; nothing is queued in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import Final

from queuecontroller.cluster.admissionchecks.placement import (
    CONTROLLER,
    PLACED_FOR,
    POD_SET,
    Placer,
)
from queuecontroller.cluster.admissionchecks.states import (
    State,
    check_by,
    checks_of,
)
from queuecontroller.cluster.admissionchecks.status_writer import CheckStatusWriter
from queuecontroller.cluster.cache.kinds import CHECKS, FLAVORS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    is_answered_by,
    is_leaving,
    key_of,
)
from queuecontroller.cluster.dispatch import Dispatcher
from queuecontroller.cluster.plan import Followed, Leadership, Plan
from queuecontroller.cluster.session import Defect, NullStore
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.state.book import Book
from queuecontroller.state.records import ObjectId
from queuecontroller.state.shell import EXIT_OK, Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import PODS, Resource

KINDS: Final = (FLAVORS, CHECKS, WORKLOADS)
"""Watched kinds besides pods."""
PLACED_PODS: Final = (("labelSelector", PLACED_FOR),)
WIDTH: Final = 8
REPORTS: Final = 2.5
"""Report intervals until a running pod's grant is certainly in its node's reports: one report may
have been in flight, and one may be lost."""
LOOK_S: Final = 1.0
"""Seconds between two reads of the nodes' reports."""
log = logging.getLogger(__name__)
WorkItem = tuple[Resource, str]


class Beside:
    def __init__(
        self, plan: Plan, client: ApiClient, followed: Followed, leadership: Leadership
    ) -> None:
        """Arguments as of `Session`."""
        self._cache = followed.cache
        self._may_write = leadership.may_write
        self._settled_s = plan.report_s * REPORTS
        self._first_s = plan.book.lease_s
        """Seconds after the start until every node has found this leader."""
        self._began_s = 0.0
        book = Book(plan.book, False, plan.new_uid)
        store = NullStore(leadership.term, leadership.cluster_id)
        self.shell = Shell(book, store, plan.clock)
        self.recorder = EventRecorder(
            client, leadership.may_write, lambda: plan.new_uid().replace("-", "")[:16]
        )
        self.placer = Placer()
        self._status_writer = CheckStatusWriter(
            client, followed.cache, self.recorder, self.shell.now_ns, self._stored
        )
        self.work_queue: WorkQueue[WorkItem] = WorkQueue("check of", self._reconcile, WIDTH)
        self._runs: dict[str, tuple[str, float]] = {}
        """Running pods: their UID, and when they were first seen running, in s."""
        self._workload_of: dict[str, str] = {}
        """Keys of Workloads by their UID."""
        self._uid_of: dict[str, str] = {}
        """UIDs of Workloads by their key."""
        self._pods_of: dict[str, dict[str, None]] = {}
        """Keys of pods by the UID of the Workload that they are placed for."""
        self._of_pod: dict[str, str] = {}
        self._dispatcher = Dispatcher(
            {
                WORKLOADS: (self._workload_changed,),
                PODS: (self._pod_changed,),
                CHECKS: (self._check_changed,),
            }
        )
        self._began = False

    @property
    def term(self) -> int:
        return self.shell.book.journal.term

    @property
    def writes_total(self) -> int:
        return self._status_writer.writes_total

    async def run(self) -> None:
        """Answer until cancelled. Raises Defect."""
        self.shell.on_change = _ignore
        self.shell.start()
        self._began, self._began_s = True, monotonic()
        for kind in (PODS, *KINDS):
            for document in self._cache.all_of(kind):
                self.changed(kind, key_of(document), document)
        log.info("deciding, term %d: beside Kueue", self.term)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve_nodes())
            group.create_task(self._follow_nodes())
            group.create_task(self.work_queue.run())
            group.create_task(self.recorder.run())

    async def _serve_nodes(self) -> None:
        status = await self.shell.run()
        if status != EXIT_OK:
            raise Defect(self.shell.why_not_ready)

    async def _follow_nodes(self) -> None:
        while True:
            self._follow()
            await asyncio.sleep(LOOK_S)

    def _follow(self) -> None:
        """Take in the nodes' reports, and queue Workloads that wait for one. All others
        are evaluated again once Kueue has reserved quota for them again."""
        ready = self.shell.book.nodes.each_ready(self.shell.now_ns())
        if not self.placer.follow({one.name: one.capacity for one in ready}):
            return
        for workload in self._cache.all_of(WORKLOADS):
            name = self._named(workload)
            if name and self.placer.waits(workload, name):
                self.work_queue.add((WORKLOADS, key_of(workload)), urgent=False)

    def _unsettled_s(self) -> float:
        """Seconds for which nodes may still be connecting to this leader; 0: none is.

        A disconnected node counts as connecting until it is given up.
        """
        book = self.shell.book
        now_ns = self.shell.now_ns()
        away = any(
            not one.record.lost and not book.nodes.ready(one, now_ns)
            for one in book.nodes.nodes.values()
        )
        left_s = self._began_s + self._first_s - monotonic()
        return max(left_s, LOOK_S if away else 0.0)

    # -- changes ----------------------------------------------------------------------------------

    def changed(self, kind: Resource, key: str, document: Document | None) -> None:
        """Handle a change of an object; None: it was deleted. The cache has the change already."""
        if self._began:
            self._dispatcher.changed(kind, key, document)

    def _workload_changed(self, key: str, document: Document | None) -> None:
        self._note_workload(key, document)
        if document is not None:
            self._ask(key, document)

    def _check_changed(self, key: str, document: Document | None) -> None:
        self.work_queue.add((CHECKS, key))
        for workload in self._cache.all_of(WORKLOADS):
            if key in checks_of(workload):
                self.work_queue.add((WORKLOADS, key_of(workload)), urgent=False)

    def _note_workload(self, key: str, document: Document | None) -> None:
        uid = str(document["metadata"]["uid"]) if document is not None else ""
        before = self._uid_of.get(key, "")
        if before and before != uid:
            del self._uid_of[key]
            self._workload_of.pop(before, None)
            self.placer.forget(before)
        if uid:
            self._uid_of[key] = uid
            self._workload_of[uid] = key

    def _pod_changed(self, key: str, pod: Document | None) -> None:
        before = self._of_pod.pop(key, "")
        labels = (pod or {"metadata": {}})["metadata"].get("labels") or {}
        now = str(labels.get(PLACED_FOR) or "")
        if before and before != now:
            self._pods_of[before].pop(key, None)
            if not self._pods_of[before]:
                del self._pods_of[before]
        if pod is not None and now:
            self._of_pod[key] = now
            self._pods_of.setdefault(now, {})[key] = None
        if pod is not None and _runs(pod):
            uid = str(pod["metadata"]["uid"])
            if self._runs.get(key, ("", 0.0))[0] != uid:
                self._runs[key] = (uid, monotonic())
        else:
            self._runs.pop(key, None)
        for uid in {before, now} - {""}:
            workload = self._workload_of.get(uid)
            if workload is not None:
                self.work_queue.add((WORKLOADS, workload))

    def _ask(self, key: str, workload: Document) -> None:
        known = str(workload["metadata"]["uid"])
        if self._named(workload) or self.placer.knows(known):
            self.work_queue.add((WORKLOADS, key))

    def _named(self, workload: Document) -> str:
        """Return the name of its placement check; "" if it has none."""
        return check_by(self._cache, CONTROLLER, workload)

    # -- one Workload, or one check ---------------------------------------------------------------

    async def _reconcile(self, item: WorkItem) -> None:
        kind, key = item
        document = self._cache.get(kind, key)
        if document is None or not self._may_write():
            return
        if kind == CHECKS:
            if is_answered_by(document, CONTROLLER):
                await self._status_writer.write_active(document, _why_not(document))
            return
        name = self._named(document)
        self._follow()
        flavors = {key_of(one): one for one in self._cache.all_of(FLAVORS)}
        seen, again_s = self._seen(str(document["metadata"]["uid"]))
        unsettled_s = self._unsettled_s()
        answer = self.placer.look(document, name, flavors, seen, unsettled_s <= 0)
        if answer is not None and answer.state is State.PENDING and unsettled_s > 0:
            again_s = unsettled_s
        if again_s is not None:
            self.work_queue.add_after(item, again_s)
        if answer is not None:
            await self._status_writer.write_answers(document, {name: answer})

    def _seen(self, uid: str) -> tuple[Counter[tuple[str, str]], float | None]:
        """Count the pods that nodes report; returns the seconds until there may be more, too."""
        seen: Counter[tuple[str, str]] = Counter()
        again_s: float | None = None
        for key in self._pods_of.get(uid, ()):
            since = self._runs.get(key)
            pod = self._cache.get(PODS, key)
            if since is None or pod is None:
                continue
            left_s = since[1] + self._settled_s - monotonic()
            if left_s <= 0:
                labels = pod["metadata"].get("labels") or {}
                node = str((pod.get("spec") or {}).get("nodeName") or "")
                seen[str(labels.get(POD_SET) or ""), node] += 1
            else:
                again_s = min(left_s, again_s) if again_s is not None else left_s
        return seen, again_s

    def _stored(self, before: Document, found: Document, is_news: bool) -> None:
        if is_news:
            self.changed(WORKLOADS, key_of(found), found)


def _runs(pod: Document) -> bool:
    """Return True if the pod's containers have started, so that they hold their grants."""
    return (pod.get("status") or {}).get("phase") == "Running" and not is_leaving(pod)


def _why_not(check: Document) -> str:
    """Return why the check cannot be answered; "" if it can."""
    if (check.get("spec") or {}).get("parameters"):
        return f"spec.parameters: {CONTROLLER} takes none: remove them from the AdmissionCheck"
    return ""


def _ignore(touched: set[ObjectId]) -> None:
    """Do nothing: no workload is queued in this book."""
