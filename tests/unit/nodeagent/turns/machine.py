"""A GPU, its grants and the planner in virtual time: no clock, no thread, the same result in each run.

Every 0.5 ms the GPU belongs to one context. Grants with a window use it after the change of contexts, the others run
while their virtual clock allows it, and contexts that could run at once have slices of 2 ms, as on a card. What a
change costs is lost. Launches are short against all of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import TurnPlanner
from nodeagent.core.turns.windows import PlanRules, Tenant
from nodeagent.ports.regions import DeviceTurn, TurnMode
from nodeagent.units import WHOLE_PPM, GpuUuid, GrantId, Nanoseconds, Ppm

MS = 1_000_000
STEP_NS = MS // 2
SLICE_NS = 2 * MS
BURST_NS = 20 * MS
GPU = GpuUuid("a")
RULES = PlanRules(
    period_ns=Nanoseconds(10 * MS),
    longest_period_ns=Nanoseconds(100 * MS),
    smallest_quantum_ns=Nanoseconds(2 * MS),
    active_hold_ns=Nanoseconds(50 * MS),
    floor_ppm=Ppm(50_000),
    switch_ns=Nanoseconds(200_000),
)

Demand = Callable[[str, int], bool]
"""Has the grant work at that time, in ns since the start?"""


def tenant(
    name: str, percent: int, hard: bool = False, priority: int = 0, own_clock: bool = False
) -> Tenant:
    share = Ppm(percent * 10_000)
    return Tenant(GrantId(name), (GPU,), share, hard, priority=priority, own_clock=own_clock)


def _nothing(name: str, used_ns: int) -> None:
    pass


@dataclass
class Machine:
    tenants: Sequence[Tenant]
    demand: Demand
    now_ns: int = 0
    ran: Callable[[str, int], None] = _nothing
    """Called with the GPU time that a grant had in a step."""
    used_ns: dict[str, int] = field(default_factory=dict)
    wanted_ns: int = 0
    """Time in which any grant had work."""

    def __post_init__(self) -> None:
        self.planner = TurnPlanner(RULES)
        self.turns: dict[str, DeviceTurn] = {}
        self.clocks = {str(one.grant): 0 for one in self.tenants}
        self.used_ns = {str(one.grant): 0 for one in self.tenants}
        self.plan_at_ns = 0
        self.loaded = ""
        self.changing_ns = 0
        self.slice_ns = 0

    def run(self, for_ns: int) -> None:
        for _ in range(for_ns // STEP_NS):
            self.step()

    def step(self) -> None:
        working = [name for name in self.clocks if self.demand(name, self.now_ns)]
        if self.now_ns >= self.plan_at_ns:
            self._plan(set(working))
        self.wanted_ns += STEP_NS * bool(working)
        ready = [name for name in working if self._may_run(name)]
        if ready:
            self._give(ready)
        self.now_ns += STEP_NS

    def _plan(self, working: set[str]) -> None:
        looks: Mapping[tuple[GrantId, GpuUuid], Activity] = {
            (one.grant, GPU): Activity(
                self.used_ns[one.grant],
                MS if one.grant in working else 0,
                0,
                self.used_ns[one.grant] // MS,
                self.now_ns,
                one.grant in working,
                True,
            )
            for one in self.tenants
        }
        for change in self.planner.plan(self.tenants, looks, Nanoseconds(self.now_ns)):
            self.turns[change.grant] = change.turn
        tick_ns = 2 if self.planner.bursty() else 5 if self.planner.busiest() > 1 else 50
        self.plan_at_ns = self.now_ns + tick_ns * MS

    def _may_run(self, name: str) -> bool:
        turn = self.turns[name]
        burst_ns = BURST_NS
        if turn.mode is TurnMode.LEASE:
            burst_ns = max(burst_ns, turn.lease_period_ns)
            phase = (self.now_ns - turn.lease_origin_ns) % turn.lease_period_ns
            if phase >= turn.lease_quantum_ns:
                return False
        return turn.plan_ppm == 0 or self.clocks[name] <= self.now_ns + burst_ns

    def _give(self, ready: list[str]) -> None:
        if self.loaded not in ready or (self.slice_ns <= 0 and len(ready) > 1):
            names = list(self.clocks)
            after = names.index(self.loaded) + 1 if self.loaded else 0
            turn = names[after:] + names[:after]
            before, self.loaded = self.loaded, next(name for name in turn if name in ready)
            self.slice_ns = SLICE_NS
            if before != self.loaded:
                self.changing_ns = RULES.switch_ns
        lost = min(self.changing_ns, STEP_NS)
        self.changing_ns -= lost
        used = STEP_NS - lost
        self.slice_ns -= used
        self.used_ns[self.loaded] += used
        self.ran(self.loaded, used)
        if ppm := self.turns[self.loaded].plan_ppm:
            tat = max(self.clocks[self.loaded], self.now_ns)
            self.clocks[self.loaded] = tat + used * WHOLE_PPM // ppm
