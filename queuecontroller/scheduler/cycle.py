"""One scheduling cycle: the head of every ClusterQueue, evaluated against the same state.

1. Choose heads: of each cohort tree in which something changed, the head of each ClusterQueue.
Heads that cannot be admitted for reasons other than quota become inadmissible at once.

2. Nominate: each head gets its flavors, and its preemption targets where it needs any.

3. Order the entries: see `entries`.

4. Serve one by one: admit, preempt, or skip what no longer fits after an earlier entry. An entry
that preempts, or that found no targets, reserves the quota it waits for until the cycle ends, so
that no later entry takes it. Where the nodes are known, see `room`, an entry needs quota and room.

5. Requeue: all others stay pending, or are inadmissible until something changes.

`Scheduler.cycle` runs the steps in this order. Steps 1 and 5 belong to the scheduler, which has the
queues of the ClusterQueues; the steps between them are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from queuecontroller.scheduler.entries import Entry, Status, in_order
from queuecontroller.scheduler.flavors import FlavorAssigner, Pins
from queuecontroller.scheduler.model.assignment import Assignment, Mode
from queuecontroller.scheduler.model.decisions import (
    CycleResult,
    Preempted,
    QuotaReserved,
    StillPending,
)
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import CheckState, PreemptionPolicy, WorkloadKey
from queuecontroller.scheduler.model.partial_admission import search_counts
from queuecontroller.scheduler.model.reasons import PODS_READY, PendingReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import (
    BEGIN,
    Memo,
    Target,
    WorkloadInfo,
    has_flavors_left,
)
from queuecontroller.scheduler.preemption.classic import classic_targets
from queuecontroller.scheduler.preemption.fair import fair_targets
from queuecontroller.scheduler.preemption.for_room import RoomSearch, gone_with
from queuecontroller.scheduler.preemption.room import Room, SearchDeferred
from queuecontroller.scheduler.preemption.search import Preemptor
from queuecontroller.scheduler.preemption.yielding import Yielding
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.scheduler.validation import Why

_Usages = dict[QuotaNode, dict[Fr, int]]

_DEFERRED = "The search for room is deferred: the next cycle begins with this workload"

Judgement = tuple[Assignment, Sequence[Target]]


class Cycle:
    def __init__(
        self,
        cache: Cache,
        settings: EngineSettings,
        now_ns: int,
        room: Room | None = None,
        yielding: Yielding | None = None,
    ) -> None:
        self._cache = cache
        self._yielding = yielding or Yielding()
        self._settings = settings
        self._now_ns = now_ns
        self._preemptor = Preemptor(cache, settings, classic_targets, fair_targets, now_ns)
        self._room = room
        self._search = (
            RoomSearch(cache, room, now_ns, settings, self._yielding.victims_of)
            if room is not None
            else None
        )
        self._preempted: dict[QuotaNode, dict[WorkloadKey, WorkloadInfo]] = {}
        """Victims of this cycle, by root of their cohort tree."""
        self._gone: dict[QuotaNode, _Usages] = {}
        """Usage that the victims of this cycle will release, by root and ClusterQueue."""
        self._simulated: _Usages | None = None
        """The entry of `_gone` that is currently subtracted from its tree."""
        self._reserved: dict[QuotaNode, _Usages] = {}
        """Usage reserved until the cycle ends, by root and ClusterQueue."""
        self.result = CycleResult()

    # -- 2. nominate ------------------------------------------------------------------------------

    def nominate(self, info: WorkloadInfo, changed: bool = True) -> Entry:
        """Evaluate a head; `changed`: True if its cohort tree changed since the last one."""
        queue = self._cache.queues[info.cluster_queue]
        root = queue.node.path[-1]
        replaced = self._replaced(queue, info)
        info.replaces = replaced.pod_sets if replaced is not None else None
        if changed and not self._settings.preserve_scan_progress:
            info.last_assignment = BEGIN
        resumes = bool(info.last_assignment.tried)
        memo = info.memo
        # Both counters only grow, so their sum changes whenever either of them does.
        generation = root.generation + (self._room.generation if self._room else 0)
        if memo is None or memo.generation != generation:
            try:
                assignment, targets = self._judge(queue, info)
            except SearchDeferred as stop:
                info.memo, info.deferrals = None, info.deferrals + 1
                entry = Entry(info, queue, stop.assignment or Assignment(), ())
                entry.deferred = True
                return entry
            info.deferrals = 0
            memo = Memo(generation, assignment, targets)
            info.memo = None if resumes else memo
        assignment = memo.assignment
        entry = Entry(info, queue, assignment, memo.targets)
        entry.resumed = resumes
        after = info.last_assignment.after(assignment.tried, changed)
        if after is not None:
            info.memo = None  # the next attempt starts at another flavor
        elif has_flavors_left(assignment.tried):
            self.result.circling.append(info)
        entry.has_pending_flavors = after is not None
        info.last_assignment = after or BEGIN
        return entry

    def _replaced(self, queue: ClusterQueueState, info: WorkloadInfo) -> WorkloadInfo | None:
        """The running slice that ends when this workload starts."""
        key = info.workload.replaces
        return queue.workloads.get(key) if key is not None else None

    def inadmissible(self, info: WorkloadInfo, why: Why) -> Entry:
        """Make an entry that is not evaluated further."""
        entry = Entry(info, self._cache.queues[info.cluster_queue], Assignment(), ())
        entry.inadmissible(*why, shape_is_to_blame=False)
        return entry

    def _judge(
        self, queue: ClusterQueueState, info: WorkloadInfo, pinned: Pins | None = None
    ) -> Judgement:
        self._preemptor.forget()
        if self._search is not None:
            self._search.begin(info)
        assigner = FlavorAssigner(queue, self._preemptor, self._settings, pinned)

        def judge(counts: Sequence[int] | None = None) -> Judgement:
            found = assigner.assign(info, counts)
            targets: Sequence[Target] = ()
            if found.mode is Mode.PREEMPT:
                targets = self._preemptor.targets(queue, info, found)
                if any(self._yielding.spares(info.key, target.info.key) for target in targets):
                    targets = ()
            if self._search is not None and (targets or found.mode is Mode.FIT):
                return self._search.judge(queue, info, found, targets)
            return found, targets

        full, targets = judge()
        may_shrink = self._settings.partial_admission and info.can_be_partially_admitted
        if full.mode is Mode.FIT or targets or not may_shrink:
            return full, targets

        def attempt(counts: Sequence[int]) -> Judgement | None:
            smaller, victims = judge(counts)
            return (smaller, victims) if smaller.mode is Mode.FIT or victims else None

        counts = [one.count for one in info.pod_sets]
        return search_counts(info.workload.pod_sets, counts, attempt) or (full, ())

    # -- 3. order ---------------------------------------------------------------------------------

    def order(self, entries: Sequence[Entry]) -> Iterable[Entry]:
        """Order the entries; under fair sharing each is chosen after its predecessor was served."""
        return in_order(entries, self._settings, self._cache)

    # -- 4. serve ---------------------------------------------------------------------------------

    def serve(self, ordered: Iterable[Entry]) -> None:
        for entry in ordered:
            self._serve(entry)
            if self._settings.fair_sharing:
                self._simulate_removal(None)  # the order depends on the shares as they are
        self._simulate_removal(None)
        for kept in self._reserved.values():
            _remove(kept)
        self._reserved.clear()

    def _serve(self, entry: Entry) -> None:
        mode = entry.assignment.mode
        if entry.deferred:
            entry.inadmissible(PendingReason.PENDING_EVALUATION, _DEFERRED, shape_is_to_blame=False)
            self._reserve(entry.queue.node, self._reservable(entry))
            return
        if mode is Mode.NO_FIT:
            entry.inadmissible(
                entry.assignment.pending_reason,
                entry.assignment.message(),
                shape_is_to_blame=True,
            )
            return
        if mode is Mode.PREEMPT and not entry.targets:
            entry.inadmissible(
                PendingReason.WAITING_FOR_QUOTA, entry.assignment.message(), shape_is_to_blame=True
            )
            self._reserve_without_targets(entry)
            return
        if mode is Mode.PREEMPT and self._is_gated(entry):
            entry.inadmissible(
                PendingReason.ADMISSION_GATED,
                "Workload requires preemption, but it's gated",
                shape_is_to_blame=True,
            )
            return
        taken = self._preempted.get(entry.queue.node.root, {})
        overlaps = any(target.info.key in taken for target in entry.targets)
        if overlaps and not self._resolve_overlap(entry, taken):
            return
        usage = entry.assignment.usage
        # Targets that were chosen again assume that all victims are gone, so the entry fits.
        if not overlaps and not self._still_fits(entry):
            entry.skip("Workload no longer fits after processing another workload")
            if entry.assignment.mode is Mode.PREEMPT:
                self._count_skipped(entry)
            return
        if entry.assignment.mode is Mode.PREEMPT:
            if not self._keeps_room(entry, waits=True):
                self._count_skipped(entry)
                return
            self._preempt(entry)
            self._reserve(entry.queue.node, usage)
        elif self._settings.wait_for_pods_ready and not self._all_pods_ready():
            entry.inadmissible(
                PendingReason.WAITING_FOR_PODS_READY,
                "waiting for all admitted workloads to be in PodsReady condition",
                shape_is_to_blame=False,
            )
            entry.requeue_at_once = True
        elif self._keeps_room(entry, waits=False):
            self._admit(entry)

    def _keeps_room(self, entry: Entry, *, waits: bool) -> bool:
        """Check that there still is room and reserve it, so that no later entry takes it. An entry
        that waits for victims gets the room that the victims of earlier cycles and of this one
        still occupy."""
        if self._room is None:
            return True
        gone = set(gone_with(entry.info))
        if waits:
            gone.update(*self._preempted.values(), (one.info.key for one in entry.targets))
        verdict = self._room.keep(entry.info, entry.assignment, gone)
        if verdict.refusal:
            entry.skip(f"couldn't place after processing another workload: {verdict.refusal}")
            entry.reason = verdict.reason
        entry.assignment.frees = verdict.frees
        entry.assignment.topology, entry.assignment.places = verdict.topology, verdict.places
        return not verdict.refusal

    def _simulate_removal(self, gone: _Usages | None) -> None:
        """Subtract the victims of one tree from it, and of no other tree. Entries that overlap come
        one after the other, so the usage is only added back when another entry needs it."""
        if self._simulated is gone:
            return
        if self._simulated is not None:
            _add(self._simulated)
        if gone is not None:
            _remove(gone)
        self._simulated = gone

    def _reserve(self, node: QuotaNode, usage: dict[Fr, int]) -> None:
        """Reserve usage until the end of the cycle."""
        node.add_usage(usage)
        _note(self._reserved.setdefault(node.root, {}), node, usage)

    def _reserve_without_targets(self, entry: Entry) -> None:
        """Reserve the quota of an entry that has to preempt and found no targets. A queue that can
        always reclaim its quota has no need to block others."""
        if entry.queue.spec.preemption.reclaim_within_cohort is not PreemptionPolicy.ANY:
            self._reserve(entry.queue.node, self._reservable(entry))

    def _reservable(self, entry: Entry) -> dict[Fr, int]:
        """Quota that an entry which could not preempt reserves: at most its own, or what it may
        borrow if it would borrow."""
        self._simulate_removal(None)
        node = entry.queue.node
        kept: dict[Fr, int] = {}
        for fr, amount in entry.assignment.usage.items():
            nominal, used = node.nominal.get(fr, 0), node.used(fr)
            if entry.assignment.borrowing == 0:
                kept[fr] = max(0, min(amount, nominal - used))
                continue
            limit = node.borrowing_limit.get(fr)
            kept[fr] = amount if limit is None else max(0, min(amount, nominal + limit - used))
        return kept

    def _is_gated(self, entry: Entry) -> bool:
        return self._settings.preemption_gates and bool(entry.info.workload.preemption_gates)

    def _count_skipped(self, entry: Entry) -> None:
        skipped = self.result.skipped_preemptions
        skipped[entry.queue.name] = skipped.get(entry.queue.name, 0) + 1

    def _still_fits(self, entry: Entry) -> bool:
        """True if the entry fits once all victims of this cycle, also its own, have terminated."""
        node = entry.queue.node
        usage = entry.assignment.usage
        self._simulate_removal(None)
        gone = self._gone.get(node.root, {})
        mine: _Usages = {}
        for target in entry.targets:
            _note(mine, self._cache.queues[target.info.cluster_queue].node, target.info.usage)
        _remove(gone)
        _remove(mine)
        fits = node.fits(usage)
        _add(mine)
        _add(gone)
        if fits and gone and entry.assignment.mode is Mode.FIT:
            # The entry would start now while the victims still run, so it must fit beside them too.
            kept = self._reserved.get(node.root, {})
            _remove(kept)
            fits = node.fits(usage)
            _add(kept)
        return fits

    def _resolve_overlap(self, entry: Entry, taken: Mapping[WorkloadKey, WorkloadInfo]) -> bool:
        """Assign flavors again as if all victims of this cycle were gone, only on the flavors the
        entry was nominated with: others would be a second nomination which its competitors do not
        know of. Returns True if the entry is to be served."""
        if not self._settings.recompute_overlapping_targets:
            entry.skip("Workload has overlapping preemption targets with another workload")
            self._count_skipped(entry)
            return False
        self._simulate_removal(self._gone[entry.queue.node.root])
        self._cache.set_apart = taken
        pinned = {
            one.name: {resource: got.flavor for resource, got in one.flavors.items()}
            for one in entry.assignment.pod_sets
        }
        entry.info.last_assignment = BEGIN
        try:
            assignment, targets = self._judge(entry.queue, entry.info, pinned)
        except SearchDeferred:
            entry.info.memo = None
            entry.skip("Workload has overlapping preemption targets with another workload")
            self._count_skipped(entry)
            return False
        finally:
            self._cache.set_apart = {}
        entry.assignment, entry.targets = assignment, targets
        entry.info.memo = None
        if targets:
            return True
        if assignment.mode is Mode.FIT:
            if not self._keeps_room(entry, waits=True):
                self._count_skipped(entry)
                return False
            entry.status = Status.PREEMPTING
            entry.reason = PendingReason.WAITING_FOR_PREEMPTED_WORKLOADS
            entry.message = (
                "Workload has overlapping preemption targets with another workload, "
                "but will fit after these preemptions complete"
            )
            entry.requeue_at_once = True
            self._reserve(entry.queue.node, assignment.usage)
            return False
        entry.skip("Workload has overlapping preemption targets with another workload")
        self._count_skipped(entry)
        if assignment.mode is Mode.PREEMPT:
            self._reserve_without_targets(entry)
        return False

    def _preempt(self, entry: Entry) -> None:
        info = entry.info
        for target in entry.targets:
            node = self._cache.queues[target.info.cluster_queue].node
            self._preempted.setdefault(node.root, {})[target.info.key] = target.info
            gone = self._gone.setdefault(node.root, {})
            _note(gone, node, target.info.usage)
            if self._simulated is gone:
                node.remove_usage(target.info.usage)
            if not target.info.evicted:
                self._cache.mark_evicted(target.info)
                self.result.preempted.append(Preempted(target.info, target.reason, info))
        # Once the targets are gone every flavor is worth another evaluation.
        info.last_assignment = BEGIN
        entry.status = Status.PREEMPTING
        entry.reason = PendingReason.WAITING_FOR_PREEMPTED_WORKLOADS
        entry.message = (
            f"{entry.assignment.message()}. "
            f"Pending the preemption of {len(entry.targets)} workload(s)"
        )
        entry.requeue_at_once = True

    def _admit(self, entry: Entry) -> None:
        info, assignment = entry.info, entry.assignment
        info.assignment = assignment
        info.usage = assignment.usage
        replaced = self._replaced(entry.queue, info)
        if replaced is not None:
            # Only the difference was requested; the new slice holds all of it from here on.
            self._cache.remove_workload(replaced)
            held = set(replaced.usage) | set(assignment.usage)
            info.usage = {
                fr: replaced.usage.get(fr, 0) + assignment.usage.get(fr, 0) for fr in held
            }
            self.result.replaced.append(replaced)
        info.reserved_ns = self._now_ns
        info.evicted = False
        info.memo = None
        info.last_assignment = BEGIN
        self._cache.add_workload(info)
        entry.status = Status.ADMITTED
        ready = checks_ready(entry.queue, info, assignment)
        info.admitted_ns = self._now_ns if ready else None
        self.result.reserved.append(QuotaReserved(info, assignment, ready))

    def _all_pods_ready(self) -> bool:
        return all(
            info.workload.is_true(PODS_READY)
            for queue in self._cache.queues.values()
            for info in queue.workloads.values()
        )

    def report_pending(self, entry: Entry) -> None:
        victims = tuple(target.info.key for target in entry.targets)
        waits = victims if entry.status is Status.PREEMPTING else ()
        frees = tuple(sorted(entry.assignment.frees))
        self.result.pending.append(
            StillPending(entry.info, entry.reason, entry.message, waits, frees)
        )


def _note(usages: _Usages, node: QuotaNode, usage: Mapping[Fr, int]) -> None:
    total = usages.setdefault(node, {})
    for fr, amount in usage.items():
        total[fr] = total.get(fr, 0) + amount


def _remove(usages: _Usages) -> None:
    for node, usage in usages.items():
        node.remove_usage(usage)


def _add(usages: _Usages) -> None:
    for node, usage in usages.items():
        node.add_usage(usage)


def checks_ready(queue: ClusterQueueState, info: WorkloadInfo, assignment: Assignment) -> bool:
    """True if every admission check that the queue requires for these flavors is ready."""
    states = {one.name: one.state for one in info.workload.admission_checks}
    if any(state is not CheckState.READY for state in states.values()):
        return False
    if not queue.spec.admission_checks:
        return True
    flavors = {got.flavor for one in assignment.pod_sets for got in one.flavors.values()}
    return all(
        rule.name in states
        for rule in queue.spec.admission_checks
        if not rule.on_flavors or flavors.intersection(rule.on_flavors)
    )
