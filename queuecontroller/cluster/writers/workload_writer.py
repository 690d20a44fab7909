"""Writes what the book decided about Workloads: assumed already, heard of only once it is stored.

A write says which version of the object was decided upon. When the API server refuses it, because
somebody changed the object or because a rule forbids it, what was assumed is undone: the Workload
is taken as the API server has it, and stands in line again. Quota that comes free is written before
what is given of it: nobody who adds up the API's objects finds more given than there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, condition_of, pruned, split_key
from queuecontroller.cluster.status.workload_status import LONGEST, holds, patch_of, pending
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.scheduler.model.objects import Condition, Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import FINISHED, QUOTA_RESERVED
from queuecontroller.state.records import WorkloadRecord
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused

log = logging.getLogger(__name__)
WIDTH: Final = 12
"""Writes in flight: from 8 to 16 the API server does most of them; more only wait there."""
SAID_S: Final = 1.0
"""Why somebody waits changes often; it is written so long after it changed."""
ALIKE_A_SECOND: Final = 20.0
"""Thousands that are alike come to wait at once, and are not looked at: each is told why, but in
its turn, since every write takes time from those that let somebody run."""
REFUSED_NS: Final = 10_000_000_000
"""What the API server will not have is not offered to it again at once."""


class WorkloadWriter:
    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        stored: Callable[[Document, Document], None],
    ) -> None:
        """`stored` hears of each of our writes: the document before, and as it is now."""
        self._shell = shell
        self._mirror = mirror
        self._client = client
        self._may_write = may_write
        self._stored = stored
        self.work_queue: WorkQueue[WorkloadKey] = WorkQueue("Workload", self._write, WIDTH)
        self._number = 0
        self._releasing: dict[WorkloadKey, int] = {}
        """Quota that is free in the book and not yet in the API, numbered as it came free."""
        self._behind: dict[WorkloadKey, int] = {}
        """Who was given quota when that many had come free."""
        self._alike: dict[WorkloadKey, float] = {}
        """Who waits as others do, and when it is told."""
        self._next_alike_s = 0.0
        self.writes_total = 0
        self.conflicts_total = 0

    def touched(self, keys: Iterable[WorkloadKey]) -> None:
        """The book has something new about them."""
        reserving: list[WorkloadKey] = []
        others: list[WorkloadKey] = []
        for key in keys:
            document = self._mirror.cache.get(WORKLOADS, key)
            if document is None:
                continue
            in_book, in_api = self._holds(key), _holds(document)
            if in_api and not in_book:
                if key not in self._releasing:
                    self._number += 1
                    self._releasing[key] = self._number
                self.work_queue.add(key)
            else:
                (reserving if in_book and not in_api else others).append(key)
        for key in reserving:
            self._behind[key] = self._number
            self.work_queue.add(key)
        for key in others:
            record = self._mirror.book.workloads.records.get(key)
            if record is not None and record.workload.admission is not None:
                self.work_queue.add(key)
            else:
                self._note_alike(key)
                self.work_queue.add_after(key, SAID_S)

    def _note_alike(self, key: WorkloadKey) -> None:
        """Somebody of its shape could not start: it is told so in its turn, if nobody has yet."""
        book = self._mirror.book
        if key in self._alike or key in book.workloads.waiting:
            return
        document = self._mirror.cache.get(WORKLOADS, key)
        if document is None or condition_of(document, QUOTA_RESERVED):
            return
        if book.engine.why_like_others(key) is not None:
            self._next_alike_s = max(monotonic() + SAID_S, self._next_alike_s + 1 / ALIKE_A_SECOND)
            self._alike[key] = self._next_alike_s

    def _is_told_alike(self, key: WorkloadKey) -> bool:
        """Whether its turn has come; if not, it is asked again then."""
        due_s = self._alike.get(key)
        if due_s is None:
            return False
        left_s = due_s - monotonic()
        if left_s > 0:
            self.work_queue.add_after(key, left_s)
        return left_s <= 0

    def objects_changed(self) -> None:
        """Those that wait may do so for another reason now, of which no cycle tells."""
        for key, record in self._mirror.book.workloads.records.items():
            workload = record.workload
            if workload.admission is not None or workload.is_true(FINISHED):
                continue
            document = self._mirror.cache.get(WORKLOADS, key)
            waits = self._homeless(key)
            if document is not None and waits is not None:
                told = condition_of(document, QUOTA_RESERVED).get("message")
                if told != waits[:LONGEST]:
                    self.work_queue.add_after(key, SAID_S)

    def _homeless(self, key: WorkloadKey) -> str | None:
        """Why nobody even looks at it."""
        engine = self._mirror.book.engine
        found = engine.why_unqueued(key)
        queue = engine.queue_of(key)
        return engine.cache.why_inactive(queue) if found is None and queue else found

    def _holds(self, key: WorkloadKey) -> bool:
        record = self._mirror.book.workloads.records.get(key)
        return record is not None and holds(record.workload)

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
                patch = {"spec": {"active": False}}
                await self._send(key, document, record.workload, patch)
        self._settle(key)

    def _is_early(self, key: WorkloadKey) -> bool:
        """Quota that came free before it was given is not written yet: it is asked again then."""
        oldest = next(iter(self._releasing.values()), None)
        mine = self._behind.get(key)
        return oldest is not None and mine is not None and oldest <= mine

    def _settle(self, key: WorkloadKey) -> None:
        """It was looked at, and what was to be written is."""
        document = self._mirror.cache.get(WORKLOADS, key)
        self._behind.pop(key, None)
        if document is None or condition_of(document, QUOTA_RESERVED):
            self._alike.pop(key, None)
        if key in self._releasing and (
            document is None or not _holds(document) or self._holds(key)
        ):
            del self._releasing[key]
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
            empty = Workload("", "", ())
            waits = pending("Misconfigured", misread, now_ns)
            return patch_of({**document}, empty, empty, waits, now_ns), None
        workload = record.workload
        seen = self._mirror.as_read(document)
        return patch_of(document, seen, workload, self._waits(key, workload), now_ns), workload

    def _waits(self, key: WorkloadKey, workload: Workload) -> Condition | None:
        """Why it does not hold quota; None where it does, or nobody has looked yet."""
        if workload.admission is not None or workload.is_true(FINISHED):
            self._alike.pop(key, None)
            return None
        now_ns = self._shell.now_ns()
        book = self._mirror.book
        homeless = self._homeless(key)
        if homeless is not None:
            return pending("Inadmissible", homeless, now_ns)
        waiting = book.workloads.waiting.get(key)
        if waiting is None and self._is_told_alike(key):
            waiting = book.workloads.why_not(key)
        return pending(waiting.reason, waiting.message, now_ns) if waiting is not None else None

    async def _send(
        self,
        key: WorkloadKey,
        document: Document,
        workload: Workload | None,
        patch: Mapping[str, Any],
    ) -> bool:
        """False: it was refused, and what was assumed is undone. Raises ApiAway."""
        namespace, name = split_key(key)
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
            if self._mirror.cache.take(WORKLOADS, found):  # else the watch was faster
                self._shell.step(
                    "stored", lambda book, now_ns: self._mirror.workload(key, found, now_ns)
                )
        except ApiRefused as refused:
            await self._undo(key, version, refused)
            return False
        except ApiAway:
            await self._look(key)  # whether it was stored, nobody has said
            raise
        finally:
            self._mirror.expected.pop(key, None)
        self._stored(document, found)
        return True

    async def _undo(self, key: WorkloadKey, version: str, refused: ApiRefused) -> None:
        """Raises ApiAway; ApiRefused where a pause may help."""
        if refused.status == 429 or refused.status >= 500 or refused.denied:
            raise refused
        self.conflicts_total += refused.conflict
        if not refused.conflict and not refused.not_found:
            log.warning("Workload %s: not stored: %s", key, refused)
        known = self._mirror.cache.get(WORKLOADS, key)
        if known is None or str(known["metadata"]["resourceVersion"]) == version:
            await self._look(key)
        again_ns = 0 if refused.conflict else self._shell.now_ns() + REFUSED_NS
        self._shell.step(
            "undo", lambda book, now_ns: self._mirror.take_over_again(key, now_ns, again_ns)
        )
        self._settle(key)

    async def _look(self, key: WorkloadKey) -> None:
        """As the API server has it now. Raises ApiAway, ApiRefused."""
        namespace, name = split_key(key)
        cache = self._mirror.cache
        known = cache.get(WORKLOADS, key)
        try:
            found = pruned(await self._client.get(WORKLOADS, name, namespace))
        except ApiRefused as refused:
            if not refused.not_found:
                raise
            if known is None or cache.drop(WORKLOADS, key, known["metadata"]["uid"]):
                self._shell.step(
                    "gone", lambda book, now_ns: self._mirror.workload(key, None, now_ns)
                )
            return
        if cache.take(WORKLOADS, found):
            self._shell.step("look", lambda book, now_ns: self._mirror.workload(key, found, now_ns))


def _is_to_stop(document: Document, record: WorkloadRecord) -> bool:
    return not record.workload.active and bool((document.get("spec") or {}).get("active", True))


def _holds(document: Document) -> bool:
    """Quota, by what the API says."""
    status = document.get("status") or {}
    if not status.get("admission"):
        return False
    return not any(
        one.get("type") == FINISHED and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
