"""Plans how the grants of each GPU take turns: weighted max-min shares, laid out as windows of
a common period.

A plan needs no message per turn: every tenant knows the period, where its own window starts and
how long it is, and reads the same CLOCK_MONOTONIC. The planner therefore writes only when
somebody becomes active or idle, or a limit changes. If it dies, the tenants keep their windows
and their own caps.

Windows always fill the period, hard tenants included: a hard cap is kept by the tenant's own
virtual clock (`share_ppm`), and a window with some slack is what lets it reach that cap despite
the cost of handing over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.core.usage import Activity
from nodeagent.ports import DeviceTurn, TurnMode
from nodeagent.units import NS_PER_MS, NS_PER_S, WHOLE_PPM, GpuUuid, GrantId, Nanoseconds, Ppm

OUTSTANDING_TRUST = 4
"""Estimated work may take this many times longer than estimated before its owner counts as idle."""
LONGEST_TRUST_NS = 2 * NS_PER_S
"""… but never longer than this without a sign of life."""
LATE_NS = NS_PER_MS // 2
"""Work still outstanding this long after the window ended overlapped the neighbour's."""

MEASURE_EVERY_NS = NS_PER_S // 4
"""How often a tenant's usual launch is measured anew."""
MEASURE_LAUNCHES = 32
"""… once it has launched that often; else after MEASURE_LONGEST_NS."""
MEASURE_LONGEST_NS = NS_PER_S
FITS_ANYWAY = 20
"""Windows of this many launches lose too little at their end to care."""
LONG_PERIOD_COST = 0.02
"""What the longest period costs, in parts of the GPU, when weighed against a better fit."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Settings of the planner in its own units."""

    period_ns: Nanoseconds
    longest_period_ns: Nanoseconds
    smallest_quantum_ns: Nanoseconds
    active_hold_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class Tenant:
    """One grant as the planner sees it."""

    grant: GrantId
    gpus: tuple[GpuUuid, ...]
    share_ppm: Ppm
    hard: bool
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """One party of a division: its weight, and the most it may have."""

    weight: int
    cap_ppm: int = WHOLE_PPM


@dataclass(frozen=True, slots=True)
class SetTurn:
    grant: GrantId
    device: int
    turn: DeviceTurn
    wake: bool


def divide(claims: Sequence[Claim], whole: int = WHOLE_PPM) -> list[int]:
    """Weighted max-min: proportional to weight, nobody above its cap, nothing left over while
    somebody may have more.

    Exact in integers; what rounding leaves goes to the first claims that have room.
    """
    given = [0] * len(claims)
    open_ = [i for i, claim in enumerate(claims) if claim.weight > 0 and claim.cap_ppm > 0]
    left = whole
    while open_ and left > 0:
        weights = sum(claims[i].weight for i in open_)
        clipped = [i for i in open_ if claims[i].cap_ppm * weights <= left * claims[i].weight]
        if not clipped:
            for i in open_:
                given[i] = left * claims[i].weight // weights
            rest = left - sum(given[i] for i in open_)
            for i in open_:
                extra = min(rest, claims[i].cap_ppm - given[i], 1)
                given[i] += extra
                rest -= extra
            break
        for i in clipped:
            given[i] = claims[i].cap_ppm
            left -= given[i]
        open_ = [i for i in open_ if i not in clipped]
    return given


def fitting_period(
    shares: Sequence[int], launches_ns: Sequence[int], shortest_ns: int, longest_ns: int
) -> int:
    """The period whose windows hold whole numbers of launches, as short as that allows.

    A launch cannot be cut in two: 5 ms kernels in windows of 7 ms would use 5 of them for ever.
    `launches_ns`: usual GPU time of one launch of each tenant, 0 = not known.
    """
    total = sum(shares)
    long = [
        (share, length)
        for share, length in zip(shares, launches_ns, strict=True)
        if length and share and length * FITS_ANYWAY * total > shortest_ns * share
    ]
    if not long or shortest_ns >= longest_ns:
        return shortest_ns

    def badness(period_ns: int) -> float:
        worst = 0.0
        for share, length in long:
            fits = period_ns * share / total / length
            # A launch longer than two windows starts in one of them and is paid for by its clock.
            lost = abs(round(fits) - fits) if fits >= 0.5 else 0.5
            worst = max(worst, lost * length / period_ns)
        return worst + LONG_PERIOD_COST * period_ns / longest_ns

    candidates = {shortest_ns, longest_ns}
    for share, length in long:
        whole = (-(-n * length * total // share) for n in range(1, FITS_ANYWAY + 1))
        candidates.update(p for p in whole if shortest_ns < p < longest_ns)
    step = shortest_ns
    while step < longest_ns:
        candidates.add(step)
        step += max(1, step // 32)
    return min(sorted(candidates), key=badness)


def windows(
    shares: Sequence[int], rules: PlanRules, launches_ns: Sequence[int] = ()
) -> tuple[int, list[int]]:
    """(period, quantum per share): windows that fill the period, each at least the smallest
    quantum if that fits.

    The period grows up to the longest allowed so that the smallest share gets its quantum and
    windows hold whole launches.
    """
    total = sum(shares)
    smallest = min(shares)
    period = int(rules.period_ns)
    if smallest > 0:
        period = max(period, -(-rules.smallest_quantum_ns * total // smallest))
    period = min(period, int(rules.longest_period_ns))
    if launches_ns:
        period = fitting_period(shares, launches_ns, period, int(rules.longest_period_ns))
    floor = min(int(rules.smallest_quantum_ns), period // len(shares))
    quanta = divide([Claim(max(1, s), period) for s in shares], period)
    # Raise the short ones to the floor, at the cost of those that stay above it.
    short = [i for i, q in enumerate(quanta) if q < floor]
    if short:
        long = [i for i in range(len(quanta)) if i not in short]
        for i in short:
            quanta[i] = floor
        spare = period - floor * len(quanta)
        over = divide([Claim(max(1, quanta[i] - floor), period) for i in long], spare)
        for i, extra in zip(long, over, strict=True):
            quanta[i] = floor + extra
    return period, quanta


@dataclass(slots=True)
class _Track:
    """What is remembered of one (grant, GPU) between two looks."""

    consumed_ns: int = 0
    throttled_ns: int = 0
    launches: int = 0
    active_until_ns: int = -1
    outstanding: bool = False
    launch_ns: int = 0
    """Usual GPU time of one launch; 0 = not known yet."""
    measured_ns: int = -1
    measured_consumed_ns: int = 0
    measured_launches: int = 0

    def measure(self, seen: Activity, now_ns: int) -> None:
        """The mean launch since the last measure, taken over when it clearly differs."""
        launched = used = 0
        if self.measured_ns >= 0:
            launched = seen.launches - self.measured_launches
            used = seen.consumed_ns - self.measured_consumed_ns
            # Both counters move in chunks: over few launches their quotient says nothing.
            least_ns = MEASURE_EVERY_NS if launched >= MEASURE_LAUNCHES else MEASURE_LONGEST_NS
            if now_ns - self.measured_ns < least_ns:
                return
        if launched > 0 and used > 0:
            mean = used // launched
            if abs(mean - self.launch_ns) * 10 > self.launch_ns:
                self.launch_ns = mean
        self.measured_ns = now_ns
        self.measured_launches, self.measured_consumed_ns = seen.launches, seen.consumed_ns


class TurnPlanner:
    """Feed it looks at the usage; it answers with the lines B that have to change."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self._tracks: dict[tuple[GrantId, GpuUuid], _Track] = {}
        self._turns: dict[tuple[GrantId, GpuUuid], DeviceTurn] = {}
        self._epochs: dict[GpuUuid, int] = {}
        self._planned: dict[GpuUuid, tuple[object, ...]] = {}

    def busiest(self) -> int:
        """Active grants on the GPU that has most of them; sets the planning interval."""
        return max((turn.active_grants for turn in self._turns.values()), default=0)

    def turn(self, grant: GrantId, gpu: GpuUuid) -> DeviceTurn | None:
        return self._turns.get((grant, gpu))

    def plan(
        self,
        tenants: Sequence[Tenant],
        looks: Mapping[tuple[GrantId, GpuUuid], Activity],
        now_ns: Nanoseconds,
    ) -> list[SetTurn]:
        keys = {(t.grant, gpu) for t in tenants for gpu in t.gpus}
        for stale in set(self._tracks) - keys:
            del self._tracks[stale]
        for stale in set(self._turns) - keys:
            del self._turns[stale]
        for key in keys:
            self._look(key, looks.get(key, Activity()), now_ns)

        gpus: dict[GpuUuid, list[Tenant]] = {}
        for tenant in tenants:
            for gpu in tenant.gpus:
                gpus.setdefault(gpu, []).append(tenant)
        active = {
            gpu: [t for t in here if not t.paused and self._active(t, gpu, now_ns)]
            for gpu, here in gpus.items()
        }
        out: list[SetTurn] = []
        for gpu, here in gpus.items():
            lengths = self._launches_ns(gpu, active[gpu])
            known = tuple(here), tuple(t.grant for t in active[gpu]), lengths
            changed = self._planned.get(gpu) != known
            contended = self._contended(gpu, active[gpu], now_ns)
            # Windows that move overlap the old ones for a moment.
            entering = changed and len(active[gpu]) > 1
            if not changed and not contended:
                continue
            if gpu not in self._epochs:  # later than any epoch of a planner that ran before us
                self._epochs[gpu] = now_ns // NS_PER_MS
            if contended or entering:
                self._epochs[gpu] += 1
            self._planned[gpu] = known
            gangs = {t.grant for t in here if len(t.gpus) > 1}
            for tenant, turn in self._turns_on(gpu, here, active[gpu], gangs, now_ns):
                key = (tenant.grant, gpu)
                before = self._turns.get(key)
                if before != turn:
                    self._turns[key] = turn
                    wake = before is None or _schedule(before) != _schedule(turn)
                    out.append(SetTurn(tenant.grant, tenant.gpus.index(gpu), turn, wake))
        for gone in set(self._planned) - set(gpus):
            del self._planned[gone]
        return out

    # --- activity ---

    def _look(self, key: tuple[GrantId, GpuUuid], seen: Activity, now_ns: int) -> None:
        track = self._tracks.get(key)
        if track is None:
            # A grant met for the first time may have a history: only what it does from now on
            # is activity.
            track = self._tracks[key] = _Track(seen.consumed_ns, seen.throttled_ns, seen.launches)
        track.measure(seen, now_ns)
        moved = (
            seen.consumed_ns != track.consumed_ns
            or seen.throttled_ns > track.throttled_ns
            or seen.launches > track.launches
        )
        track.consumed_ns, track.throttled_ns = seen.consumed_ns, seen.throttled_ns
        track.launches = seen.launches
        until = now_ns + self._rules.active_hold_ns if moved else -1
        trust_ns = min(OUTSTANDING_TRUST * seen.outstanding_ns, LONGEST_TRUST_NS)
        track.outstanding = seen.outstanding_ns > 0 and seen.heartbeat_ns + trust_ns > now_ns
        if track.outstanding:
            until = max(until, now_ns + self._rules.active_hold_ns)
        track.active_until_ns = max(track.active_until_ns, until)

    def _launches_ns(self, gpu: GpuUuid, active: Sequence[Tenant]) -> tuple[int, ...]:
        if len(active) < 2:
            return ()
        return tuple(self._tracks[tenant.grant, gpu].launch_ns for tenant in active)

    def _active(self, tenant: Tenant, gpu: GpuUuid, now_ns: int) -> bool:
        """A gang is active everywhere as soon as it is active somewhere: its turns come
        together."""
        return any(self._tracks[tenant.grant, g].active_until_ns > now_ns for g in tenant.gpus)

    def _contended(self, gpu: GpuUuid, active: Sequence[Tenant], now_ns: int) -> bool:
        """Two had work in flight at once, so event pairs timed each other's kernels too."""
        busy = [t for t in active if self._tracks[t.grant, gpu].outstanding]
        if len(busy) < 2:
            return False
        for tenant in busy:
            turn = self._turns.get((tenant.grant, gpu))
            if turn is None or turn.mode is not TurnMode.LEASE:
                return True
            since = (now_ns - turn.lease_origin_ns) % turn.lease_period_ns
            if since > turn.lease_quantum_ns + LATE_NS:
                return True
        return False

    # --- layout ---

    def _turns_on(
        self,
        gpu: GpuUuid,
        here: Sequence[Tenant],
        active: Sequence[Tenant],
        gangs: set[GrantId],
        now_ns: int,
    ) -> list[tuple[Tenant, DeviceTurn]]:
        epoch = self._epochs[gpu]
        out: list[tuple[Tenant, DeviceTurn]] = []
        for tenant in here:
            if tenant in active:
                continue
            # Idle: what it may do the moment it starts, until the next look.
            mode = TurnMode.CAP if tenant.hard or active else TurnMode.OFF
            plan = tenant.share_ppm if mode is TurnMode.CAP else 0
            turn = DeviceTurn(mode, Ppm(plan), len(active), contention_epoch=epoch)
            out.append((tenant, turn))
        if len(active) == 1:
            (only,) = active
            turn = DeviceTurn(
                TurnMode.CAP if only.hard else TurnMode.OFF,
                Ppm(only.share_ppm if only.hard else 0),
                1,
                contention_epoch=epoch,
            )
            out.append((only, turn))
        elif active:
            out += self._leases(gpu, active, gangs, epoch, now_ns)
        return out

    def _leases(
        self,
        gpu: GpuUuid,
        active: Sequence[Tenant],
        gangs: set[GrantId],
        epoch: int,
        now_ns: int,
    ) -> list[tuple[Tenant, DeviceTurn]]:
        shares = divide([Claim(t.share_ppm, t.share_ppm if t.hard else WHOLE_PPM) for t in active])
        count = len(active)
        if any(t.grant in gangs for t in active):
            # A grant with several GPUs must hold all its windows together or none: a rank that
            # waits for another's
            # turn would spin for ever. Windows of different GPUs are not aligned yet, so
            # everybody here keeps
            # to its planned share by its own clock, and the hardware slices.
            return [
                (t, DeviceTurn(TurnMode.CAP, Ppm(share), count, contention_epoch=epoch))
                for t, share in zip(active, shares, strict=True)
            ]
        period, quanta = windows(shares, self._rules, self._launches_ns(gpu, active))
        start = now_ns // period * period
        out = []
        for tenant, share, quantum in zip(active, shares, quanta, strict=True):
            turn = DeviceTurn(
                TurnMode.LEASE,
                Ppm(share),
                count,
                Nanoseconds(start),
                Nanoseconds(period),
                Nanoseconds(quantum),
                epoch,
            )
            out.append((tenant, turn))
            start += quantum
        return out


def _schedule(turn: DeviceTurn) -> tuple[object, ...]:
    """What a waiting thread would decide differently for."""
    return (
        turn.mode,
        turn.plan_ppm,
        turn.lease_period_ns,
        turn.lease_quantum_ns,
        turn.lease_origin_ns % turn.lease_period_ns if turn.lease_period_ns else 0,
    )
