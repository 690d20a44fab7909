"""Readings that tenants write are believed or replaced: the short way for honest readings agrees
with the rules one by one, and an unchanged reading changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.grants import usage
from nodeagent.core.grants.usage import GrantAccount, believe
from nodeagent.ports.regions import DeviceCounters, SlotUsage, UsageImage
from nodeagent.units import GIB, Nanoseconds, SlotIndex

NAMES = ("charged_bytes", "consumed_ns", "completed_ns", "launches", "allocs", "denied", "peak_bytes", "throttled_ns")  # fmt: skip
NEAR = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0, 1, 4 * GIB, 4 * GIB + 1, usage.LARGEST_GIVE_BACK_NS, 10**6, usage.LARGEST_STEP_NS]
)
COUNTERS = st.builds(DeviceCounters, *([NEAR] * 8))
SLOT = SlotIndex(3)


@given(last=COUNTERS, seen=COUNTERS, elapsed_ns=st.integers(0, usage.LARGEST_WORD))
def test_the_short_way_says_what_the_rules_say(
    last: DeviceCounters, seen: DeviceCounters, elapsed_ns: int
) -> None:
    short = believe(last, seen, GIB, elapsed_ns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage, "_is_honest", lambda *arguments: False)
        assert believe(last, seen, GIB, elapsed_ns) == short
    assert (short[0] == seen) or short[1]


@given(last=COUNTERS, steps=st.lists(st.integers(0, 2**30), min_size=8, max_size=8))
def test_an_honest_step_is_taken_over_whole(last: DeviceCounters, steps: list[int]) -> None:
    last = replace(last, charged_bytes=0, peak_bytes=0)
    seen = DeviceCounters(*(getattr(last, name) + step for name, step in zip(NAMES, steps, strict=True)))  # fmt: skip
    assert believe(last, seen, GIB, 0) == (seen, [])


def image(counters: DeviceCounters, heartbeat_ns: int = 1) -> UsageImage:
    return UsageImage({SLOT: SlotUsage(1, heartbeat_ns, 0, 0, 0, 0, 0, 0, (counters,))})


def test_the_same_reading_again_changes_nothing_and_the_next_counts_from_it() -> None:
    account = GrantAccount((GIB,))
    first = image(DeviceCounters(consumed_ns=5, launches=2))
    for now_ns in (10, 20):
        assert account.observe(first, {SLOT: 1}, Nanoseconds(now_ns)) == []
        assert account.activity(0).launches == 2
    after = image(DeviceCounters(consumed_ns=9, launches=3), heartbeat_ns=25)
    assert account.observe(after, {SLOT: 1}, Nanoseconds(30)) == []
    assert account.activity(0).consumed_ns == 9
    assert account.activity(0).heartbeat_ns == 25


def test_another_process_in_the_slot_is_looked_at_even_if_it_wrote_the_same() -> None:
    account = GrantAccount((GIB,))
    same = image(DeviceCounters(consumed_ns=5))
    account.observe(same, {SLOT: 1}, Nanoseconds(10))
    account.retire(SLOT)
    account.observe(same, {SLOT: 3}, Nanoseconds(20))
    assert account.total(0).consumed_ns == 10


def test_a_counter_that_stays_wrong_is_counted_at_every_look() -> None:
    account = GrantAccount((GIB,))
    account.observe(image(DeviceCounters(launches=5)), {SLOT: 1}, Nanoseconds(10))
    back = image(DeviceCounters(launches=4))
    for _ in range(3):
        assert account.observe(back, {SLOT: 1}, Nanoseconds(20)) == ["counter_backwards"]
    assert account.activity(0).launches == 5
    assert account.tampers["counter_backwards"] == 3


def test_a_thread_at_the_gate_counts_while_its_process_gives_signs_of_life() -> None:
    """A stopped process keeps the word that it wrote, and an older guest writes none."""
    account = GrantAccount((GIB,))
    slot = SlotUsage(1, 10, 0, 0, 0, 0, 0, 0, (DeviceCounters(),))
    for waiting, later_ns, waits, counts in (
        (2, 0, True, True),
        (0, 0, False, True),
        (1, usage.WAITING_TRUST_NS, False, True),
        (None, 0, False, False),
    ):
        reading = UsageImage({SLOT: replace(slot, waiting=waiting)})
        account.observe(reading, {SLOT: 1}, Nanoseconds(10 + later_ns))
        seen = account.activity(0)
        assert (seen.waiting, seen.counts_waiting) == (waits, counts)


def test_a_grant_counts_its_waiting_threads_only_if_all_its_processes_do() -> None:
    account = GrantAccount((GIB,))
    slot = SlotUsage(1, 10, 0, 0, 0, 0, 0, 0, (DeviceCounters(),))
    other = SlotIndex(4)
    both = UsageImage({SLOT: replace(slot, waiting=1), other: slot})
    account.observe(both, {SLOT: 1, other: 1}, Nanoseconds(20))
    assert account.activity(0).waiting
    assert not account.activity(0).counts_waiting
