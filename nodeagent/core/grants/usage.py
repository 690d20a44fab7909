"""Turns what tenants write into verified figures, and counts impossible values.

Every word of usage.shm is untrusted. A value outside its range, or a counter that decreases, is
replaced by the last good one and counted as a tamper event; sums saturate. Totals of exited
processes are kept, so a grant's counters never decrease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nodeagent.ports.regions import DeviceCounters, SlotUsage, UsageImage
from nodeagent.units import NS_PER_MS, NS_PER_S, Nanoseconds, SlotIndex

LARGEST_WORD = (1 << 63) - 1
"""Sums saturate here: a signed 64-bit reader downstream still sees a number."""
LARGEST_CHARGE_FACTOR = 4
"""Most that a process can have reserved, as a multiple of the card; a larger value is invalid."""
LARGEST_GIVE_BACK_NS = 60 * NS_PER_S
"""A correction returns GPU time that was charged too high; one launch is estimated at 4.3 s at
most."""
LARGEST_STEP_NS = 600 * NS_PER_S
"""GPU or waiting time that one reading may add beyond the wall time since the last, all threads
together."""
LARGEST_THREADS = 4096
LARGEST_STEP_CALLS = 1 << 40

WAITING_TRUST_NS = NS_PER_S // 4
"""Longest time that a waiting thread counts without a sign of life: it gives one every 10 ms."""

_MONOTONE = ("launches", "allocs", "denied")


@dataclass(frozen=True, slots=True)
class Activity:
    """The planner's input for one (grant, GPU) at one moment."""

    consumed_ns: int = 0
    outstanding_ns: int = 0
    """Charged and not known to have finished, over processes with a recent sign of life."""
    throttled_ns: int = 0
    launches: int = 0
    heartbeat_ns: int = 0
    """Latest heartbeat of any process."""
    waiting: bool = False
    """A thread is at the gate, as its process said a moment ago."""
    counts_waiting: bool = False
    """All processes publish whether they wait, so that a grant that shows no work has none."""
    switch_ns: int = 0
    """Time of a change of contexts as its programs say; 0 = not measured, or no plausible value."""


@dataclass(slots=True)
class _Slot:
    generation: int
    devices: list[DeviceCounters]
    seen_ns: int
    raw: SlotUsage | None = None
    """The last verified reading; the same object again has nothing new."""
    waiting: int | None = None


@dataclass(slots=True)
class GrantAccount:
    """The verified usage of one grant, GPU by GPU."""

    physical_bytes: Sequence[int]
    tampers: Counter[str] = field(default_factory=Counter)
    _retired: list[DeviceCounters] = field(default_factory=list)
    _peaks: list[int] = field(default_factory=list)
    _slots: dict[SlotIndex, _Slot] = field(default_factory=dict)
    _heartbeats: dict[SlotIndex, int] = field(default_factory=dict)
    _looked_ns: int = 0
    _switches_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._retired = [DeviceCounters() for _ in self.physical_bytes]
        self._peaks = [0 for _ in self.physical_bytes]

    def observe(
        self,
        image: UsageImage,
        generations: Mapping[SlotIndex, int],
        now_ns: Nanoseconds,
    ) -> list[str]:
        """Verify a reading and return the kinds of tampering that it shows. `generations` are those
        of the live slots."""
        if image.damage is not None:
            self.tampers[image.damage.value] += 1
            return [image.damage.value]
        found: list[str] = []
        self._looked_ns = now_ns
        self._switches_ns = image.switches_ns
        for slot, generation in generations.items():
            raw = image.slots.get(slot)
            if raw is None:
                continue
            known = self._slots.get(slot)
            if known is None or known.generation != generation:
                # The slot was zero when it was assigned, so all it holds now is this process's.
                known = _Slot(generation, [DeviceCounters() for _ in self.physical_bytes], now_ns)
                self._slots[slot] = known
                fresh = True
            elif raw is known.raw:
                continue
            else:
                fresh = False
            known.raw = raw
            known.waiting = raw.waiting
            elapsed_ns = LARGEST_WORD if fresh else max(0, now_ns - known.seen_ns)
            for index, physical in enumerate(self.physical_bytes):
                seen = raw.devices[index] if index < len(raw.devices) else DeviceCounters()
                if seen == known.devices[index]:
                    continue
                known.devices[index], kinds = believe(
                    known.devices[index], seen, physical, elapsed_ns
                )
                found += kinds
                if kinds:  # A value that stays wrong counts at every look.
                    known.raw = None
            known.seen_ns = now_ns
            self._heartbeats[slot] = raw.heartbeat_ns if raw.heartbeat_ns <= now_ns else 0
        if found:
            self.tampers.update(found)
        return found

    def retire(self, slot: SlotIndex) -> None:
        """Remove an exited process: its memory is gone, its counters stay in the totals."""
        self._heartbeats.pop(slot, None)
        known = self._slots.pop(slot, None)
        if known is None:
            return
        for index, last in enumerate(known.devices):
            gone = replace(last, charged_bytes=0, completed_ns=last.consumed_ns)
            self._retired[index] = _add(self._retired[index], gone)

    def charged(self, slot: SlotIndex, device: int) -> int:
        """Bytes that one live process is charged on the device now."""
        known = self._slots.get(slot)
        return known.devices[device].charged_bytes if known is not None else 0

    def total(self, device: int) -> DeviceCounters:
        """Totals of this grant on the GPU since it was made, and the memory that it has now."""
        total = self._retired[device]
        for known in self._slots.values():
            total = _add(total, known.devices[device])
        # Processes peak at different moments, so their peaks do not add up: the grant's peak is the
        # highest sum seen here, and at least that of any one process.
        peak = max(self._peaks[device], total.charged_bytes, total.peak_bytes)
        self._peaks[device] = peak
        return replace(total, peak_bytes=peak)

    def activity(self, device: int) -> Activity:
        retired = self._retired[device]
        consumed, throttled, launches = (
            retired.consumed_ns,
            retired.throttled_ns,
            retired.launches,
        )
        outstanding = heartbeat = 0
        waiting, counts = False, bool(self._slots)
        for slot, known in self._slots.items():
            line = known.devices[device]
            threads = known.waiting
            counts = counts and threads is not None
            beat = self._heartbeats.get(slot, 0)
            waiting = waiting or (bool(threads) and beat + WAITING_TRUST_NS > self._looked_ns)
            consumed += line.consumed_ns
            throttled += line.throttled_ns
            launches += line.launches
            outstanding += max(0, line.consumed_ns - line.completed_ns)
            heartbeat = max(heartbeat, beat)
        outstanding = min(outstanding, LARGEST_WORD)
        switch = self._switches_ns[device] if device < len(self._switches_ns) else 0
        return Activity(
            consumed, outstanding, throttled, launches, heartbeat, waiting, counts, switch
        )


def believe(
    last: DeviceCounters, seen: DeviceCounters, physical_bytes: int, elapsed_ns: int
) -> tuple[DeviceCounters, list[str]]:
    """The values to continue with, and the tamper kinds of those that were rejected."""
    step = min(LARGEST_WORD, elapsed_ns * LARGEST_THREADS + LARGEST_STEP_NS)
    if _is_honest(last, seen, LARGEST_CHARGE_FACTOR * physical_bytes, step):
        return seen, []
    kinds: list[str] = []
    values: dict[str, int] = {}

    def take(name: str, value: int, good: bool, kind: str) -> None:
        values[name] = value if good else getattr(last, name)
        if not good:
            kinds.append(kind)

    most = LARGEST_CHARGE_FACTOR * physical_bytes
    take("charged_bytes", seen.charged_bytes, seen.charged_bytes <= most, "charge_range")
    take("peak_bytes", seen.peak_bytes, seen.peak_bytes <= most, "charge_range")
    for name in _MONOTONE:
        was, now = getattr(last, name), getattr(seen, name)
        if now < was:
            take(name, now, False, "counter_backwards")
        else:
            take(name, now, now - was <= LARGEST_STEP_CALLS, "counter_range")
    for name, give_back in (
        ("consumed_ns", LARGEST_GIVE_BACK_NS),
        ("completed_ns", LARGEST_GIVE_BACK_NS),
        ("throttled_ns", NS_PER_MS),
    ):
        was, now = getattr(last, name), getattr(seen, name)
        if now + give_back < was:
            take(name, now, False, "counter_backwards")
        else:
            take(name, now, now - was <= step, "counter_range")
    return DeviceCounters(**values), kinds


def _is_honest(last: DeviceCounters, seen: DeviceCounters, most: int, step: int) -> bool:
    """True if all the checks of `believe` pass; a fast path, because most readings are valid."""
    return (
        seen.charged_bytes <= most
        and seen.peak_bytes <= most
        and 0 <= seen.launches - last.launches <= LARGEST_STEP_CALLS
        and 0 <= seen.allocs - last.allocs <= LARGEST_STEP_CALLS
        and 0 <= seen.denied - last.denied <= LARGEST_STEP_CALLS
        and -LARGEST_GIVE_BACK_NS <= seen.consumed_ns - last.consumed_ns <= step
        and -LARGEST_GIVE_BACK_NS <= seen.completed_ns - last.completed_ns <= step
        and -NS_PER_MS <= seen.throttled_ns - last.throttled_ns <= step
    )


def live_slots(usage: Mapping[SlotIndex, SlotUsage]) -> list[SlotIndex]:
    """Slots that a process has written to."""
    return [slot for slot, seen in usage.items() if seen.generation_seen or seen.self_claim]


def _add(a: DeviceCounters, b: DeviceCounters) -> DeviceCounters:
    return DeviceCounters(
        charged_bytes=min(LARGEST_WORD, a.charged_bytes + b.charged_bytes),
        consumed_ns=min(LARGEST_WORD, a.consumed_ns + b.consumed_ns),
        completed_ns=min(LARGEST_WORD, a.completed_ns + b.completed_ns),
        launches=min(LARGEST_WORD, a.launches + b.launches),
        allocs=min(LARGEST_WORD, a.allocs + b.allocs),
        denied=min(LARGEST_WORD, a.denied + b.denied),
        peak_bytes=max(a.peak_bytes, b.peak_bytes),
        throttled_ns=min(LARGEST_WORD, a.throttled_ns + b.throttled_ns),
    )
