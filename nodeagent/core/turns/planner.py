"""Plans the time windows of the grants on each GPU.

A plan needs no message per turn: every tenant knows the period, the start and the length of its own
window, and reads the same CLOCK_MONOTONIC. The planner therefore writes only when a grant becomes
active or idle, a limit changes, or launches change so much that the windows no longer fit them. If
the planner dies, the tenants keep their windows and their own caps.

A window helps only a grant that always has work: the others wait for its end even while its owner
rests. So windows are for the grants that have had work without a rest for a while, among
themselves. A grant that rested lately starts whenever it has work, under its own clock, and the
hardware's slices divide the GPU between it and the owner of the window. What a resting grant leaves
is divided among the others at once, whatever its priority is.

The same holds for a grant of a gang, though it always has work: its ranks on other nodes wait for
it, and windows of two nodes do not come at the same time. Slices of some milliseconds let all ranks
advance together. Kernels of a trusted group's grants run side by side, so they have no windows
either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.switches import Learned, SwitchCosts
from nodeagent.core.turns.windows import (
    PlanRules,
    Tenant,
    aligned_windows,
    divide_by_priority,
    lost_at_the_end,
    own_clock_ppm,
    windows,
)
from nodeagent.ports.regions import NO_PPM, DeviceTurn, TurnMode
from nodeagent.units import NS_PER_MS, NS_PER_S, GpuUuid, GrantId, Nanoseconds, Ppm

OUTSTANDING_TRUST = 4
"""Factor by which estimated work may overrun before its owner counts as idle."""
LONGEST_TRUST_NS = 2 * NS_PER_S
"""Longest time that outstanding work counts without a sign of life."""

MEASURE_EVERY_NS = NS_PER_S // 4
"""Interval between two measurements of a tenant's usual launch."""
MEASURE_LAUNCHES = 32
"""Launches that a measurement needs; with fewer it waits for MEASURE_LONGEST_NS."""
MEASURE_LONGEST_NS = NS_PER_S
MEASURE_OVER = 256
"""Launches that the mean covers; the older half of them fades."""
WORSE_FIT = 0.005
"""Windows are planned again if they lose this part of the GPU more than planned."""


STEADY_NS = NS_PER_S // 5
"""A grant without a rest for so long takes turns in windows with others like it. Until then slices
cost a tenth of the GPU, so this long is about a point of any two seconds."""
RECENT_NS = NS_PER_S
"""A grant that worked or rested so lately is looked at often."""


@dataclass(frozen=True, slots=True)
class SetTurn:
    grant: GrantId
    device: int
    turn: DeviceTurn
    wake: bool


@dataclass(slots=True)
class _Track:
    """State of one (grant, GPU) between two looks."""

    consumed_ns: int = 0
    throttled_ns: int = 0
    launches: int = 0
    active_until_ns: int = -1
    working: bool = False
    rested_ns: int = -1
    """Time of the last look that found no work, or of the first that found some."""
    worked_ns: int = -1
    """Time of the last look that found work."""
    mean_of: int = 0
    """Launches in the mean, and their GPU time together."""
    mean_used_ns: int = 0
    measured_ns: int = -1
    measured_consumed_ns: int = 0
    measured_launches: int = 0

    @property
    def launch_ns(self) -> int:
        """Usual GPU time of one launch; 0 if unknown."""
        return self.mean_used_ns // self.mean_of if self.mean_of else 0

    def measure(self, seen: Activity, now_ns: int) -> None:
        """Add the launches since the last measurement to the mean; restart the mean if they clearly
        differ from it."""
        launched = used = 0
        if self.measured_ns >= 0:
            launched = seen.launches - self.measured_launches
            used = seen.consumed_ns - self.measured_consumed_ns
            # Both counters move in chunks, so their quotient means nothing over few launches.
            least_ns = MEASURE_EVERY_NS if launched >= MEASURE_LAUNCHES else MEASURE_LONGEST_NS
            if now_ns - self.measured_ns < least_ns:
                return
        if launched > 0 and used > 0:
            if _differ(self.launch_ns, used // launched):
                self.mean_of = self.mean_used_ns = 0
            elif self.mean_of > MEASURE_OVER:
                self.mean_of, self.mean_used_ns = self.mean_of // 2, self.mean_used_ns // 2
            self.mean_of += launched
            self.mean_used_ns += used
        self.measured_ns = now_ns
        self.measured_launches, self.measured_consumed_ns = seen.launches, seen.consumed_ns


def _differ(known_ns: int, seen_ns: int) -> bool:
    return abs(seen_ns - known_ns) * 10 > known_ns


class TurnPlanner:
    """Takes looks at the usage and returns the lines B that have to change."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self._tracks: dict[tuple[GrantId, GpuUuid], _Track] = {}
        self._turns: dict[tuple[GrantId, GpuUuid], DeviceTurn] = {}
        self._epochs: dict[GpuUuid, int] = {}
        self._planned: dict[GpuUuid, tuple[object, ...]] = {}
        self._lengths: dict[GpuUuid, dict[GrantId, int]] = {}
        """The usual launches for which each GPU's windows were made, ns."""
        self._recent: dict[GpuUuid, int] = {}
        self._bursty = False
        self._switches = SwitchCosts(rules.switch_ns)

    def busiest(self) -> int:
        """Grants at work within the last second on the GPU that has most of them; sets the planning
        interval."""
        return max(self._recent.values(), default=0)

    def bursty(self) -> bool:
        """True if grants share a GPU and one of them rested within the last second: what it leaves,
        and what it needs when it returns, are to be seen early."""
        return self._bursty

    def switch_learned(self, gpu: GpuUuid) -> Learned | None:
        """The GPU's change of contexts; None: not learned yet, the rules' value is used."""
        return self._switches.learned(gpu)

    def turn(self, grant: GrantId, gpu: GpuUuid) -> DeviceTurn | None:
        return self._turns.get((grant, gpu))

    def plan(
        self,
        tenants: Sequence[Tenant],
        looks: Mapping[tuple[GrantId, GpuUuid], Activity],
        now_ns: Nanoseconds,
    ) -> list[SetTurn]:
        keys = {(t.grant, gpu) for t in tenants for gpu in t.gpus}
        if self._tracks.keys() != keys:
            for stale in self._tracks.keys() - keys:
                del self._tracks[stale]
            for stale in self._turns.keys() - keys:
                del self._turns[stale]
        for key in keys:
            self._observe(key, looks.get(key, Activity()), now_ns)

        gpus: dict[GpuUuid, list[Tenant]] = {}
        for tenant in tenants:
            for gpu in tenant.gpus:
                gpus.setdefault(gpu, []).append(tenant)
        active = {
            gpu: [t for t in here if not t.paused and self._active(t, gpu, now_ns)]
            for gpu, here in gpus.items()
        }
        self._note_recent(gpus, now_ns)
        for gpu, here in gpus.items():
            if len(here) > 1:
                said = {t.grant: looks.get((t.grant, gpu), Activity()).switch_ns for t in here}
                self._switches.learn(gpu, said, now_ns)
        steady = {
            gpu: [tenant for tenant in here if self._steady(tenant, now_ns)]
            for gpu, here in active.items()
        }
        out: list[SetTurn] = []
        for gpu, here in gpus.items():
            tied = _tied(gpu, steady)
            layout = _in_turns({g: steady[g] for g in tied})
            situation = (
                tuple(here),
                tuple((tuple(active[g]), tuple(layout[g])) for g in tied),
                self._rules_on(tied),
            )
            if self._planned.get(gpu, ((),))[0] != situation:
                self._lengths.pop(gpu, None)  # New windows are made for the launches as they are.
            known = (situation, self._launches_ns(gpu, layout[gpu]))
            if self._planned.get(gpu) == known:
                continue
            # The epoch must be later than any of a planner that ran before us.
            if gpu not in self._epochs:
                self._epochs[gpu] = now_ns // NS_PER_MS
            # Work that began while the grant was alone may have been sliced.
            if len(active[gpu]) > 1:
                self._epochs[gpu] += 1
            self._planned[gpu] = known
            for tenant, turn in self._turns_on(gpu, here, active[gpu], layout, now_ns):
                key = (tenant.grant, gpu)
                before = self._turns.get(key)
                if before != turn:
                    self._turns[key] = turn
                    wake = before is None or _schedule(before) != _schedule(turn)
                    out.append(SetTurn(tenant.grant, tenant.gpus.index(gpu), turn, wake))
        for gone in set(self._planned) - set(gpus):
            del self._planned[gone]
            self._lengths.pop(gone, None)
        return out

    # --- activity ---

    def _observe(self, key: tuple[GrantId, GpuUuid], seen: Activity, now_ns: int) -> None:
        track = self._tracks.get(key)
        if track is None:
            # A new grant may have a history: only what it does from now on is activity.
            track = self._tracks[key] = _Track(seen.consumed_ns, seen.throttled_ns, seen.launches)
            track.rested_ns = now_ns
        track.measure(seen, now_ns)
        moved = (
            seen.consumed_ns != track.consumed_ns
            or seen.throttled_ns > track.throttled_ns
            or seen.launches > track.launches
        )
        track.consumed_ns, track.throttled_ns = seen.consumed_ns, seen.throttled_ns
        track.launches = seen.launches
        trust_ns = min(OUTSTANDING_TRUST * seen.outstanding_ns, LONGEST_TRUST_NS)
        busy = seen.outstanding_ns > 0 and seen.heartbeat_ns + trust_ns > now_ns
        if moved or busy or seen.waiting:
            # Waiting for a turn looks like idleness in an older guest.
            hold_ns = 1 if seen.counts_waiting else self._rules.active_hold_ns
            track.active_until_ns = max(track.active_until_ns, now_ns + hold_ns)
        working = track.active_until_ns > now_ns
        if not (working and track.working):  # Time passes unseen while all rest.
            track.rested_ns = now_ns
        if working:
            track.worked_ns = now_ns
        track.working = working

    def _launches_ns(self, gpu: GpuUuid, active: Sequence[Tenant]) -> tuple[int, ...]:
        """Usual launches for which to make the windows: those of the current windows, as long as
        they fit as well as planned.

        The first measurement of a tenant is off by some percent, enough for windows in which one
        launch less fits.
        """
        if len(active) < 2:
            self._lengths.pop(gpu, None)
            return ()
        seen = {tenant.grant: self._tracks[tenant.grant, gpu].launch_ns for tenant in active}
        planned = self._lengths.get(gpu, {})
        if planned.keys() != seen.keys() or any(
            self._fits_worse((grant, gpu), planned[grant], length) for grant, length in seen.items()
        ):
            self._lengths[gpu] = planned = seen
        return tuple(planned[tenant.grant] for tenant in active)

    def _fits_worse(self, key: tuple[GrantId, GpuUuid], planned_ns: int, seen_ns: int) -> bool:
        if planned_ns == seen_ns:
            return False
        if _differ(planned_ns, seen_ns):
            return True
        turn = self._turns.get(key)
        if turn is None or turn.mode is not TurnMode.LEASE:
            return False
        quantum, period = turn.lease_quantum_ns - turn.switch_ns, turn.lease_period_ns
        as_planned = lost_at_the_end(quantum, period, planned_ns)
        return lost_at_the_end(quantum, period, seen_ns) > as_planned + WORSE_FIT

    def _active(self, tenant: Tenant, gpu: GpuUuid, now_ns: int) -> bool:
        """True if the tenant is active on any of its GPUs, because a gang's turns come together."""
        return any(self._tracks[tenant.grant, g].active_until_ns > now_ns for g in tenant.gpus)

    def _steady(self, tenant: Tenant, now_ns: int) -> bool:
        """True if windows suit the tenant: it has had work without a rest, no other node waits for
        it, and its kernels cannot run beside its neighbours'."""
        return not (tenant.own_clock or tenant.merged) and any(
            self._tracks[tenant.grant, g].rested_ns + STEADY_NS <= now_ns for g in tenant.gpus
        )

    def _note_recent(self, gpus: Mapping[GpuUuid, Sequence[Tenant]], now_ns: int) -> None:
        self._recent, self._bursty = {}, False
        for gpu, here in gpus.items():
            tracks = [self._tracks[tenant.grant, gpu] for tenant in here]
            recent = [
                track
                for track in tracks
                if track.worked_ns >= 0 and track.worked_ns + RECENT_NS > now_ns
            ]
            self._recent[gpu] = len(recent)
            rested = any(track.rested_ns + RECENT_NS > now_ns for track in recent)
            self._bursty = self._bursty or (len(recent) > 1 and rested)

    # --- layout ---

    def _turns_on(
        self,
        gpu: GpuUuid,
        here: Sequence[Tenant],
        active: Sequence[Tenant],
        layout: Mapping[GpuUuid, Sequence[Tenant]],
        now_ns: int,
    ) -> list[tuple[Tenant, DeviceTurn]]:
        """`layout`: those that take turns in windows, on this GPU and on the GPUs tied to it."""
        epoch = self._epochs[gpu]
        out: list[tuple[Tenant, DeviceTurn]] = []
        for tenant in here:
            if tenant in active:
                continue
            # An idle grant: these are the rules from the moment it starts until the next look.
            mode = TurnMode.CAP if tenant.hard or active else TurnMode.OFF
            plan = tenant.share_ppm if mode is TurnMode.CAP else 0
            turn = DeviceTurn(mode, Ppm(plan), len(active), contention_epoch=epoch)
            out.append((tenant, turn))
        if len(active) == 1 and not any(layout.values()):
            (only,) = active
            turn = DeviceTurn(
                TurnMode.CAP if only.hard else TurnMode.OFF,
                Ppm(only.share_ppm if only.hard else 0),
                1,
                contention_epoch=epoch,
            )
            out.append((only, turn))
        elif active:
            parts = divide_by_priority(active, self._rules.floor_ppm)
            shares = {tenant.grant: part for tenant, part in zip(active, parts, strict=True)}
            if len(layout) > 1 and any(layout.values()):
                windows_of = self._aligned(gpu, layout, epoch)
            else:
                windows_of = self._leases(gpu, layout[gpu], epoch, now_ns)
            for tenant in active:
                share = Ppm(shares[tenant.grant])
                if tenant.own_clock and not tenant.merged:
                    share = self._own_clock_share(gpu, tenant.grant, shares, windows_of)
                turn = windows_of.get(tenant.grant) or DeviceTurn(
                    TurnMode.CAP, share, len(active), contention_epoch=epoch
                )
                out.append((tenant, replace(turn, active_grants=len(active), plan_ppm=share)))
        return out

    def _own_clock_share(
        self,
        gpu: GpuUuid,
        grant: GrantId,
        shares: Mapping[GrantId, int],
        windows_of: Mapping[GrantId, DeviceTurn],
    ) -> Ppm:
        others = [part for one, part in shares.items() if one != grant and one not in windows_of]
        in_turns = sum(shares[one] for one in windows_of)
        rules = self._rules_on((gpu,))
        return Ppm(own_clock_ppm(shares[grant], max([in_turns, *others]), rules))

    def _leases(
        self, gpu: GpuUuid, steady: Sequence[Tenant], epoch: int, now_ns: int
    ) -> dict[GrantId, DeviceTurn]:
        if not steady:
            return {}
        shares = divide_by_priority(steady, self._rules.floor_ppm)
        lengths = self._lengths[gpu]  # These lengths are fixed by this plan.
        launches_ns = [lengths[tenant.grant] for tenant in steady]
        rules = self._rules_on((gpu,))
        period, quanta = windows(shares, rules, launches_ns)
        start = now_ns // period * period
        out = {}
        for tenant, quantum in zip(steady, quanta, strict=True):
            out[tenant.grant] = self._lease(rules, start, period, quantum, len(steady), epoch)
            start += quantum
        return out

    def _rules_on(self, gpus: Sequence[GpuUuid]) -> PlanRules:
        """The rules with the change of contexts of the slowest of these GPUs."""
        switch_ns = max(self._switches.cost_ns(gpu) for gpu in gpus)
        if switch_ns == self._rules.switch_ns:
            return self._rules
        return replace(self._rules, switch_ns=switch_ns)

    def _lease(
        self,
        rules: PlanRules,
        origin_ns: int,
        period_ns: int,
        quantum_ns: int,
        count: int,
        epoch: int,
    ) -> DeviceTurn:
        return DeviceTurn(
            TurnMode.LEASE,
            NO_PPM,
            count,
            Nanoseconds(origin_ns),
            Nanoseconds(period_ns),
            Nanoseconds(quantum_ns),
            epoch,
            Nanoseconds(rules.planned_switch_ns(period_ns, count)),
        )

    def _aligned(
        self, gpu: GpuUuid, tied: Mapping[GpuUuid, Sequence[Tenant]], epoch: int
    ) -> dict[GrantId, DeviceTurn]:
        """Windows at multiples of the period since the clock's start, so that GPUs planned at
        different times still agree."""
        rules = self._rules_on(tuple(tied))
        period, layout = aligned_windows({g: on for g, on in tied.items() if on}, rules)
        if min(quantum for _, quantum in layout.values()) * 4 < self._rules.smallest_quantum_ns:
            # There are too many grants to give each a window: each keeps its own clock, and the
            # hardware slices.
            return {}
        out = {}
        for tenant in tied[gpu]:
            offset, quantum = layout[tenant.grant, gpu]
            out[tenant.grant] = self._lease(rules, offset, period, quantum, len(tied[gpu]), epoch)
        return out


def _in_turns(steady: Mapping[GpuUuid, list[Tenant]]) -> dict[GpuUuid, list[Tenant]]:
    """Those that take turns in windows on GPUs that are tied together: the steady ones, if two of
    them share a GPU."""
    if max(len(here) for here in steady.values()) > 1:
        return dict(steady)
    return {gpu: [] for gpu in steady}


def _tied(gpu: GpuUuid, steady: Mapping[GpuUuid, Sequence[Tenant]]) -> tuple[GpuUuid, ...]:
    """The GPUs that steady grants tie to this one, itself included."""
    tied = {gpu}
    fresh = [gpu]
    while fresh:
        for tenant in steady.get(fresh.pop(), ()):
            new = [g for g in tenant.gpus if g in steady and g not in tied]
            tied.update(new)
            fresh += new
    return tuple(sorted(tied))


def _schedule(turn: DeviceTurn) -> tuple[object, ...]:
    """The fields on which a waiting thread's decision depends."""
    return (
        turn.mode,
        turn.plan_ppm,
        turn.lease_period_ns,
        turn.lease_quantum_ns,
        turn.lease_origin_ns % turn.lease_period_ns if turn.lease_period_ns else 0,
    )
