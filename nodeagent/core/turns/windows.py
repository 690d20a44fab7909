"""Divides a GPU's time among its grants: weighted max-min shares, as windows of a common period.

Priorities form tiers: the highest active one divides the GPU among its members, what they cannot
use flows down, and every lower grant keeps a small floor so that it never starves. A grant with
several GPUs has its windows at the same time on all of them.

Windows always fill the period, even for hard tenants: a hard cap is kept by the tenant's own
virtual clock (`share_ppm`), and a window with some slack is what lets it reach that cap despite the
cost of handing over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nodeagent.ports.regions import NO_TIME
from nodeagent.units import NS_PER_MS, WHOLE_PPM, GpuUuid, GrantId, Nanoseconds, Ppm

FITS_ANYWAY = 64
"""Windows of this many launches lose too little at their end to matter."""
HELD = 20
"""Numbers of launches per window that are weighed."""
LONG_PERIOD_COST = 0.02
"""Cost of the longest period, as a part of the GPU, when weighed against a better fit."""
USUAL_SLICE_NS = Nanoseconds(2 * NS_PER_MS)
SWITCH_LOSS = 0.0075
"""Part of the GPU that changes of contexts may take: the period is long enough for that."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """Settings of the planner in its own units."""

    period_ns: Nanoseconds
    longest_period_ns: Nanoseconds
    smallest_quantum_ns: Nanoseconds
    active_hold_ns: Nanoseconds
    floor_ppm: Ppm
    """Share that each grant keeps while others of higher priority could use everything; a fifth of
    the GPU at most for all of them."""
    switch_ns: Nanoseconds = NO_TIME
    """Time that a change of contexts takes; every window begins with one."""
    slice_ns: Nanoseconds = USUAL_SLICE_NS
    """The hardware's time slice where several contexts have work."""

    def shortest_period_ns(self, tenants: int) -> int:
        """The period at which changes of contexts cost no more than they may."""
        lost = int(tenants * self.switch_ns / SWITCH_LOSS)
        return min(max(int(self.period_ns), lost), int(self.longest_period_ns))

    def least_period_ns(self, tenants: int) -> int:
        """The shortest period to weigh: where changes of contexts cost more than they may in any
        case, a shorter one whose windows hold whole launches may lose less."""
        shortest = self.shortest_period_ns(tenants)
        if shortest < self.longest_period_ns:
            return shortest
        return max(int(self.period_ns), int(self.longest_period_ns) // 2)

    def planned_switch_ns(self, period_ns: int, tenants: int) -> int:
        """The change of contexts as it is planned: at most half of a period goes to all of them."""
        return min(int(self.switch_ns), period_ns // 2 // tenants)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One grant as the planner sees it."""

    grant: GrantId
    gpus: tuple[GpuUuid, ...]
    share_ppm: Ppm
    hard: bool
    paused: bool = False
    priority: int = 0
    own_clock: bool = False
    """True if it takes no windows even if it always has work: its processes wait for those of a
    grant on another node, as the ranks of a gang do."""
    merged: bool = False
    """True if it and all others on its GPU are clients of one MPS server, so that no window and no
    change of contexts divides them."""

    @property
    def cap_ppm(self) -> int:
        return int(self.share_ppm) if self.hard else WHOLE_PPM


@dataclass(frozen=True, slots=True)
class Claim:
    """One party of a division: its weight and its cap."""

    weight: int
    cap_ppm: int = WHOLE_PPM


def divide(claims: Sequence[Claim], whole: int = WHOLE_PPM) -> list[int]:
    """Weighted max-min: proportional to weight, no claim above its cap, and nothing left over while
    any claim is below its cap.

    Exact in integers; the remainder of rounding goes to the first claims that have room.
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


def divide_by_priority(active: Sequence[Tenant], floor_ppm: int) -> list[int]:
    """Share of each active tenant: tier by tier, with the floors of all lower tiers reserved and
    unused time passed down."""
    given = [0] * len(active)
    left = WHOLE_PPM

    def hand_out(members: Sequence[int], whole: int) -> int:
        claims = [Claim(active[i].share_ppm, active[i].cap_ppm - given[i]) for i in members]
        parts = divide(claims, whole)
        for i, part in zip(members, parts, strict=True):
            given[i] += part
        return sum(parts)

    tiers = [
        [i for i, tenant in enumerate(active) if tenant.priority == priority]
        for priority in sorted({tenant.priority for tenant in active}, reverse=True)
    ]
    below = len(active) - len(tiers[0])
    floor = min(floor_ppm, WHOLE_PPM // 5 // below) if below else 0
    for members, lower in zip(tiers, [*tiers[1:], []], strict=True):
        left -= hand_out(members, left - floor * below)
        below -= len(lower)
    for members in tiers:  # This is the time that the lowest tier could not use.
        left -= hand_out(members, left)
    return given


def own_clock_ppm(share_ppm: int, rival_ppm: int, rules: PlanRules) -> int:
    """The share of a grant that keeps to its own clock although it always has work.

    `rival_ppm` is the share of its largest neighbour; all that take turns in windows count as one.
    The hardware's slices change contexts twice in a round of the neighbour's slice and the grant's
    part of it. A grant with the smaller share would have all of that paid by the neighbour, since
    it is ready whenever its clock permits; so its clock is slower by what the changes cost. The
    larger one pays itself: it gets what the smaller leaves.
    """
    if share_ppm > rival_ppm or rules.slice_ns <= 0:
        return share_ppm
    round_ns = rules.slice_ns * (rival_ppm + share_ppm) // rival_ppm
    return max(1, share_ppm * round_ns // (round_ns + 2 * int(rules.switch_ns)))


def lost_at_the_end(quantum_ns: float, period_ns: int, launch_ns: int) -> float:
    """Part of the GPU that is lost, or taken from the next window, because the window does not hold
    whole launches."""
    fits = quantum_ns / launch_ns
    # A launch longer than two windows starts in one of them and is paid for by its clock.
    lost = abs(round(fits) - fits) if fits >= 0.5 else 0.5
    return lost * launch_ns / period_ns


def fitting_period(
    shares: Sequence[int],
    launches_ns: Sequence[int],
    shortest_ns: int,
    longest_ns: int,
    switch_ns: int = 0,
    least_ns: int | None = None,
) -> int:
    """The shortest period whose windows hold whole numbers of launches.

    A launch cannot be cut in two: 5 ms kernels in windows of 7 ms would use only 5 of them for
    ever. `launches_ns` has the usual GPU time of one launch of each tenant, 0 if unknown. The
    tenants divide what is left of the period after a change of contexts for each. A period below
    `shortest_ns`, but not below `least_ns`, costs more changes of contexts.
    """
    least_ns = shortest_ns if least_ns is None else min(least_ns, shortest_ns)
    return _fitting_period(
        tuple(shares), tuple(launches_ns), shortest_ns, longest_ns, switch_ns, least_ns
    )


@lru_cache(maxsize=256)
def _fitting_period(
    shares: tuple[int, ...],
    launches_ns: tuple[int, ...],
    shortest_ns: int,
    longest_ns: int,
    switch_ns: int,
    least_ns: int,
) -> int:
    """Weigh some hundred candidates, in about 1 ms; the cache serves tenants that come and go."""
    total = sum(shares)
    lost_ns = min(len(shares) * switch_ns, least_ns // 2)
    long = [
        (share, length)
        for share, length in zip(shares, launches_ns, strict=True)
        if length and share and length * FITS_ANYWAY * total > shortest_ns * share
    ]
    if not long or least_ns >= longest_ns:
        return shortest_ns

    def badness(period_ns: int) -> float:
        at_the_end = sum(
            lost_at_the_end((period_ns - lost_ns) * share / total, period_ns, length)
            for share, length in long
        )
        more_changes = max(0.0, lost_ns / period_ns - lost_ns / shortest_ns)
        return (
            at_the_end + more_changes + LONG_PERIOD_COST * max(period_ns, shortest_ns) / longest_ns
        )

    candidates = {shortest_ns, longest_ns}
    for share, length in long:
        least = max(1, (least_ns - lost_ns) * share // (total * length))
        held = range(least, least + HELD)
        whole = (lost_ns - (-n * length * total // share) for n in held)
        candidates.update(p for p in whole if least_ns < p < longest_ns)
    step = least_ns
    while step < longest_ns:
        candidates.add(step)
        step += max(1, step // 32)
    return min(sorted(candidates), key=badness)


def windows(
    shares: Sequence[int], rules: PlanRules, launches_ns: Sequence[int] = ()
) -> tuple[int, list[int]]:
    """(Period, quantum per share): windows that fill the period, each at least the smallest quantum
    if that fits.

    The period grows up to the longest allowed, so that changes of contexts cost little, the
    smallest share gets its quantum and windows hold whole launches.
    """
    total = sum(shares)
    smallest = min(shares)
    count = len(shares)
    longest = int(rules.longest_period_ns)
    room = -(-rules.smallest_quantum_ns * total // smallest) if smallest > 0 else 0
    period = min(max(rules.shortest_period_ns(count), room), longest)
    if launches_ns:
        least = min(max(rules.least_period_ns(count), room), longest)
        period = fitting_period(shares, launches_ns, period, longest, int(rules.switch_ns), least)
    floor = min(int(rules.smallest_quantum_ns), period // count)
    # Each pays its own change of contexts, so that what is lost is lost in proportion.
    switch = rules.planned_switch_ns(period, count)
    left = period - count * switch
    quanta = [switch + one for one in divide([Claim(max(1, s), left) for s in shares], left)]
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


def aligned_windows(
    active: Mapping[GpuUuid, Sequence[Tenant]], rules: PlanRules
) -> tuple[int, dict[tuple[GrantId, GpuUuid], tuple[int, int]]]:
    """(Period, (offset, quantum) per grant and GPU) for GPUs that are tied together by grants with
    several of them.

    Such a grant runs on all its GPUs at the same time or on none: a rank that waits for another's
    turn would spin through its own. It gets the smallest share it has on any of them. The time
    between their windows goes to the grants of one GPU; a gap that no local grant can use stays
    empty.
    """
    shares = {
        (tenant.grant, gpu): share
        for gpu, here in active.items()
        for tenant, share in zip(here, divide_by_priority(here, rules.floor_ppm), strict=True)
    }
    gangs: dict[GrantId, list[GpuUuid]] = {}
    for gpu, here in active.items():
        for tenant in here:
            if len(tenant.gpus) > 1:
                gangs.setdefault(tenant.grant, []).append(gpu)
    part = {grant: min(shares[grant, gpu] for gpu in on) for grant, on in gangs.items()}
    smallest = max(1, min(min(part.values()), min(shares.values())))
    period = max(
        rules.shortest_period_ns(max(len(here) for here in active.values())),
        -(-rules.smallest_quantum_ns * WHOLE_PPM // smallest),
    )
    period = min(period, int(rules.longest_period_ns))

    taken: dict[GpuUuid, list[tuple[int, int]]] = {gpu: [] for gpu in active}
    out: dict[tuple[GrantId, GpuUuid], tuple[int, int]] = {}
    for grant in sorted(gangs, key=lambda g: (-len(gangs[g]), -part[g], g)):
        busy = sorted(window for gpu in gangs[grant] for window in taken[gpu])
        offset, room = _widest_gap(busy, period, period * part[grant] // WHOLE_PPM)
        quantum = min(room, period * part[grant] // WHOLE_PPM)
        for gpu in gangs[grant]:
            taken[gpu].append((offset, offset + quantum))
            out[grant, gpu] = (offset, quantum)
    for gpu, here in active.items():
        local = [tenant for tenant in here if tenant.grant not in gangs]
        if not local:
            continue
        offset, room = _widest_gap(sorted(taken[gpu]), period, period)
        claims = [Claim(max(1, shares[tenant.grant, gpu]), room) for tenant in local]
        for tenant, quantum in zip(local, divide(claims, room), strict=True):
            out[tenant.grant, gpu] = (offset, quantum)
            offset += quantum
    return period, out


def _widest_gap(busy: Sequence[tuple[int, int]], period: int, want: int) -> tuple[int, int]:
    """(Start, length) of the first gap of at least `want`, else of the widest."""
    gaps = []
    at = 0
    for start, end in busy:
        if start > at:
            gaps.append((at, start - at))
        at = max(at, end)
    gaps.append((at, max(0, period - at)))
    return next((gap for gap in gaps if gap[1] >= want), max(gaps, key=lambda gap: gap[1]))
