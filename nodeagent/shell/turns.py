"""The planning loop: look at every grant's usage, let the planner decide, write the turns, show
that we are alive."""

from __future__ import annotations

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import SetTurn, TurnPlanner
from nodeagent.core.turns.windows import PlanRules, Tenant
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import GrantRecord, GrantState
from nodeagent.settings.daemon import PlannerSettings
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import NS_PER_MS, NS_PER_S, GpuUuid, GrantId, Nanoseconds, Ppm, SharePolicy

HEARTBEAT_NS = 400 * NS_PER_MS
"""Tenants call the daemon silent after 2 s: five beats."""


class Turns:
    def __init__(self, settings: PlannerSettings, keeper: Keeper, clock: Clock) -> None:
        self._settings = settings
        self._keeper = keeper
        self._clock = clock
        self._beat_ns = 0
        self._quiet: tuple[list[Tenant], dict[tuple[GrantId, GpuUuid], Activity]] | None = None
        """Input of the last plan, if that plan found all tenants idle."""
        self._tenants: dict[GrantId, tuple[GrantRecord, Tenant]] = {}
        self.planner = TurnPlanner(
            PlanRules(
                period_ns=_ns(settings.period_ms),
                longest_period_ns=_ns(settings.longest_period_ms),
                smallest_quantum_ns=_ns(settings.smallest_quantum_ms),
                active_hold_ns=_ns(settings.active_hold_ms),
                floor_ppm=Ppm(int(settings.priority_floor_percent * 10_000)),
                switch_ns=Nanoseconds(int(settings.switch_us * 1000)),
                slice_ns=Nanoseconds(int(settings.slice_us * 1000)),
            )
        )

    def _plan(
        self,
        tenants: list[Tenant],
        looks: dict[tuple[GrantId, GpuUuid], Activity],
        now_ns: Nanoseconds,
    ) -> list[SetTurn]:
        """Returns no change if no tenant was active and nothing has moved since: time alone changes
        no turn."""
        if self._quiet == (tenants, looks):
            return []
        changes = self.planner.plan(tenants, looks, now_ns)
        settled = not changes and self.planner.busiest() == 0
        self._quiet = (tenants, looks) if settled else None
        return changes

    def _tenant(self, record: GrantRecord) -> Tenant:
        """Built again only with the record, since 80 grants are evaluated ten times a second."""
        known = self._tenants.get(record.grant)
        if known is None or known[0] is not record:
            known = self._tenants[record.grant] = (record, _tenant_of(record))
        return known[1]

    def tick(self) -> float:
        """One look and one plan; the seconds until the next."""
        now_ns = self._clock.monotonic_ns()
        looks: dict[tuple[GrantId, GpuUuid], Activity] = {}
        tenants: list[Tenant] = []
        for grant, opened in self._keeper.opens().items():
            held = self._keeper.grant(grant)
            if held is None or held.record.state not in (GrantState.ACTIVE, GrantState.DRAINING):
                continue
            record = held.record
            self._keeper.look(grant, opened)
            for index, device in enumerate(record.devices):
                if opened.tenants:
                    looks[grant, device.gpu] = opened.account.activity(index)
            tenants.append(self._tenant(record))
        for change in self._plan(tenants, looks, now_ns):
            region = self._keeper.opens()[change.grant].region
            region.set_turn(change.device, change.turn, change.wake)
        if now_ns - self._beat_ns >= HEARTBEAT_NS:
            self._beat_ns = now_ns
            for opened in self._keeper.opens().values():
                opened.region.heartbeat(now_ns)
            for ended in self._tenants.keys() - self._keeper.opens().keys():
                del self._tenants[ended]
        busiest = self.planner.busiest()
        if self.planner.bursty():
            return min(self._settings.bursty_tick_ms, self._settings.contended_tick_ms) / 1000
        if busiest > 1:
            return self._settings.contended_tick_ms / 1000
        if busiest == 1:
            return self._settings.active_tick_ms / 1000
        if not looks:  # Without a process, the first one that registers is evaluated at once.
            return max(self._settings.idle_tick_ms / 1000, HEARTBEAT_NS / NS_PER_S)
        return self._settings.idle_tick_ms / 1000


def _tenant_of(record: GrantRecord) -> Tenant:
    return Tenant(
        record.grant,
        tuple(device.gpu for device in record.devices),
        record.devices[0].share_ppm,
        record.policy is SharePolicy.HARD,
        record.paused,
        record.priority,
        record.gang,
        bool(record.trusted_group),
    )


def _ns(milliseconds: float) -> Nanoseconds:
    return Nanoseconds(int(milliseconds * NS_PER_MS))
