"""Writes the book's decisions about Workloads. The book assumes them; they take effect once stored.

A write names the resource version that was decided upon. When the API server refuses it, because
the object has changed or a policy forbids it, the decision is undone: the Workload is taken over as
stored, and queued again. Quota is released in the API before it is given to another workload, so
the API's objects never add up to more quota than there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.claims import is_unresolved
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, condition_of, pruned, split_key
from queuecontroller.cluster.status.workload_status import (
    LONGEST,
    holds,
    patch_of,
    pending,
    pods_with_quota,
    resolved,
    unresolved,
)
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.scheduler.lifecycle import SECOND_NS
from queuecontroller.scheduler.model.objects import Condition, Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    DEVICES_UNRESOLVED,
    FINISHED,
    MISCONFIGURED,
    QUOTA_RESERVED,
)
from queuecontroller.state.book import Book
from queuecontroller.state.records import WorkloadRecord
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused

log = logging.getLogger(__name__)
WIDTH: Final = 12
"""Writes in flight: the API server's throughput is best with 8 to 16; more only wait there."""
DEBOUNCE_S: Final = 1.0
"""Seconds of debounce for updates of the pending reason, which changes often."""
ALIKE_A_SECOND: Final = 20.0
"""Rate of the pending reasons of identical workloads, which are not evaluated one by one. Thousands
may come at once, and each write delays a write that admits a workload."""
REFUSED_NS: Final = 10_000_000_000
"""Nanoseconds until a refused write is tried again."""


class WorkloadWriter:
    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        stored: Callable[[Document, Document], None],
        changed: Callable[[WorkloadKey, Document | None], None],
    ) -> None:
        """`stored` is called after each write, with the document before and as stored; `changed`
        with a Workload that was read again or whose decision was undone, as its watch would report
        it; None: it was deleted."""
        self._shell = shell
        self._mirror = mirror
        self._client = client
        self._may_write = may_write
        self._stored = stored
        self._changed = changed
        self.work_queue: WorkQueue[WorkloadKey] = WorkQueue("Workload", self._write, WIDTH)
        self._number = 0
        self._releasing: dict[WorkloadKey, int] = {}
        """Workloads whose quota is free in the book and not yet in the API, numbered in that
        order."""
        self._behind: dict[WorkloadKey, int] = {}
        """Last number of `_releasing` at the time a workload was given quota."""
        self._alike: dict[WorkloadKey, float] = {}
        """Workloads pending for the reason of identical ones, and when that is written, in s."""
        self._next_alike_s = 0.0
        self.writes_total = 0
        self.conflicts_total = 0

    def touched(self, keys: Iterable[WorkloadKey]) -> None:
        """Queue writes for workloads that the book has changed."""
        reserving: list[WorkloadKey] = []
        others: list[WorkloadKey] = []
        for key in keys:
            document = self._mirror.cache.get(WORKLOADS, key)
            if document is None:
                self._settle(key)
                continue
            if not _holds(document):
                self._note_freed(key)
            if self._frees(key, document):
                if key not in self._releasing:
                    self._number += 1
                    self._releasing[key] = self._number
                self.work_queue.add(key)
            else:
                is_new = self._holds(key) and not _holds(document)
                (reserving if is_new else others).append(key)
        for key in reserving:
            self._behind[key] = self._number
            self.work_queue.add(key)
        for key in others:
            record = self._mirror.book.workloads.records.get(key)
            if record is not None and record.workload.admission is not None:
                self.work_queue.add(key)
            else:
                self._note_alike(key)
                self.work_queue.add_after(key, DEBOUNCE_S)

    def _note_alike(self, key: WorkloadKey) -> None:
        """Plan a pending reason for a workload that was skipped since an identical one had no
        quota."""
        book = self._mirror.book
        if key in self._alike or key in book.workloads.waiting:
            return
        document = self._mirror.cache.get(WORKLOADS, key)
        if document is None or condition_of(document, QUOTA_RESERVED):
            return
        if book.engine.why_like_others(key) is not None:
            self._next_alike_s = max(
                monotonic() + DEBOUNCE_S, self._next_alike_s + 1 / ALIKE_A_SECOND
            )
            self._alike[key] = self._next_alike_s

    def _is_alike_due(self, key: WorkloadKey) -> bool:
        """Return True if the shared reason is due; queues the workload for later if not."""
        due_s = self._alike.get(key)
        if due_s is None:
            return False
        left_s = due_s - monotonic()
        if left_s > 0:
            self.work_queue.add_after(key, left_s)
        return left_s <= 0

    def objects_changed(self) -> None:
        """Queue pending workloads whose reason changed with an object, without a scheduling
        cycle."""
        for key, record in self._mirror.book.workloads.records.items():
            workload = record.workload
            if workload.admission is not None or workload.is_true(FINISHED):
                continue
            document = self._mirror.cache.get(WORKLOADS, key)
            waits = self._why_unqueued(key)
            if document is not None and waits is not None:
                written = condition_of(document, QUOTA_RESERVED).get("message")
                if written != waits[:LONGEST]:
                    self.work_queue.add_after(key, DEBOUNCE_S)

    def _why_unqueued(self, key: WorkloadKey) -> str | None:
        """Return why a workload is not queued, or why its queue is inactive; None if neither."""
        engine = self._mirror.book.engine
        found = engine.why_unqueued(key)
        queue = engine.queue_of(key)
        return engine.cache.why_inactive(queue) if found is None and queue else found

    def _holds(self, key: WorkloadKey) -> bool:
        record = self._mirror.book.workloads.records.get(key)
        return record is not None and holds(record.workload)

    def _frees(self, key: WorkloadKey, document: Document) -> bool:
        """Return True if the stored status holds quota that is free in the book: of the whole
        workload, of pods that have ended, or of pods that an elastic job gave up."""
        record = self._mirror.book.workloads.records.get(key)
        if record is None or not _holds(document):
            return False
        held = pods_with_quota(record.workload)
        return not holds(record.workload) or any(
            count > held.get(name, 0) for name, count in _pods_with_quota(document).items()
        )

    async def _write(self, key: WorkloadKey) -> None:
        if not self._may_write() or self._is_early(key):
            return
        document = self._mirror.cache.get(WORKLOADS, key)
        if document is not None:
            patch, workload = self._patch(key, document)
            if patch and not await self._send(key, document, workload, {"status": patch}):
                return
            document = self._mirror.cache.get(WORKLOADS, key)
            record = self._mirror.book.workloads.records.get(key)
            if document is not None and record is not None and _is_to_stop(document, record):
                # Without a version: whatever else has changed meanwhile, it stays deactivated. A
                # conflict would undo that after its eviction is stored, and it would run once more.
                patch = {"spec": {"active": False}}
                await self._send(key, document, record.workload, patch, "")
        self._settle(key)

    def _is_early(self, key: WorkloadKey) -> bool:
        """Return True while quota that was freed before it is not written yet; it is queued
        again."""
        oldest = next(iter(self._releasing.values()), None)
        mine = self._behind.get(key)
        return oldest is not None and mine is not None and oldest <= mine

    def _settle(self, key: WorkloadKey) -> None:
        """Finish a workload whose status is written: later reservations may be written now. Its own
        may have been decided after that write began, and is still to be written."""
        document = self._mirror.cache.get(WORKLOADS, key)
        if document is None or _holds(document) or not self._holds(key):
            self._behind.pop(key, None)
        if document is None or condition_of(document, QUOTA_RESERVED):
            self._alike.pop(key, None)
        if document is None or not self._frees(key, document):
            self._note_freed(key)

    def _note_freed(self, key: WorkloadKey) -> None:
        """Record that the stored status holds no quota any more that is free in the book, by our
        write or by another: later reservations may be written now."""
        if self._releasing.pop(key, None) is not None:
            for one in self._behind:
                if not self._is_early(one):
                    self.work_queue.add(one)

    def _patch(
        self, key: WorkloadKey, document: Document
    ) -> tuple[dict[str, Any], Workload | None]:
        now_ns = self._shell.now_ns()
        book = self._mirror.book
        record = book.workloads.records.get(key)
        misread = self._mirror.misread.get(key)
        if record is None or misread is not None:
            self._alike.pop(key, None)
            if misread is None:
                return {}, None
            reason, shown = MISCONFIGURED, Workload("", "", ())
            if is_unresolved(document):
                reason = DEVICES_UNRESOLVED
                shown = replace(shown, conditions=(unresolved(misread, now_ns),))
            waits = pending(reason, misread, now_ns)
            return patch_of({**document}, shown, shown, waits, now_ns), None
        workload = record.workload
        seen = self._mirror.as_read(document)
        shown = resolved(workload, now_ns)
        return patch_of(document, seen, shown, self._waits(key, workload), now_ns), workload

    def _waits(self, key: WorkloadKey, workload: Workload) -> Condition | None:
        """Return why it has no quota; None if it has quota, or was not evaluated yet."""
        if workload.admission is not None or workload.is_true(FINISHED):
            self._alike.pop(key, None)
            return None
        now_ns = self._shell.now_ns()
        book = self._mirror.book
        homeless = self._why_unqueued(key)
        if homeless is not None:
            return pending(workload.unqueued_reason, homeless, now_ns)
        waiting = book.workloads.waiting.get(key)
        if waiting is None and self._is_alike_due(key):
            waiting = book.workloads.why_not(key)
        if waiting is None:
            return None
        message = book.with_moves(key, waiting.reason, waiting.message)
        return pending(waiting.reason, message, now_ns)

    async def _send(
        self,
        key: WorkloadKey,
        document: Document,
        workload: Workload | None,
        patch: Mapping[str, Any],
        version: str | None = None,
    ) -> bool:
        """Send a patch of a version, by default of the document's; "": of any. Returns False if it
        was refused and the decision undone. Raises ApiAway."""
        namespace, name = split_key(key)
        if version is None:
            version = str(document["metadata"]["resourceVersion"])
        if workload is not None:
            self._mirror.expected[key] = workload
        try:
            self.writes_total += 1
            answer = await self._client.merge_patch(
                WORKLOADS,
                name,
                patch,
                namespace,
                "status" if "status" in patch else "",
                resource_version=version,
            )
            found = pruned(answer)
            if self._mirror.cache.take(WORKLOADS, found):  # False if the watch was faster.
                self._shell.step(
                    "stored", lambda book, now_ns: self._mirror.workload(key, found, now_ns)
                )
        except ApiRefused as refused:
            await self._undo(key, version, refused)
            return False
        except ApiAway:
            await self._look(key)  # Without an answer it may have been stored.
            raise
        finally:
            self._mirror.expected.pop(key, None)
        self._stored(document, found)
        return True

    async def _undo(self, key: WorkloadKey, version: str, refused: ApiRefused) -> None:
        """Undo a refused decision. Raises ApiAway, and ApiRefused if a later retry may succeed."""
        if refused.status == 429 or refused.status >= 500 or refused.denied:
            raise refused
        self.conflicts_total += refused.conflict
        if not refused.conflict and not refused.not_found:
            log.warning("Workload %s: status update refused, decision undone: %s", key, refused)
        known = self._mirror.cache.get(WORKLOADS, key)
        if known is None or str(known["metadata"]["resourceVersion"]) == version:
            await self._look(key)
        again_ns = 0 if refused.conflict else self._shell.now_ns() + REFUSED_NS

        def undo(book: Book, now_ns: int) -> None:
            self._mirror.take_over_again(key, now_ns, again_ns)
            for one in given:
                self._mirror.take_over_again(one, now_ns)

        given = self._given_after(key)
        self._shell.step("undo", undo)
        self._settle(key)
        # What its reconciler decided is undone as well, and no change of an object may follow.
        if refused.conflict:
            self._reconcile_again(key)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(REFUSED_NS / SECOND_NS, self._reconcile_again, key)

    def _given_after(self, key: WorkloadKey) -> list[WorkloadKey]:
        """Return the workloads whose reservations may use quota that the book had freed of this
        one. None of them is written yet."""
        number = self._releasing.get(key)
        if number is None:
            return []
        found = []
        for one, record in self._mirror.book.workloads.records.items():
            if not holds(record.workload) or self._behind.get(one, number) < number:
                continue
            document = self._mirror.cache.get(WORKLOADS, one)
            is_sent = one in self._mirror.expected
            if document is not None and not is_sent and not _holds(document):
                found.append(one)
        return found

    def _reconcile_again(self, key: WorkloadKey) -> None:
        document = self._mirror.cache.get(WORKLOADS, key)
        if document is not None and self._may_write():
            self._changed(key, document)

    async def _look(self, key: WorkloadKey) -> None:
        """Read the Workload from the API server, and report it if the cache had an older one: its
        watch will report no version that the cache has already. Raises ApiAway, ApiRefused."""
        namespace, name = split_key(key)
        cache = self._mirror.cache
        known = cache.get(WORKLOADS, key)
        try:
            found = pruned(await self._client.get(WORKLOADS, name, namespace))
        except ApiRefused as refused:
            if not refused.not_found:
                raise
            if known is None or cache.drop(WORKLOADS, key, known["metadata"]["uid"]):
                self._changed(key, None)
            return
        if cache.take(WORKLOADS, found):
            self._changed(key, found)


def _is_to_stop(document: Document, record: WorkloadRecord) -> bool:
    return not record.workload.active and bool((document.get("spec") or {}).get("active", True))


def _pods_with_quota(document: Document) -> dict[str, int]:
    """Return the number of pods by pod set that hold quota by a stored status with an admission."""
    status = document["status"]
    ended = {one["name"]: one["count"] for one in status.get("reclaimablePods") or ()}
    return {
        one["name"]: one.get("count", 0) - ended.get(one["name"], 0)
        for one in status["admission"].get("podSetAssignments") or ()
    }


def _holds(document: Document) -> bool:
    """Return True if a Workload holds quota by its stored status."""
    status = document.get("status") or {}
    if not status.get("admission"):
        return False
    return not any(
        one.get("type") == FINISHED and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
