"""Mirrors Kueue's objects from the cache into the book.

An invalid object stops nothing: its status gets the reader's message, and its last valid version
stays in force. The quota in a Workload's status is taken over when the Workload is first seen, and
when another writer changed it; otherwise the book is right, since its decisions may not be written
yet.
"""

from __future__ import annotations

import logging
import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from queuecontroller.cluster.cache.claims import KnownClaims, holds_quota
from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, OBJECTS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    is_leaving,
    key_of,
    split_key,
)
from queuecontroller.kueueapi.manifests.pods import NO_DEFAULTS, PodDefaults
from queuecontroller.kueueapi.manifests.workloads import (
    devices_of,
    read_workload,
    read_workload_again,
)
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.model.limit_range import container_defaults
from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSet,
    PodSetAssignment,
    RequeueState,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import ADMITTED, EVICTED, FINISHED, QUOTA_RESERVED
from queuecontroller.scheduler.model.transformations import Transformations
from queuecontroller.scheduler.quota.decay import FRACTION_BITS
from queuecontroller.scheduler.quota.usage_history import UsageRecord
from queuecontroller.state.book import Book
from queuecontroller.state.figures import DEFECTS
from queuecontroller.state.records import ObjectId, WorkloadRecord
from queuecontroller.state.workloads.conditions import moved_ns
from sluicecommon.kubernetes.names import wrong_names
from sluicecommon.kubernetes.resources import RUNTIME_CLASSES, Resource
from sluicecommon.reader import ManifestError, Problem, Reader, read_or_refused

MAX_ALIKE: Final = 1024
log = logging.getLogger(__name__)
NOT_COUNTED: Final = -1
WITH_EFFECTIVE_QUOTAS: Final = ("ClusterQueue", "Cohort")
_QUOTA_CONDITIONS: Final = (QUOTA_RESERVED, ADMITTED, EVICTED, FINISHED)
"""Conditions that tell whether a workload holds quota."""
_KEPT: Final = ("apiVersion", "kind", "spec", "value", "globalDefault")
_OTHERS: Final = ("pod_sets", "queue_name", "priority", "priority_class", "active")
_OTHERS_TOO: Final = (
    "max_execution_s",
    "admission_checks",
    "reclaimable_pods",
    "replaces",
    "gated_by",
    "preemption_gates",
    "ready_timeouts_s",
)
"""Fields of a Workload that other writers may change while it is pending or runs."""


def specified(document: Document, dynamic_quota: bool = False) -> dict[str, Any]:
    """Return the parts of an object that a user specifies: no status, nothing the API server adds.
    With `dynamic_quota` the quotas are those of `status.effectiveQuotas`, if there are any."""
    found = {name: document[name] for name in _KEPT if name in document}
    effective = (document.get("status") or {}).get("effectiveQuotas") if dynamic_quota else None
    if effective is not None and document.get("kind") in WITH_EFFECTIVE_QUOTAS:
        groups = effective.get("resourceGroups") or []
        found["spec"] = {**(found.get("spec") or {}), "resourceGroups": groups}
    head: dict[str, Any] = {"name": document["metadata"]["name"]}
    for name in ("namespace", "labels"):
        if value := document["metadata"].get(name):
            head[name] = value
    given = annotations_of(document)
    if ours := {name: text for name, text in given.items() if name.startswith("sluice.dev/")}:
        head["annotations"] = ours
    if document.get("kind") == "ClusterQueue" and is_leaving(document):
        spec = found.get("spec") or {}
        if spec.get("stopPolicy", "None") == "None":  # Nothing is admitted, nothing is evicted.
            found["spec"] = {**spec, "stopPolicy": "Hold"}
    return {**found, "metadata": head}


@dataclass(frozen=True, slots=True)
class _Seen:
    document: Document
    transformations: Transformations
    workload: Workload
    claims: int | None
    """Revision of KnownClaims that its claims were counted at; None: it has no claims."""
    defaults: PodDefaults

    def has_spec_of(self, document: Document, transformations: Transformations) -> bool:
        """Return True if the API server gives the document the same generation of the spec."""
        mine, other = self.document["metadata"], document["metadata"]
        generation = other.get("generation")
        return (
            generation is not None
            and mine.get("generation") == generation
            and mine.get("uid") == other.get("uid")
            and self.transformations is transformations
        )


class Mirror:
    def __init__(self, book: Book, cache: ObjectCache) -> None:
        self.book = book
        self.cache = cache
        self.claims = KnownClaims(
            cache,
            lambda: book.catalogue.configuration.device_classes,
            free=book.claimed is not None,
        )
        self.refused: dict[ObjectId, str] = {}
        """Errors of invalid objects."""
        self.misread: dict[WorkloadKey, str] = {}
        """Errors of invalid Workloads."""
        self._seen: dict[WorkloadKey, _Seen] = {}
        """Workloads as last read from the API."""
        self.expected: dict[WorkloadKey, Workload] = {}
        """Workloads as the writes in flight will make them."""
        self._alike: dict[bytes, Workload] = {}
        """One Workload for each distinct spec, by its hash: hundreds of jobs differ in their names
        alone, and most of the time to read a Workload goes into its spec."""
        self._alike_under: Transformations | None = None
        self._overheads: dict[str, Mapping[str, int]] | None = None
        """Overhead of pods by RuntimeClass; None: not read since one changed."""

    # -- objects ----------------------------------------------------------------------------------

    def begin(self, now_ns: int) -> None:
        """Put all objects of the cache into the book."""
        read = []
        for kind in OBJECTS:
            for document in self.cache.all_of(kind):
                if (wanted := self._readable(kind, document)) is not None:
                    read.append(wanted)
        self.book.apply(read, False, now_ns)
        self._put_devices()
        for document in self.cache.all_of(WORKLOADS):
            self._put(key_of(document), document, now_ns)
        self._restore_usage()
        self.book.workloads.resume(now_ns)
        for key in list(self.book.workloads.records):
            self._advance(key, now_ns)

    def _restore_usage(self) -> None:
        """Restore the recorded usage of LocalQueues from their status, where an earlier leader has
        written it."""
        if (history := self.book.engine.history) is None:
            return
        found = []
        for document in self.cache.all_of(LOCAL_QUEUES):
            sharing = Reader(document).child("status").child("fairSharing")
            status = sharing.child("admissionFairSharingStatus")
            amounts = status.amounts("consumedResources")
            since_ns = status.time_ns("lastUpdate")
            if amounts and since_ns is not None and not status.problems:
                consumed = {name: amount << FRACTION_BITS for name, amount in amounts.items()}
                found.append(UsageRecord(key_of(document), since_ns, consumed))
        history.restore(found)

    def object(self, kind: Resource, key: str, document: Document | None, now_ns: int) -> None:
        namespace, name = split_key(key)
        identity = (kind.kind, namespace, name)
        if document is None:
            self.refused.pop(identity, None)
            if identity in self.book.catalogue.records:
                self.book.forget_object(identity, now_ns)
            return
        wanted = self._readable(kind, document)
        if wanted is not None:
            self.book.apply([wanted], False, now_ns)

    def _readable(self, kind: Resource, document: Document) -> dict[str, Any] | None:
        namespace, name = split_key(key_of(document))
        identity = (kind.kind, namespace, name)
        try:
            wanted = read_or_refused(lambda: self._checked(kind, document))
        except ManifestError as error:
            self.refused[identity] = str(error)
            note_defect(error, "/".join(identity))
            return None
        self.refused.pop(identity, None)
        return wanted

    def _checked(self, kind: Resource, document: Document) -> dict[str, Any]:
        """Return an object as the book applies it. Raises ManifestError."""
        dynamic_quota = Feature.DYNAMIC_QUOTA in self.cache.policy.features
        wanted = specified(document, dynamic_quota)
        wanted.setdefault("apiVersion", kind.api_version)
        wanted.setdefault("kind", kind.kind)
        if wrong := [Problem(where, what) for where, what in wrong_names(wanted)]:
            raise ManifestError(wrong)
        self.book.catalogue.read(wanted)
        return wanted

    # -- workloads --------------------------------------------------------------------------------

    def workload(self, key: str, document: Document | None, now_ns: int) -> None:
        if self._put(key, document, now_ns):
            self._advance(WorkloadKey(key), now_ns)

    def _advance(self, key: WorkloadKey, now_ns: int) -> None:
        """Evict or admit a Workload that was taken over, if its stored status requires it.

        An AdmissionCheck may have been answered while a decision was written, or before an earlier
        leader ended, and no other event would report that.
        """
        workloads = self.book.workloads
        workloads.look([key], now_ns)
        record = workloads.records.get(key)
        if record is not None and not record.workload.is_true(FINISHED):
            workloads.advance(key, now_ns)

    def _put(self, key: str, document: Document | None, now_ns: int) -> bool:
        """Return True if the Workload was taken over as it is stored."""
        mine = WorkloadKey(key)
        every = self.book.workloads.records
        if document is None:
            self._seen.pop(mine, None)
            self.misread.pop(mine, None)
            if mine in every:
                self.book.workloads.remove(mine, "deleted", now_ns)
            return False
        defaults = self._defaults_of(document)
        try:
            read, claims = read_or_refused(lambda: self._read(document, defaults))
        except ManifestError as error:
            self.misread[mine] = str(error)
            note_defect(error, f"Workload {mine}")
            if self.claims.counts(document) and _waits(every.get(mine)):
                # Its earlier usage is no longer what its claims would use.
                self._seen.pop(mine, None)
                self.book.workloads.forget(mine, now_ns)
            self.book.journal.touch_workload(mine)
            return False
        self.misread.pop(mine, None)
        seen = self._seen.get(mine)
        before = seen.workload if seen is not None else None
        if seen is not None and holds_quota(document):
            defaults = seen.defaults
        self._seen[mine] = _Seen(
            document, self.book.catalogue.transformations, read, claims, defaults
        )
        record = every.get(mine)
        if record is not None and before is not None and before.uid == read.uid:
            if not self._changed_by_others(mine, before, read, record):
                self._revise(record, before, read, now_ns)
                return False
            if read.admission not in (None, record.workload.admission):
                # Only the book assigns quota: the write is undone.
                self.book.journal.touch_workload(mine)
                return False
        self._take_over(mine, read, now_ns)
        return True

    def count_claims_again(self, now_ns: int) -> None:
        """Count the claims of Workloads without quota again; with quota, their usage is fixed."""
        self.claims.changed()
        self._put_devices()
        for document in self.cache.all_of(WORKLOADS):
            if self.claims.counts_anew(document) and not holds_quota(document):
                self.workload(key_of(document), document, now_ns)

    def _put_devices(self) -> None:
        if self.book.claimed is not None:
            self.book.claimed.put_devices(self.claims.devices())

    def read(self, document: Document) -> Workload:
        """Read a Workload. Raises ManifestError."""
        return self._read(document, self._defaults_of(document))[0]

    def _defaults_of(self, document: Document) -> PodDefaults:
        """Return what the API server will add to the pods of a Workload."""
        namespace = document["metadata"].get("namespace") or ""
        limits = self.book.catalogue.limits(namespace)
        if not limits and not self.cache.count(RUNTIME_CLASSES):
            return NO_DEFAULTS
        if self._overheads is None:
            self._overheads = self._read_overheads()
        return PodDefaults(*container_defaults(limits), self._overheads)

    def _read_overheads(self) -> dict[str, Mapping[str, int]]:
        found: dict[str, Mapping[str, int]] = {}
        for one in self.cache.all_of(RUNTIME_CLASSES):
            reader = Reader(one.get("overhead"))
            if (amounts := reader.amounts("podFixed")) and not reader.problems:
                found[one["metadata"]["name"]] = amounts
        return found

    def count_pods_again(self, namespace: str, now_ns: int) -> None:
        """Count the pods of Workloads without quota again, after a change of LimitRanges of a
        namespace, or of RuntimeClasses (namespace ""); with quota, their usage is fixed."""
        self._overheads = None
        for document in self.cache.all_of(WORKLOADS):
            mine = document["metadata"].get("namespace") or ""
            if namespace in ("", mine) and not holds_quota(document):
                self.workload(key_of(document), document, now_ns)

    def _read(self, document: Document, defaults: PodDefaults) -> tuple[Workload, int | None]:
        """Read a Workload; returns the revision that its claims were counted at, too.

        Claims and defaults of a Workload with quota are not counted again: its templates may be
        deleted by now, and its status has the quota.
        """
        catalogue = self.book.catalogue
        path = f"Workload/{key_of(document)}"
        seen = self._seen.get(WorkloadKey(key_of(document)))
        given = holds_quota(document)
        claims = self.claims.revision if self.claims.counts(document) else None
        if (
            seen is not None
            and seen.has_spec_of(document, catalogue.transformations)
            and (given or (seen.claims == claims and seen.defaults == defaults))
        ):
            workload = read_workload_again(document, path, seen.workload)
            claims = seen.claims
        elif claims is None:
            workload = self._read_spec(document, path, catalogue.transformations, defaults)
        else:  # Its usage depends on its claims, too.
            known = None if given else self.claims.known()
            workload = read_workload(document, path, catalogue.transformations, known, defaults)
            workload = self._with_devices(document, workload) if given else workload
            claims = NOT_COUNTED if given else claims
        name = workload.priority_class
        if name is not None and "priority" not in (document.get("spec") or {}):
            workload = replace(workload, priority=catalogue.priorities().of(name, name))
        return workload, claims

    def _with_devices(self, document: Document, workload: Workload) -> Workload:
        """Add the requests for devices of a Workload that holds quota, as far as they can still be
        read."""
        known = self.claims.known()
        if known is None or known.matching is None:
            return workload
        specs = [Reader(one).child("template").child("spec") for one in document["spec"]["podSets"]]
        namespace = document["metadata"].get("namespace") or ""
        pod_sets = [
            replace(one, device_requests=devices_of(spec, namespace, known))
            for one, spec in zip(workload.pod_sets, specs, strict=True)
        ]
        return replace(workload, pod_sets=tuple(pod_sets))

    def _read_spec(
        self, document: Document, path: str, change: Transformations, defaults: PodDefaults
    ) -> Workload:
        if self._alike_under is not change or len(self._alike) > MAX_ALIKE:
            self._alike.clear()
            self._alike_under = change
        try:
            # In marshal version 2 equal values always have equal bytes.
            encoded = marshal.dumps(
                (document.get("apiVersion"), document.get("spec"), *_in_order(defaults)), 2
            )
        except ValueError:  # Too deeply nested; the reader raises the error for it.
            return read_workload(document, path, change, None, defaults)
        alike = self._alike.get(key := blake2b(encoded, digest_size=16).digest())
        if alike is not None:
            return read_workload_again(document, path, alike)
        workload = self._alike[key] = read_workload(document, path, change, None, defaults)
        return workload

    def as_read(self, document: Document) -> Workload:
        """Return the document as `workload` reads it. Raises ManifestError."""
        seen = self._seen.get(WorkloadKey(key_of(document)))
        return (
            seen.workload if seen is not None and seen.document is document else self.read(document)
        )

    def _changed_by_others(
        self, key: WorkloadKey, before: Workload, read: Workload, record: WorkloadRecord
    ) -> bool:
        """Return True if another writer changed what the status says about quota."""
        quota_now = _quota_state(read)
        if quota_now == _quota_state(before):
            return False
        expected = self.expected.get(key)
        return quota_now != _quota_state(record.workload) and (
            expected is None or quota_now != _quota_state(expected)
        )

    def _take_over(self, key: WorkloadKey, read: Workload, now_ns: int) -> None:
        record = WorkloadRecord(workload=read, moved_ns=moved_ns(read))
        if (known := self.book.workloads.records.get(key)) is not None:
            record = replace(record, attempt=known.attempt)
            self.book.workloads.forget(key, now_ns)
        self.book.workloads.restore(record, now_ns)
        self.book.journal.touch_workload(key)

    def take_over_again(self, key: WorkloadKey, now_ns: int, not_before_ns: int = 0) -> None:
        """Take a Workload over from the API server after a decision about it could not be written.

        It is queued again, not before `not_before_ns`.
        """
        document = self.cache.get(WORKLOADS, key)
        if document is None:
            self.workload(key, None, now_ns)
            return
        try:
            read = self.read(document)
        except ManifestError:
            return
        if not_before_ns and read.admission is None:
            back = replace(read.requeue_state, requeue_at_ns=not_before_ns)
            read = replace(read, requeue_state=back)
        self._take_over(key, read, now_ns)
        if not not_before_ns:  # Otherwise the same write would be refused again at once.
            self._advance(key, now_ns)

    def _revise(
        self, record: WorkloadRecord, before: Workload, read: Workload, now_ns: int
    ) -> None:
        """Apply what other writers changed, and nothing else: the book decides the rest."""
        changed: dict[str, Any] = {
            name: getattr(read, name)
            for name in (*_OTHERS, *_OTHERS_TOO)
            if getattr(read, name) != getattr(before, name)
            and getattr(read, name) != getattr(record.workload, name)
        }
        if not changed:
            return
        if "pod_sets" in changed and record.workload.admission is not None:
            changed["admission"] = _shrunk(record.workload.admission, changed["pod_sets"])
        if changed.get("active"):  # A reactivated workload starts without its earlier retries.
            changed["requeue_state"] = RequeueState()
            changed["past_execution_s"] = 0
        workload = replace(record.workload, **changed)
        self.book.workloads.change(record.key, workload, now_ns)

    def queue_of(self, document: Document) -> Mapping[str, Any]:
        """Return the document of a Workload's ClusterQueue; empty if there is none."""
        name = (document.get("spec") or {}).get("queueName") or ""
        local = self.book.catalogue.local_queue(document["metadata"].get("namespace") or "", name)
        found = self.cache.get(CLUSTER_QUEUES, local.cluster_queue) if local is not None else None
        return found if found is not None else {}


def note_defect(error: ManifestError, what: str) -> None:
    """Log and count an error that is a defect of this program, not of the document."""
    if error.__cause__ is not None:
        DEFECTS.add("reading")
        log.error(
            "%s: internal error, please report it; other objects are not affected",
            what,
            exc_info=error.__cause__,
        )


def _in_order(defaults: PodDefaults) -> tuple[Any, ...]:
    """Return the defaults as values that are serialized to equal bytes if they are equal."""
    if defaults == NO_DEFAULTS:
        return ()
    overheads = {name: sorted(one.items()) for name, one in defaults.overheads.items()}
    parts = (defaults.requests, defaults.limits, overheads)
    return tuple(sorted(one.items()) for one in parts)


def _shrunk(admission: Admission, pod_sets: Iterable[PodSet]) -> Admission:
    """Return the admission of an elastic job that was scaled down; scaling up takes a new slice."""
    wanted = {one.name: one.count for one in pod_sets}
    return replace(
        admission, pod_sets=tuple(_fewer(one, wanted.get(one.name)) for one in admission.pod_sets)
    )


def _fewer(given: PodSetAssignment, count: int | None) -> PodSetAssignment:
    if count is None or count >= given.count:
        return given
    usage = {name: amount * count // given.count for name, amount in given.usage.items()}
    places, left = [], count
    for one in given.places:
        if left > 0:
            places.append(replace(one, count=min(left, one.count)))
            left -= one.count
    return replace(given, count=count, usage=usage, places=tuple(places))


def _waits(record: WorkloadRecord | None) -> bool:
    return record is not None and record.workload.admission is None


def _quota_state(workload: Workload) -> tuple[object, ...]:
    kept = workload.checkpointed
    return (workload.admission, kept, *(workload.is_true(kind) for kind in _QUOTA_CONDITIONS))
