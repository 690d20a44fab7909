"""The decayed usage of each LocalQueue, by which admission fair sharing orders them.

As in Kueue, the history of a resource moves from its old value towards the current usage, `history
= history * r + usage * (1 - r)` with r = 2**-(time / half-life), and every reservation of quota
adds at once what it would have added had it run for one sampling interval before (the entry
penalty), so that a burst of admissions counts before it has lasted.

A history is stored as it was when the usage last changed. Its value at any other time follows from
that and the usage since: nothing is written because time passes, no rounding accumulates, and a
restart changes nothing. The order follows the histories at the last sampling moment (multiples of
the interval since the epoch), or at the last change if that is later. Amounts are in units of
2**-64 of what `quantity` counts, rounded down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from queuecontroller.scheduler.model.objects import DEFAULT_WEIGHT_MILLI, WorkloadKey
from queuecontroller.scheduler.model.settings import WEIGHT_UNIT, AdmissionFairSharing
from queuecontroller.scheduler.quota.decay import FRACTION_BITS, ONE, approach, remaining
from sluicecommon.kubernetes.quantity import CPU

Amounts = Mapping[str, int]
NOTHING: Final[Amounts] = MappingProxyType({})

SHORTEST_SAMPLING_NS: Final = 1_000_000_000
"""Order is renewed at most once a second, whatever the interval: more often is work for nothing."""
FIGURE_UNIT: Final = 1000 * WEIGHT_UNIT * ONE
"""A figure of this size is a usage of 1: CPU counts in milli, weights in billionths."""
LAST: Final = 1 << 512
"""More than any figure: a LocalQueue of weight 0 comes after all that have one."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The history of one LocalQueue, as stored across restarts."""

    queue: str
    """`namespace/name`."""
    updated_ns: int
    """Time of the history, in ns."""
    consumed: Amounts
    """History by resource, in units of 2**-64."""


@dataclass(slots=True)
class _History:
    updated_ns: int
    consumed: dict[str, int] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    """Usage since then, in the scheduler's integers."""


class UsageHistory:
    def __init__(self, settings: AdmissionFairSharing) -> None:
        self.settings = settings
        self._weights: dict[str, int] = {}
        self._members: dict[str, set[str]] = {}
        """LocalQueues by ClusterQueue."""
        self._histories: dict[str, _History] = {}
        self._holds: dict[WorkloadKey, tuple[str, Amounts]] = {}
        self._figures: dict[str, int] = {}
        """Figures at the last sampling, without those that changed since."""
        self._changed: set[str] = set()
        self.sampled_ns = 0
        self.version = 0
        """Counter that grows whenever a figure may have changed."""

    # -- queues -----------------------------------------------------------------------------------

    def put_queue(self, queue: str, weight_milli: int, cluster_queue: str) -> None:
        self._weights[queue] = weight_milli
        self._moved(queue)
        self._leave(queue)
        self._members.setdefault(cluster_queue, set()).add(queue)

    def _leave(self, queue: str) -> None:
        for members in self._members.values():
            members.discard(queue)

    def drop_queue(self, queue: str) -> None:
        """Remove a LocalQueue; its history is dropped once it has no usage, as in Kueue."""
        self._weights.pop(queue, None)
        self._leave(queue)
        self._forget_if_unused(queue)

    def _forget_if_unused(self, queue: str) -> None:
        found = self._histories.get(queue)
        if found is not None and queue not in self._weights and not found.usage:
            del self._histories[queue]
            self._moved(queue)
            self._changed.add(queue)

    # -- usage ------------------------------------------------------------------------------------

    def hold(
        self,
        key: WorkloadKey,
        queue: str,
        usage: Amounts,
        now_ns: int,
        penalized: Amounts = NOTHING,
    ) -> None:
        """Set a workload's usage from now on; `penalized` are the requests of the entry penalty,
        where its ClusterQueue admits by usage."""
        self.release(key, now_ns)
        found = self._fold(queue, now_ns)
        for resource, amount in usage.items():
            if amount:
                found.usage[resource] = found.usage.get(resource, 0) + amount
        for resource, amount in self.penalty(penalized).items():
            found.consumed[resource] = found.consumed.get(resource, 0) + amount
        self._holds[key] = (queue, usage)

    def release(self, key: WorkloadKey, now_ns: int) -> None:
        held = self._holds.pop(key, None)
        if held is None:
            return
        queue, usage = held
        found = self._fold(queue, now_ns)
        for resource, amount in usage.items():
            left = found.usage.pop(resource, 0) - amount
            if left:
                found.usage[resource] = left
        self._forget_if_unused(queue)

    def penalty(self, requests: Amounts) -> dict[str, int]:
        """The entry penalty of a reservation of these, in units of 2**-64."""
        settings = self.settings
        if settings.half_life_ns == 0:
            return {}
        part = ONE - remaining(settings.sampling_interval_ns, settings.half_life_ns)
        return {resource: amount * part for resource, amount in requests.items() if amount}

    def _fold(self, queue: str, now_ns: int) -> _History:
        """The history brought up to this moment, because the usage is about to change."""
        found = self._histories.get(queue)
        if found is None:
            found = self._histories[queue] = _History(now_ns)
        elif now_ns > found.updated_ns:
            found.consumed = self._at(found, now_ns)
            found.updated_ns = now_ns
        self._moved(queue)
        self._changed.add(queue)
        return found

    def _at(self, found: _History, at_ns: int) -> dict[str, int]:
        half_life_ns = self.settings.half_life_ns
        if half_life_ns == 0:
            return {}  # forgotten at once
        ratio = remaining(at_ns - found.updated_ns, half_life_ns)
        values: dict[str, int] = {}
        for resource in sorted({*found.consumed, *found.usage}):
            target = found.usage.get(resource, 0) << FRACTION_BITS
            value = approach(found.consumed.get(resource, 0), target, ratio)
            if value:
                values[resource] = value
        return values

    # -- order ------------------------------------------------------------------------------------

    def sampling_after_ns(self, at_ns: int, samples: int = 1) -> int:
        interval_ns = max(self.settings.sampling_interval_ns, SHORTEST_SAMPLING_NS)
        return (at_ns // interval_ns + samples) * interval_ns

    def sample(self, now_ns: int) -> bool:
        """Renew the order, if a sampling moment has passed; True if one had."""
        sampled_ns = self.sampling_after_ns(now_ns, 0)
        if sampled_ns <= self.sampled_ns:
            return False
        self.sampled_ns = sampled_ns
        self._all_moved()
        return True

    def _moved(self, queue: str) -> None:
        self._figures.pop(queue, None)
        self.version += 1

    def _all_moved(self) -> None:
        self._figures.clear()
        self.version += 1

    def figure(self, queue: str) -> int:
        """The figure of a LocalQueue, of which the least goes first: the sum over resources of
        history times weight, divided by the LocalQueue's weight, in FIGURE_UNIT, rounded down."""
        known = self._figures.get(queue)
        if known is None:
            known = self._figures[queue] = self.figure_at(queue, self.sampled_ns)
        return known

    def figure_of(self, cluster_queue: str, weight_milli: int) -> int:
        """The figure of all LocalQueues of a ClusterQueue together, by its own weight."""
        total = sum(
            self._total(self._now(found))
            for queue in self._members.get(cluster_queue, ())
            if (found := self._histories.get(queue)) is not None
        )
        return _divided(total, weight_milli)

    def _now(self, found: _History) -> dict[str, int]:
        return self._at(found, max(self.sampled_ns, found.updated_ns))

    def figure_at(self, queue: str, at_ns: int) -> int:
        """The figure at a later moment if the usage stays as it is."""
        found = self._histories.get(queue)
        values = self._at(found, max(at_ns, found.updated_ns)) if found is not None else {}
        return self._weighed(queue, values)

    def figure_in_the_end(self, queue: str) -> int:
        """The limit of the figure over time if the usage stays as it is."""
        found = self._histories.get(queue)
        if found is None or self.settings.half_life_ns == 0:
            return self._weighed(queue, {})
        return self._weighed(
            queue, {r: amount << FRACTION_BITS for r, amount in found.usage.items()}
        )

    def _weighed(self, queue: str, values: Amounts) -> int:
        weight_milli = self._weights.get(queue, DEFAULT_WEIGHT_MILLI)
        return _divided(self._total(values), weight_milli)

    def _total(self, values: Amounts) -> int:
        weights = self.settings.resource_weights
        total = 0
        for resource, value in values.items():
            counted = value if resource == CPU else value * 1000
            total += counted * weights.get(resource, WEIGHT_UNIT)
        return total

    # -- reading ----------------------------------------------------------------------------------

    def queues(self) -> Iterable[str]:
        return self._histories.keys() | self._weights.keys()

    def consumed(self, queue: str) -> tuple[dict[str, int], int]:
        """History by resource in units of 2**-64, and its time in ns."""
        found = self._histories.get(queue)
        if found is None:
            return {}, self.sampled_ns
        return self._now(found), max(self.sampled_ns, found.updated_ns)

    # -- keeping ----------------------------------------------------------------------------------

    def configure(self, settings: AdmissionFairSharing, now_ns: int) -> None:
        """Apply new settings from now on; the time until now counts by the old ones."""
        if settings.half_life_ns != self.settings.half_life_ns:
            for queue in self._histories:
                self._fold(queue, now_ns)
        self.settings = settings
        self._all_moved()
        self.sampled_ns = 0

    def restore(self, records: Iterable[UsageRecord]) -> None:
        """Restore histories once all workloads that hold quota are added. A LocalQueue without a
        record counts as if its current usage had always been the same, as when fair sharing is
        enabled."""
        known = {one.queue: one for one in records}
        for queue, found in self._histories.items():
            record = known.pop(queue, None)
            if record is None:
                found.consumed = {
                    resource: amount << FRACTION_BITS for resource, amount in found.usage.items()
                }
                self._changed.add(queue)
            else:
                found.consumed, found.updated_ns = dict(record.consumed), record.updated_ns
                self._changed.discard(queue)
        for queue, record in known.items():
            self._histories[queue] = _History(record.updated_ns, dict(record.consumed))
            self._forget_if_unused(queue)
        self._all_moved()

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> dict[str, UsageRecord | None]:
        """Histories to be written since the last call; None: to be deleted."""
        changed: dict[str, UsageRecord | None] = {}
        for queue in sorted(self._changed):
            found = self._histories.get(queue)
            changed[queue] = None
            if found is not None:
                changed[queue] = UsageRecord(queue, found.updated_ns, dict(found.consumed))
        self._changed.clear()
        return changed


def usage_of(figure: int) -> float:
    """A figure in CPUs, bytes and units, by their weights; infinite for weight 0."""
    return float("inf") if figure >= LAST else figure / FIGURE_UNIT


def _divided(total: int, weight_milli: int) -> int:
    return total * 1000 // weight_milli if weight_milli > 0 else LAST + total
