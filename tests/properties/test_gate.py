"""Properties of the compute gate's arithmetic (interpose/compute/rules/gate.h), and a discrete-event run of it.

The second half drives the gate with synthetic kernels in virtual time: hours of GPU time in seconds.
"""

import ctypes
import random
from ctypes import POINTER, Structure, byref, c_int, c_uint32, c_uint64
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.kit.places import GATE_PROBE

MS = 1_000_000
S = 1_000 * MS
U64 = 2**64 - 1


class Window(Structure):
    _fields_ = [
        ("origin_ns", c_uint64),
        ("period_ns", c_uint64),
        ("quantum_ns", c_uint64),
        ("switch_ns", c_uint64),
    ]


class Estimate(Structure):
    _fields_ = [("cost_ns", c_uint64), ("samples", c_uint32), ("wary", c_uint32)]


class Arrival(Structure):
    _fields_ = [("elapsed_ns", c_uint64), ("paid_ns", c_uint64)]


class Shape(Structure):
    _fields_ = [("grid", c_uint32 * 3), ("block", c_uint32 * 3), ("shared_bytes", c_uint32)]


def load() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(GATE_PROBE))
    for name, argtypes in {
        "price_ns": [c_uint64, c_uint32],
        "tat_after_ns": [c_uint64] * 3,
        "cap_wait_ns": [c_uint64] * 3,
        "queue_wait_ns": [c_uint64] * 3,
        "guess_wait_ns": [c_uint64] * 2,
        "arrival_own_ns": [POINTER(Arrival), c_uint64, c_uint64],
        "turn_wait_ns": [POINTER(Window), c_uint64, c_uint64, c_uint64],
        "window_left_ns": [POINTER(Window), c_uint64],
        "window_begins_ns": [POINTER(Window), c_uint64],
        "burst_ns": [c_uint64] * 2,
        "honest_ns": [c_uint64] * 5,
        "cost_key": [c_uint64, POINTER(Shape), c_int],
        "cost_ns": [c_uint64],
        "own_ns": [c_uint64, c_uint64, c_uint32],
        "less_gap_ns": [c_uint64] * 2,
        "part_ns": [c_uint64] * 3,
    }.items():
        function = getattr(lib, f"probe_{name}")
        function.argtypes, function.restype = argtypes, c_uint64
    lib.probe_switch_cost.argtypes = [POINTER(c_uint64), c_uint32, c_uint32]
    lib.probe_switch_cost.restype = c_uint32
    lib.probe_effective_ppm.argtypes = [c_uint32, c_uint32]
    lib.probe_effective_ppm.restype = c_uint32
    lib.probe_queue_full.argtypes = [c_uint64, c_uint64, c_uint64, c_uint32]
    lib.probe_estimate_after.argtypes = [POINTER(Estimate), c_uint64]
    lib.probe_estimate_after.restype = None
    lib.probe_cost_learn.argtypes = [c_uint64, c_uint64, c_int]
    lib.probe_cost_learn.restype = None
    lib.probe_cost_tried.argtypes = [c_uint64]
    lib.probe_cost_tried.restype = None
    lib.probe_cost_relearn.argtypes = [c_uint64]
    lib.probe_cost_relearn.restype = None
    lib.probe_cost_pass_ns.argtypes = [c_uint64, c_uint64]
    lib.probe_cost_pass_ns.restype = c_uint64
    return lib


GATE = load()
u64 = st.integers(0, U64)
ppm = st.integers(1, 1_000_000)
times = st.integers(0, 10**13)  # up to three hours


@given(cost_ns=st.integers(0, 10**15), share_ppm=ppm)
def test_a_price_is_never_below_the_cost_nor_rounds_a_share_up_by_more_than_one(
    cost_ns: int, share_ppm: int
) -> None:
    price = GATE.probe_price_ns(cost_ns, share_ppm)
    if cost_ns <= U64 // 1_000_000:
        assert price == cost_ns * 1_000_000 // share_ppm
    assert price >= cost_ns


@given(cost_ns=u64)
def test_an_uncapped_tenant_pays_nothing(cost_ns: int) -> None:
    assert GATE.probe_price_ns(cost_ns, 0) == 0


@given(tat=u64, now=u64, price=u64)
def test_the_virtual_clock_never_runs_backwards_nor_wraps(tat: int, now: int, price: int) -> None:
    after = GATE.probe_tat_after_ns(tat, now, price)
    assert after >= max(tat, now)
    assert after == min(max(tat, now) + price, U64)


@given(tat=u64, now=u64, burst=u64)
def test_the_wait_ends_exactly_when_the_clock_conforms(tat: int, now: int, burst: int) -> None:
    wait = GATE.probe_cap_wait_ns(tat, now, burst)
    if wait:
        assert tat > now + burst
        assert GATE.probe_cap_wait_ns(tat, now + wait, burst) == 0
    else:
        assert tat <= min(now + burst, U64)


@given(cap=st.integers(0, 10**6), plan=st.integers(0, 10**6))
def test_the_smaller_of_cap_and_plan_binds_and_zero_means_none(cap: int, plan: int) -> None:
    binding = [share for share in (cap, plan) if share]
    assert GATE.probe_effective_ppm(cap, plan) == (min(binding) if binding else 0)


@given(inflight=u64, cost=u64, bound=u64, outstanding=st.integers(0, 64))
def test_two_launches_are_always_allowed_and_a_third_only_inside_the_bound(
    inflight: int, cost: int, bound: int, outstanding: int
) -> None:
    full = bool(GATE.probe_queue_full(inflight, cost, bound, outstanding))
    assert full == (outstanding >= 2 and min(inflight + cost, U64) > bound)
    assert GATE.probe_queue_wait_ns(inflight, cost, bound) >= 20_000


@given(wait=u64, still=u64)
def test_a_queue_of_unknown_length_is_looked_at_again_before_much_of_it_can_be_lost(
    wait: int, still: int
) -> None:
    step = GATE.probe_guess_wait_ns(wait, still)
    assert step <= wait
    assert step <= max(still // 4, 20_000)
    assert step == wait or step >= 20_000, "no busy loop"


@given(launch=st.integers(20_000, 20 * MS), guess=st.integers(20_000, 20 * MS))
def test_launches_of_any_length_are_followed_by_the_next_within_a_quarter(
    launch: int, guess: int
) -> None:
    """Half of a guessed queue was slept: 5 ms behind two launches of 0.1 ms each."""
    at = looks = 0
    while at < launch:
        at += GATE.probe_guess_wait_ns(GATE.probe_queue_wait_ns(2 * guess, guess, 0), at)
        looks += 1
    assert at <= launch + max(launch // 4, 20_000)
    assert looks <= 40 or guess < launch, "a low guess has always been looked at more often"


@given(
    lengths=st.lists(st.integers(10_000, 20 * MS), min_size=200, max_size=400),
    overrun=st.integers(0, 10 * MS),
    every=st.integers(1, 4),
)
def test_what_neighbours_take_at_the_start_of_windows_is_not_charged(
    lengths: list[int], overrun: int, every: int
) -> None:
    """Each time may contain as much of a neighbour's as is ours; the price is the mean."""
    mean = sum(lengths) // len(lengths)
    sums = Arrival()
    charged = elapsed = 0
    for i, length in enumerate(lengths):
        seen = length + (min(overrun, length) if i % every == 0 else 0)
        own = GATE.probe_arrival_own_ns(byref(sums), seen, mean)
        assert seen // 2 <= own <= seen, "never less than the half that slices leave us"
        charged += own
        elapsed += seen
    assert charged <= elapsed
    if every == 1 and overrun >= max(lengths):
        assert charged <= 1.25 * sum(lengths), "half of each time was the neighbour's"


def test_times_that_are_their_prices_on_average_are_charged_in_full() -> None:
    rng = random.Random(3)
    sums = Arrival()
    lengths = [rng.choice((100_000, 10 * MS)) for _ in range(5000)]
    charged = [GATE.probe_arrival_own_ns(byref(sums), length, 5_050_000) for length in lengths]
    assert sum(charged) >= 0.85 * sum(lengths)


def test_a_program_whose_first_launches_are_its_longest_pays_at_least_half_of_them() -> None:
    sums = Arrival()
    assert all(GATE.probe_arrival_own_ns(byref(sums), 10 * MS, MS) == 5 * MS for _ in range(100))


def switch_cost(samples: list[int], before: int = 0) -> int:
    return int(GATE.probe_switch_cost((c_uint64 * len(samples))(*samples), len(samples), before))


@given(
    cost=st.integers(60_000, 900_000),
    overruns=st.lists(st.integers(0, 5 * MS), min_size=16, max_size=64),
)
def test_a_change_of_contexts_is_learned_where_a_quarter_of_the_windows_begin_in_time(
    cost: int, overruns: list[int]
) -> None:
    samples = [cost + (0 if i % 4 == 0 else over) for i, over in enumerate(overruns)]
    got = switch_cost(samples)
    counted = [one for one in samples if one <= 2 * MS]
    if len(counted) < 16:
        assert got == 0, "too few times to say anything"
    else:
        last = sorted(counted[-16:])
        assert got == last[3]


@given(idle=st.integers(0, 3), cost=st.integers(60_000, 900_000))
def test_windows_after_an_idle_neighbour_do_not_count(idle: int, cost: int) -> None:
    """The GPU did not change, or had changed before."""
    samples = [3_000] * 50 + [25_000] * idle + [cost] * (16 - idle)
    assert switch_cost(samples) == cost


def test_the_count_of_times_may_wrap() -> None:
    samples = [100_000] * 16
    assert switch_cost([*samples, *samples], before=2**32 - 20) == 100_000


windows = st.builds(
    lambda origin, period, share, switch: Window(
        origin, period, max(1, period * share // 100), switch
    ),
    st.integers(0, 10 * S),
    st.integers(2 * MS, 100 * MS),
    st.integers(1, 100),
    st.sampled_from([0, 50_000, 200_000, 5 * MS]),
)


@given(
    w=windows,
    now=st.integers(0, 20 * S),
    inflight=st.integers(0, 50 * MS),
    cost=st.integers(1, 300 * MS),
)
def test_a_wait_for_the_turn_ends_at_the_start_of_a_window(
    w: Window, now: int, inflight: int, cost: int
) -> None:
    wait = GATE.probe_turn_wait_ns(byref(w), now, inflight, cost)
    if wait:
        assert wait <= w.period_ns
        assert (now + wait - w.origin_ns) % w.period_ns == 0
        # With the queue drained, the start of the window is always good enough: no launch waits for ever.
        assert GATE.probe_turn_wait_ns(byref(w), now + wait, 0, cost) == 0
    else:
        phase = (now - w.origin_ns) % w.period_ns
        assert phase < w.quantum_ns
        usable = w.quantum_ns - min(w.switch_ns, w.quantum_ns)
        if w.quantum_ns < w.period_ns and cost < 2 * usable:
            # At least half of the launch runs in its own window, after the change of contexts.
            assert max(phase + inflight, w.switch_ns) + cost // 2 <= w.quantum_ns


@given(w=windows, now=st.integers(0, 20 * S))
def test_nothing_begins_before_the_change_of_contexts_is_over(w: Window, now: int) -> None:
    begins = GATE.probe_window_begins_ns(byref(w), now)
    phase = (now - w.origin_ns) % w.period_ns
    if phase < w.quantum_ns:
        assert begins == max(now, now - phase + w.switch_ns)
    else:
        assert begins == now, "outside of the window nothing is launched"


@given(
    share=st.integers(1, 99),
    period=st.integers(2 * MS, 1000 * MS),
    burst=st.integers(0, 50 * MS),
    kernel=st.sampled_from([20_000, 100_000, MS]),
)
def test_a_window_can_be_used_up_whatever_the_share_and_the_period_are(
    share: int, period: int, burst: int, kernel: int
) -> None:
    """The clock restarts at the window, so its tolerance has to hold what the window gives: the GPU
    time that it admits within one window is the window's, to one launch."""
    quantum = period * share // 100
    assume(quantum >= kernel)
    tolerance = GATE.probe_burst_ns(burst, period)
    assert tolerance >= max(burst, period)
    now = 10 * S
    price = GATE.probe_price_ns(kernel, share * 10_000)
    tat, used = now, 0
    while used + kernel <= quantum and GATE.probe_cap_wait_ns(tat, now + used, tolerance) == 0:
        tat = GATE.probe_tat_after_ns(tat, now + used, price)
        used += kernel
    assert used > quantum - kernel


@given(
    paid=st.lists(st.integers(1, 10 * MS), min_size=1, max_size=8),
    late=st.integers(0, 300 * MS),
    period=st.integers(2 * MS, 100 * MS),
    expected=st.integers(0, 20 * MS),
)
def test_only_the_oldest_of_what_is_in_flight_may_be_nearly_done(
    paid: list[int], late: int, period: int, expected: int
) -> None:
    inflight = sum(paid)
    expected = min(expected, inflight)
    got = GATE.probe_honest_ns(expected, inflight, paid[0], late, period)
    assert expected <= got <= inflight
    if late <= 2 * period:
        assert got >= inflight - paid[0]
    elif late > 2 * period + 1:
        assert got == expected, "work that waits for this very launch is not waited for"


@given(w=st.builds(Window, u64, u64, u64, u64), now=u64, inflight=u64, cost=u64)
def test_a_torn_or_hostile_plan_never_hangs_a_tenant(
    w: Window, now: int, inflight: int, cost: int
) -> None:
    wait = GATE.probe_turn_wait_ns(byref(w), now, inflight, cost)
    valid = w.period_ns > 0 and 0 < w.quantum_ns <= w.period_ns
    assert wait <= (w.period_ns if valid else 0)


@given(samples=st.lists(st.integers(900_000, 1_100_000), min_size=1, max_size=200))
def test_an_estimate_stays_within_its_samples(samples: list[int]) -> None:
    estimate = Estimate()
    for sample in samples:
        GATE.probe_estimate_after(byref(estimate), sample)
    assert min(samples) - 1 <= estimate.cost_ns <= max(samples) + 1


@given(light=st.integers(1_000, 10**6), factor=st.integers(5, 1000), period=st.integers(2, 16))
def test_a_shape_whose_launches_differ_is_timed_one_by_one(
    light: int, factor: int, period: int
) -> None:
    heavy = light * factor
    assume(heavy > 400_000)
    estimate = Estimate()
    for i in range(period * 40):
        GATE.probe_estimate_after(byref(estimate), heavy if i % period == 0 else light)
        if i > 2 * period:
            assert estimate.wary > 0, "one surprise in each round"
    assert light <= estimate.cost_ns <= heavy


def test_small_differences_are_averaged_and_leave_nobody_wary() -> None:
    estimate = Estimate()
    for i in range(1000):
        GATE.probe_estimate_after(byref(estimate), 1 * MS if i % 2 else 3 * MS)
        assert estimate.wary == 0
    assert abs(estimate.cost_ns - 2 * MS) < MS // 8


@given(elapsed=times, own=times, active=st.integers(1, 16))
def test_of_a_contended_time_the_own_part_is_never_more_nor_less_than_a_fair_one(
    elapsed: int, own: int, active: int
) -> None:
    got = GATE.probe_own_ns(elapsed, own, active)
    assert elapsed // active <= got <= elapsed
    if elapsed <= own or active == 1:
        assert got == elapsed


@given(elapsed=times, gap=times)
def test_the_gap_between_calls_takes_at_most_half(elapsed: int, gap: int) -> None:
    got = GATE.probe_less_gap_ns(elapsed, gap)
    assert elapsed - gap <= got <= elapsed
    assert 2 * got >= elapsed


@given(true=times, part=times, whole=times)
def test_a_part_of_what_was_paid_is_that_part_of_the_time(true: int, part: int, whole: int) -> None:
    got = GATE.probe_part_ns(true, part, whole)
    want = true if part >= whole else true * part // whole
    assert abs(got - want) <= 1 + want // 10**12


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((1, 1, 1), (32, 1, 1), 0), ((1, 1, 1), (1, 32, 1), 0)),
        (((2, 1, 1), (32, 1, 1), 0), ((1, 2, 1), (32, 1, 1), 0)),
        (((1, 1, 1), (32, 1, 1), 0), ((1, 1, 1), (32, 1, 1), 1024)),
    ],
    ids=["block dimensions swapped", "grid dimensions swapped", "shared memory differs"],
)
def test_launches_of_different_shape_have_different_keys(first: tuple, second: tuple) -> None:
    keys = set()
    for grid, block, shared in (first, second):
        shape = Shape((c_uint32 * 3)(*grid), (c_uint32 * 3)(*block), shared)
        keys.add(GATE.probe_cost_key(0x1000, byref(shape), 0))
    assert len(keys) == 2


def test_a_contended_sample_is_an_upper_bound_only() -> None:
    key = GATE.probe_cost_key(0x2000, None, 0)
    GATE.probe_cost_learn(key, 2 * MS, 0)
    assert GATE.probe_cost_ns(key) == 2 * MS, "unknown: better than nothing"
    GATE.probe_cost_learn(key, 3 * MS, 0)
    assert GATE.probe_cost_ns(key) == 2 * MS, "higher than what is known: says nothing"
    GATE.probe_cost_learn(key, MS, 0)
    assert GATE.probe_cost_ns(key) == MS, "lower: the truth cannot be higher"


# --- discrete-event runs: an exact GPU, the gate, synthetic kernels -------------------------------


@dataclass
class Run:
    """One tenant alone on a GPU that executes in order; returns its share of the measured window."""

    share_ppm: int
    kernel_ns: int
    sync: bool
    seconds: int = 20
    burst_ns: int = 20 * MS
    host_gap_ns: int = 10_000

    def share(self) -> float:
        now = tat = 0
        free_at = 0  # when the GPU has done everything queued
        queue: list[tuple[int, int]] = []  # (done_at, cost)
        used_from = 2 * S
        used = 0
        end = used_from + self.seconds * S
        while now < end:
            price = GATE.probe_price_ns(self.kernel_ns, self.share_ppm)
            before, tat = tat, GATE.probe_tat_after_ns(tat, now, price)
            now += GATE.probe_cap_wait_ns(before, now, self.burst_ns)
            queue = [item for item in queue if item[0] > now]
            while queue and GATE.probe_queue_full(
                sum(cost for _, cost in queue), self.kernel_ns, 4 * MS, len(queue)
            ):
                now = queue.pop(0)[0]
            start = max(now, free_at)
            free_at = start + self.kernel_ns
            queue.append((free_at, self.kernel_ns))
            used += max(0, min(free_at, end) - max(start, used_from))
            now = free_at + self.host_gap_ns if self.sync else now + self.host_gap_ns
        return used / (end - used_from)


@pytest.mark.parametrize(
    "kernel_ns", [20_000, MS, 10 * MS, 100 * MS], ids=lambda ns: f"{ns / MS:g} ms"
)
@pytest.mark.parametrize("share", [10, 25, 50, 75, 90], ids=lambda share: f"{share} percent")
@pytest.mark.parametrize("sync", [False, True], ids=["queued", "synchronised"])
def test_a_tenant_gets_its_share_of_an_exact_gpu(share: int, kernel_ns: int, sync: bool) -> None:
    run = Run(share * 10_000, kernel_ns, sync, seconds=5 if kernel_ns < MS else 20)
    reachable = kernel_ns / (kernel_ns + run.host_gap_ns) if sync else 1.0
    want = min(share / 100, reachable)
    # One kernel more or less at the edges of the window, and half a point.
    assert abs(run.share() - want) <= 0.005 + kernel_ns / (run.seconds * S)


def test_two_tenants_with_windows_take_turns_without_overlap_beyond_half_a_launch() -> None:
    rng = random.Random(7)
    period, origin = 10 * MS, 5 * S
    a = Window(origin, period, 3 * MS)
    b = Window(origin + 3 * MS, period, 7 * MS)
    overlap = total = 0
    for window, kernel in ((a, 400_000), (b, 900_000)):
        now = origin + rng.randrange(period)
        end = origin + 5 * S
        while now < end:
            wait = GATE.probe_turn_wait_ns(byref(window), now, 0, kernel)
            now += wait
            left = GATE.probe_window_left_ns(byref(window), now)
            overlap += max(0, kernel - left)
            total += kernel
            now += kernel
    assert overlap / total < 0.08


def test_the_launch_path_reads_a_cost_only_for_the_key_of_its_entry() -> None:
    key, other = (GATE.probe_cost_key(handle, None, 0) for handle in (0x3000, 0x4000))
    more_than_any_credit = 1 << 40
    assert GATE.probe_cost_pass_ns(key, key) > more_than_any_credit, "fresh"
    GATE.probe_cost_learn(key, MS, 1)
    assert GATE.probe_cost_pass_ns(key, key) > more_than_any_credit, "launches are still due"
    for _ in range(8):
        GATE.probe_cost_tried(key)
    assert GATE.probe_cost_pass_ns(key, key) == MS
    assert GATE.probe_cost_pass_ns(key, other) > more_than_any_credit, "another shape's entry"
    GATE.probe_cost_relearn(key)
    assert GATE.probe_cost_pass_ns(key, key) > more_than_any_credit, "to be timed again"


def test_a_fresh_entry_in_the_place_of_another_has_no_cost_for_either() -> None:
    first = 5
    GATE.probe_cost_learn(first, MS, 1)
    for _ in range(8):
        GATE.probe_cost_tried(first)
    keys = [first + (i << 52) for i in range(1, 10)]  # all start at the same place of the table
    for key in keys:
        GATE.probe_cost_pass_ns(key, key)
    assert GATE.probe_cost_ns(first) == (1 << 64) - 1, "evicted"
    assert all(GATE.probe_cost_pass_ns(key, key) > 1 << 40 for key in keys[-1:])
