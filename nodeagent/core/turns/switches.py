"""The time that each GPU needs to change from one process to another, learned from what grants
measured.

Every figure is a tenant's word, and a plan that follows a lie costs its neighbours GPU time. So one
grant alone changes nothing: two have to agree, of more the median counts, and the result stays in a
range in which a wrong value costs some percent at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from nodeagent.units import NS_PER_S, GpuUuid, GrantId, Nanoseconds

LEAST_NS = 50_000
MOST_NS = 1_000_000
AGREE = 1.5
"""Two grants agree if neither value is above the other's by more than this factor."""
CHANGED = 0.1
"""A value that differs less from the planned one changes nothing: new windows cost more."""
EVERY_NS = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Learned:
    switch_ns: Nanoseconds
    grants: int
    """Number of grants that it is from."""
    at_ns: int


class SwitchCosts:
    def __init__(self, assumed_ns: Nanoseconds) -> None:
        """`assumed_ns`: used until there is evidence."""
        self._assumed_ns = assumed_ns
        self._learned: dict[GpuUuid, Learned] = {}

    def cost_ns(self, gpu: GpuUuid) -> Nanoseconds:
        learned = self._learned.get(gpu)
        return learned.switch_ns if learned is not None else self._assumed_ns

    def learned(self, gpu: GpuUuid) -> Learned | None:
        return self._learned.get(gpu)

    def learn(self, gpu: GpuUuid, said: Mapping[GrantId, int], now_ns: int) -> None:
        """`said`: what each grant on the GPU measured, 0 = nothing yet."""
        known = self._learned.get(gpu)
        if known is not None and now_ns - known.at_ns < EVERY_NS:
            return
        values = [min(max(value, LEAST_NS), MOST_NS) for value in said.values() if value > 0]
        if len(values) < 2 or (len(values) == 2 and max(values) > AGREE * min(values)):
            return
        value = median_low(values)
        used = self.cost_ns(gpu)
        if known is None or abs(value - used) > CHANGED * used:
            self._learned[gpu] = Learned(Nanoseconds(value), len(values), now_ns)
