"""Properties of the books that processes of one grant keep of each other (interpose/compute/rules/fair.h), and runs in virtual time."""

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_int64, c_uint32, c_uint64
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.places import GATE_PROBE

MS = 1_000_000
S = 1_000 * MS
U64 = 2**64 - 1
BURST = 20 * MS
CHUNK = MS // 5
SLOTS = 8


class Account(Structure):
    _fields_ = [
        ("used_ns", c_uint64),
        ("waited_ns", c_uint64),
        ("moved_ns", c_uint64),
        ("wanted_ns", c_uint64),
        ("virtual_ns", c_int64),
        ("fresh", c_bool),
    ]


class Reading(Structure):
    _fields_ = [("used_ns", c_uint64), ("done_ns", c_uint64), ("waited_ns", c_uint64)]


def load() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(GATE_PROBE))
    for name, argtypes in {
        "tolerance_ns": [c_uint64] * 2,
        "rest_ns": [c_uint64] * 2,
        "cap_wait_ns": [c_uint64] * 3,
        "price_ns": [c_uint64, c_uint32],
        "fair_look": [
            POINTER(Account),
            POINTER(Reading),
            c_uint32,
            c_uint32,
            c_uint64,
            POINTER(c_uint64),
        ],
    }.items():
        function = getattr(lib, f"probe_{name}")
        function.argtypes, function.restype = argtypes, c_uint64
    return lib


LIB = load()
u64 = st.integers(0, U64)


@given(burst=st.integers(0, 10 * S), ahead=u64, further=u64)
def test_who_is_further_ahead_has_less_of_the_burst_left(
    burst: int, ahead: int, further: int
) -> None:
    near, far = sorted((ahead, further))
    assert burst >= LIB.probe_tolerance_ns(burst, near) >= LIB.probe_tolerance_ns(burst, far) >= 0
    assert LIB.probe_tolerance_ns(burst, 0) == burst


@given(elapsed=u64, taken=u64)
def test_what_others_left_of_a_time_is_never_more_than_the_time(elapsed: int, taken: int) -> None:
    assert LIB.probe_rest_ns(elapsed, taken) == max(0, elapsed - taken)


@dataclass
class Book:
    """Accounts that one process keeps of all processes."""

    own: int
    accounts: ctypes.Array[Account] = field(default_factory=lambda: (Account * SLOTS)())
    largest: c_uint64 = field(default_factory=c_uint64)

    def look(self, readings: ctypes.Array[Reading], now_ns: int) -> int:
        ahead: int = LIB.probe_fair_look(
            self.accounts, readings, SLOTS, self.own, now_ns, byref(self.largest)
        )
        return ahead


reading = st.tuples(u64, u64, u64)


@given(
    looks=st.lists(
        st.tuples(st.integers(0, S), st.lists(reading, min_size=SLOTS, max_size=SLOTS)), max_size=30
    ),
    own=st.integers(0, SLOTS - 1),
)
def test_counters_that_lie_give_a_number_and_hold_nobody_for_ever(
    looks: list[tuple[int, list[tuple[int, int, int]]]], own: int
) -> None:
    """A process may write what it likes into its line; it can only make its siblings let it by, not stop them."""
    book, now, readings = Book(own), S, (Reading * SLOTS)()
    for step, wild in looks:
        now += step
        for i, values in enumerate(wild):
            readings[i] = Reading(*values)
        ahead = book.look(readings, now)
        # a second for each look at most, and something of the burst is left
        assert ahead <= 64 * S
        assert LIB.probe_tolerance_ns(BURST, ahead) > 0
    # once the others are idle no tenant has to wait for them
    assert book.look(readings, now + S) == 0


def test_who_waits_for_nothing_holds_nobody_up() -> None:
    book, readings = Book(0), (Reading * SLOTS)()
    readings[0], readings[1] = Reading(1, 0, 0), Reading(1, 0, 0)
    book.look(readings, S)
    readings[0], readings[1] = Reading(100 * MS, 0, 5), Reading(MS, 0, 0)
    assert book.look(readings, S + MS) == 0, "the other one has had less, and never waited"
    readings[1] = Reading(MS, 0, 1)
    assert book.look(readings, S + 2 * MS) == 99 * MS, "now it has"
    assert book.look(readings, S + 100 * MS) == 0, "and wants no more"


def test_who_was_away_is_owed_nothing() -> None:
    book, readings = Book(0), (Reading * SLOTS)()
    readings[0], readings[1] = Reading(1, 1, 0), Reading(1, 1, 1)
    book.look(readings, S)
    readings[0] = Reading(300 * MS, 300 * MS, 0)
    book.look(readings, 3 * S)
    readings[1] = Reading(2, 1, 2)
    assert book.look(readings, 3 * S + MS) == 0


# --- runs in virtual time: one clock, processes that always have another launch -------------------------------------


@dataclass
class Process:
    kernel_ns: int
    book: Book
    idle_ns: int = 0
    """Time in ns that the process idles between two launches."""
    used_ns: int = 0
    waited_ns: int = 0
    asked_ns: int = 0
    wakes_ns: int = 0
    place_ns: int | None = None


def divide(
    kernels_ns: list[int], share_ppm: int, seconds: int = 20, idle_ns: tuple[int, ...] = ()
) -> list[float]:
    """The GPU time of each, in shares of the GPU; the same questions in the same order as throttle.c."""
    idle = (*idle_ns, *[0] * len(kernels_ns))
    them = [Process(ns, Book(i), idle[i], wakes_ns=S + i) for i, ns in enumerate(kernels_ns)]
    tat, end = 0, S + seconds * S
    readings = (Reading * SLOTS)()
    while (one := min(them, key=lambda p: p.wakes_ns)).wakes_ns < end:
        now = one.wakes_ns
        if one.place_ns is None:
            one.waited_ns += now - one.asked_ns if one.asked_ns else 0
            one.asked_ns = now
            for i, p in enumerate(them):
                readings[i] = Reading(p.used_ns, p.used_ns, p.waited_ns)
            ahead = max(0, one.book.look(readings, now) - CHUNK)
            if ahead:
                wait = min(
                    LIB.probe_cap_wait_ns(tat, now, LIB.probe_tolerance_ns(BURST, ahead)),
                    LIB.probe_price_ns(ahead, share_ppm),
                )
                if wait:
                    one.wakes_ns = now + min(max(wait, MS // 10), 10 * MS)
                    continue
            one.place_ns = tat
            tat = max(tat, now) + LIB.probe_price_ns(max(one.kernel_ns, CHUNK), share_ppm)
        wait = LIB.probe_cap_wait_ns(one.place_ns, now, BURST)
        if wait:
            one.wakes_ns = now + min(wait, 10 * MS)
            one.waited_ns += one.wakes_ns - now
            one.asked_ns = one.wakes_ns
            continue
        one.used_ns += max(one.kernel_ns, CHUNK)
        one.place_ns, one.asked_ns = None, 0
        one.wakes_ns = now + 10_000 + one.idle_ns
    return [p.used_ns / (end - S) for p in them]


@pytest.mark.parametrize(
    "kernels_ns",
    [
        [20 * MS] + [MS // 5] * 7,
        [20 * MS] * 8,
        [MS // 5] * 8,
        [100 * MS, 5 * MS, MS // 5],
        [500 * MS, MS],
    ],
    ids=["one long", "all long", "all short", "three lengths", "half a second"],
)
@pytest.mark.parametrize("share", [10, 40, 100], ids=lambda share: f"{share} percent")
def test_all_that_want_more_get_the_same(kernels_ns: list[int], share: int) -> None:
    seconds = 60 if max(kernels_ns) >= 100 * MS else 30
    got = divide(kernels_ns, share * 10_000, seconds)
    want = share / 100 / len(kernels_ns)
    # the run ends somewhere within a turn, and the longest launch makes it that long
    for one in got:
        assert abs(one - want) <= 0.1 * want + max(kernels_ns) / (seconds * S)
    assert sum(got) <= share / 100 + (BURST + sum(kernels_ns)) / (seconds * S)
    assert sum(got) >= 0.97 * share / 100 - max(kernels_ns) / (seconds * S), "nothing is lost by it"


def test_what_one_does_not_want_the_others_have() -> None:
    """One launches 1 ms and is busy with other things for 50 ms; of 40 % two others have what it leaves."""
    little, long, short = divide([MS, 20 * MS, MS // 5], 400_000, 60, idle_ns=(50 * MS,))
    assert 0.01 < little < 0.02
    assert abs(long - short) < 0.02
    assert little + long + short > 0.39
