"""Preemption for room the slow way, to hold the search for openings against: every workload that may go is
collected and sorted, those who stand where nothing is won are left out, and longer and longer runs
of the rest are taken out of the stock until there is room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from unittest import mock

from queuecontroller.scheduler.model.objects import PreemptionPolicy, WorkloadKey
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.placement.choose import NoPlace, place
from queuecontroller.scheduler.placement.stock_room import StockRoom, given_of
from queuecontroller.scheduler.preemption import for_room
from queuecontroller.scheduler.preemption.room import Verdict
from queuecontroller.scheduler.preemption.search import (
    PreemptionContext,
    may_preempt_within_queue,
    may_reclaim,
    ordered,
    uses_any,
)


class PlainQuestion(for_room._Question):
    def _shortest_run(self, first: Sequence[Target], now_ns: int) -> tuple[list[Target], Verdict]:
        others = self._all_in_order(first, now_ns)
        for length in range(1, len(others) + 1):
            verdict = self.look([*first, *others[:length]])
            if not verdict.refusal:
                return others[:length], verdict
        return [], Verdict()

    def _needed(
        self,
        chosen: Sequence[Target],
        may_stay: Callable[[Target, Collection[Target]], bool],
    ) -> list[Target]:
        """Each one is tried in full."""
        return super()._needed(chosen, lambda one, rest: not self.look([*rest]).refusal)

    def _all_in_order(self, first: Sequence[Target], now_ns: int) -> list[Target]:
        usage = self._assignment.usage
        frs = frozenset(usage)
        context = PreemptionContext(self._cache, self._queue, self._info, frs, usage, now_ns)
        taken = {one.info.key for one in first} | self._gone
        own = self._queue
        removed = [one.info for one in first]
        for info in removed:
            context.remove(info)
        found: list[Target] = []
        try:
            reclaims = (
                own.spec.preemption.reclaim_within_cohort is not PreemptionPolicy.NEVER
                and not context.borrows()
            )
            infos: list[WorkloadInfo] = []
            for node in own.node.root.cluster_queues():
                borrows = not node.is_within_nominal(frs)
                for info in self._cache.queues[node.name].workloads.values():
                    if info.key in taken or not uses_any(info, frs):
                        continue
                    if node is own.node:
                        may = may_preempt_within_queue(context, info)
                    else:
                        may = reclaims and borrows and may_reclaim(context, info)
                    if may:
                        infos.append(info)
            infos = self._who_may_help(infos, taken)
            for info in ordered(infos, own.name, now_ns, self._cache):
                node = self._cache.queues[info.cluster_queue].node
                if node is own.node:
                    found.append(Target(info, PreemptionReason.IN_CLUSTER_QUEUE))
                elif not node.is_within_nominal(frs):
                    context.remove(info)
                    removed.append(info)
                    found.append(Target(info, PreemptionReason.IN_COHORT_RECLAMATION))
        finally:
            for info in removed:
                context.put_back(info)
        return found

    def _who_may_help(
        self, infos: list[WorkloadInfo], taken: set[WorkloadKey]
    ) -> list[WorkloadInfo]:
        """Workloads on nodes that could take one of the pods if all of them left."""
        room = self._room
        assert isinstance(room, StockRoom)
        request = room._facts.room_request(self._info.workload, given_of(self._assignment))
        stock, key = room.stock, self._info.key
        resting = set(room._facts.resting(self._info.priority)) - {key}
        gone = {key, *taken, *resting, *(info.key for info in infos)}

        def stays(one: WorkloadKey) -> bool:
            if one == key or one in resting or not room._facts.pauses(one):
                return False
            return not room._facts.yields(one, self._info.priority)

        useful: set[str] = set()
        undo = stock.without(gone, stays)
        try:
            for name in stock.nodes:
                others = frozenset(stock.nodes) - {name}
                for pod in request.pods:
                    here = replace(pod, avoid=pod.avoid | others)
                    if pod.node in ("", name) and not isinstance(place(stock, [here]), NoPlace):
                        useful.add(name)
        finally:
            undo()
        return [
            info for info in infos if any(held.node in useful for held in stock.holdings(info.key))
        ]


def plain_room_preemption() -> mock._patch[object]:
    """While it is in force, cycles search for room the slow way."""
    return mock.patch.object(for_room, "_Question", PlainQuestion)
