/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the compute cap: pure functions over numbers, time is an argument.
 *
 * Three conditions are checked before work is launched, each giving the nanoseconds still to wait (0 = go):
 *   cap     may the grant's virtual clock take this cost now?          (GCRA, one word per grant and GPU)
 *   queue   is too much of our work already in the driver's queue?     (in-flight bound)
 *   turn    is it our window of the period, and does the work fit it?  (time-division lease)
 * docs/node/throttle.md derives them; tests/properties/test_gate.py states what must always hold.
 */
#ifndef SLUICE_GATE_H
#define SLUICE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#define GATE_PPM UINT64_C(1000000)
#define GATE_POLL_NS UINT64_C(20000) /* no use in querying the driver more often */

/* The finaliser of splitmix64: every input bit reaches every output bit. */
static inline uint64_t gate_mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static inline uint64_t gate_add(uint64_t a, uint64_t b)
{
	uint64_t sum = a + b;

	return sum < a ? UINT64_MAX : sum;
}

/* Wall time by which `cost_ns` of GPU time moves the clock of a tenant with this share. 0 ppm = uncapped: no charge. */
static inline uint64_t gate_price_ns(uint64_t cost_ns, uint32_t share_ppm)
{
	if (share_ppm == 0)
		return 0;
	/* Above five hours of GPU time in one launch the product would overflow: saturate, the cap still holds. */
	if (cost_ns > UINT64_MAX / GATE_PPM)
		return UINT64_MAX / 2;
	return cost_ns * GATE_PPM / share_ppm;
}

/* The virtual clock after paying: an idle tenant restarts at `now`, so that idling earns no more than the burst. */
static inline uint64_t gate_tat_after_ns(uint64_t tat_ns, uint64_t now_ns, uint64_t price_ns)
{
	return gate_add(tat_ns > now_ns ? tat_ns : now_ns, price_ns);
}

/* `tat_ns` is the clock *before* our own price: earlier arrivals pay first. */
static inline uint64_t gate_cap_wait_ns(uint64_t tat_ns, uint64_t now_ns, uint64_t burst_ns)
{
	uint64_t allowed_ns = gate_add(now_ns, burst_ns);

	return tat_ns > allowed_ns ? tat_ns - allowed_ns : 0;
}

/* Wall time by which the clock may run ahead where windows of this period are in force (0 = none are). A tenant waits
 * nearly a period for a small window, and the clock restarts at the window: with less than a period it could not use up
 * what the window gives it. */
static inline uint64_t gate_burst_ns(uint64_t burst_ns, uint64_t period_ns)
{
	return burst_ns > period_ns ? burst_ns : period_ns;
}

#define GATE_AHEAD_NS UINT64_C(10000000) /* at this lead over its siblings a process has half of the burst left */

/* The burst left to a process that has had `ahead_ns` more than another waiting one of its grant. Never zero: among
 * several that are ahead, the one with the smaller lead still goes first. */
static inline uint64_t gate_tolerance_ns(uint64_t burst_ns, uint64_t ahead_ns)
{
	if (ahead_ns == 0)
		return burst_ns;
	return (uint64_t)((double)burst_ns * ((double)GATE_AHEAD_NS / ((double)GATE_AHEAD_NS + (double)ahead_ns)));
}

/* The share that applies now: the smaller of the own cap and the plan's share; 0 = neither. */
static inline uint32_t gate_effective_ppm(uint32_t cap_ppm, uint32_t plan_ppm)
{
	if (cap_ppm == 0 || plan_ppm == 0)
		return cap_ppm | plan_ppm;
	return cap_ppm < plan_ppm ? cap_ppm : plan_ppm;
}

/* True if this launch must wait for outstanding work. Two launches are always allowed, or a kernel longer than the
 * bound would leave the GPU idle between two launches. */
static inline bool gate_queue_full(uint64_t inflight_ns, uint64_t cost_ns, uint64_t bound_ns, uint32_t outstanding)
{
	return outstanding >= 2 && gate_add(inflight_ns, cost_ns) > bound_ns;
}

/* How long to sleep before checking a full queue again: half of the excess, so that the queue never runs dry
 * meanwhile. */
static inline uint64_t gate_queue_wait_ns(uint64_t inflight_ns, uint64_t cost_ns, uint64_t bound_ns)
{
	uint64_t wanted_ns = gate_add(inflight_ns, cost_ns);
	uint64_t excess_ns = wanted_ns > bound_ns ? wanted_ns - bound_ns : 0;
	uint64_t half_ns = (excess_ns < inflight_ns ? excess_ns : inflight_ns) / 2;

	return half_ns > GATE_POLL_NS ? half_ns : GATE_POLL_NS;
}

struct gate_window {
	uint64_t origin_ns; /* a window of ours starts at origin + k * period */
	uint64_t period_ns;
	uint64_t quantum_ns;
	uint64_t switch_ns; /* the window begins with a change of contexts: nothing runs for so long */
};

/* A plan that a tenant can follow; any other value (torn read, zero, nonsense) is treated as "no turns". */
static inline bool gate_window_valid(const struct gate_window *w)
{
	return w->period_ns > 0 && w->quantum_ns > 0 && w->quantum_ns <= w->period_ns;
}

/* Position of `now` in the period; the origin may lie ahead of it. */
static inline uint64_t gate_phase_ns(const struct gate_window *w, uint64_t now_ns)
{
	if (now_ns >= w->origin_ns)
		return (now_ns - w->origin_ns) % w->period_ns;
	uint64_t ahead_ns = (w->origin_ns - now_ns) % w->period_ns;

	return ahead_ns ? w->period_ns - ahead_ns : 0;
}

/* The moment before which nothing launched at `now` can begin, because the change of contexts takes so long. */
static inline uint64_t gate_window_begins_ns(const struct gate_window *w, uint64_t now_ns)
{
	uint64_t phase_ns = gate_phase_ns(w, now_ns);

	return phase_ns < w->switch_ns && phase_ns < w->quantum_ns ? gate_add(now_ns, w->switch_ns - phase_ns) : now_ns;
}

/*
 * Time until the tenant may launch under the lease. Inside the window a launch goes if at least half of it will run
 * inside (after the change of contexts and the queued work), so that overruns and early stops cancel out; a launch
 * longer than two windows starts anywhere in its own with an empty queue, and the cap accounts for its debt.
 */
static inline uint64_t gate_turn_wait_ns(const struct gate_window *w, uint64_t now_ns, uint64_t inflight_ns,
                                         uint64_t cost_ns)
{
	if (!gate_window_valid(w))
		return 0;
	uint64_t phase_ns = gate_phase_ns(w, now_ns);

	if (phase_ns >= w->quantum_ns)
		return w->period_ns - phase_ns;
	if (w->quantum_ns == w->period_ns)
		return 0; /* the whole period is ours: there is no other window to overrun into */
	uint64_t switch_ns = w->switch_ns < w->quantum_ns ? w->switch_ns : w->quantum_ns;
	uint64_t begins_ns = gate_add(phase_ns, inflight_ns);

	if (begins_ns < switch_ns)
		begins_ns = switch_ns;
	if (inflight_ns == 0 && cost_ns / 2 >= w->quantum_ns - switch_ns)
		return 0;
	if (gate_add(begins_ns, cost_ns / 2) <= w->quantum_ns)
		return 0;
	return w->period_ns - phase_ns;
}

/* Time left in the window that contains `now`; 0 outside of it. */
static inline uint64_t gate_window_left_ns(const struct gate_window *w, uint64_t now_ns)
{
	uint64_t phase_ns = gate_phase_ns(w, now_ns);

	return phase_ns < w->quantum_ns ? w->quantum_ns - phase_ns : 0;
}

/*
 * The end of the queue, for the turn: as planned (`expected_ns`), but what is in flight less its oldest record is
 * certainly still to come, because only the oldest can have begun. So a late begin, after a neighbour's overrun, is
 * noticed with the next record. Work that should have been over for two periods (`late_ns`) may wait for this very
 * launch: it no longer counts.
 */
static inline uint64_t gate_honest_ns(uint64_t expected_ns, uint64_t inflight_ns, uint64_t oldest_ns, uint64_t late_ns,
                                      uint64_t period_ns)
{
	uint64_t certain_ns = inflight_ns > oldest_ns ? inflight_ns - oldest_ns : 0;

	return certain_ns > expected_ns && late_ns / 2 <= period_ns ? certain_ns : expected_ns;
}

/* --- what follows from a measured time ---------------------------------------------------------------------------- */

#define GATE_WARY_NS UINT64_C(100000) /* smaller surprises are cheaper to average out than to time */
#define GATE_WARY_LAUNCHES 1000       /* number of launches in a row that are timed after a surprise */

/* The cost of one launch of a shape. The same shape may do ten or a thousand times the work from one launch to the
 * next, so the estimate is a plain mean of the samples, and a shape whose times jump is timed at each launch. */
struct gate_estimate {
	uint64_t cost_ns;
	uint32_t samples; /* saturating */
	uint32_t wary;    /* launches still to be timed one by one */
};

static inline struct gate_estimate gate_estimate_after(struct gate_estimate e, uint64_t sample_ns)
{
	if (sample_ns == 0)
		sample_ns = 1; /* shorter than one tick of the event clock */
	if (e.samples == 0)
		return (struct gate_estimate){ .cost_ns = sample_ns, .samples = 1 };
	uint64_t larger_ns = sample_ns > e.cost_ns ? sample_ns : e.cost_ns;
	uint64_t smaller_ns = sample_ns > e.cost_ns ? e.cost_ns : sample_ns;

	if (larger_ns / 4 > smaller_ns && larger_ns > GATE_WARY_NS)
		e.wary = GATE_WARY_LAUNCHES;
	else if (e.wary)
		e.wary--;
	/* 1/2, 1/3, 1/4 … 1/16: a mean at first, then an exponentially weighted one. */
	uint64_t weight = e.samples < 15 ? e.samples + 1 : 16;

	if (sample_ns >= e.cost_ns)
		e.cost_ns += (sample_ns - e.cost_ns) / weight;
	else
		e.cost_ns -= (e.cost_ns - sample_ns) / weight;
	if (e.cost_ns == 0)
		e.cost_ns = 1;
	if (e.samples < UINT32_MAX)
		e.samples++;
	return e;
}

/* The part of the time between two events in which the GPU worked for us: all of it in our own window (`own_ns`), and
 * an equal part of the time after its end, where contexts share the GPU in slices. */
static inline uint64_t gate_own_ns(uint64_t elapsed_ns, uint64_t own_ns, uint32_t active)
{
	if (elapsed_ns <= own_ns || active <= 1)
		return elapsed_ns;
	return own_ns + (elapsed_ns - own_ns) / active;
}

/* The rest of a time after others took `taken_ns` of it. */
static inline uint64_t gate_rest_ns(uint64_t elapsed_ns, uint64_t taken_ns)
{
	return elapsed_ns > taken_ns ? elapsed_ns - taken_ns : 0;
}

/* The longest that work of this cost should take where contexts take turns in slices, with a margin for the cost. */
static inline uint64_t gate_sliced_ns(uint64_t cost_ns, uint64_t slice_ns, uint32_t contexts)
{
	return (2 * cost_ns + 2 * slice_ns) * contexts;
}

/* On an idle stream the time between two events also includes the host's time from one call to the next. */
static inline uint64_t gate_less_gap_ns(uint64_t elapsed_ns, uint64_t gap_ns)
{
	return elapsed_ns - (gap_ns < elapsed_ns / 2 ? gap_ns : elapsed_ns / 2);
}

/* `part_ns` of `whole_ns` was paid by us; returns our part of the measured `true_ns`. */
static inline uint64_t gate_part_ns(uint64_t true_ns, uint64_t part_ns, uint64_t whole_ns)
{
	if (part_ns >= whole_ns)
		return true_ns;
	return (uint64_t)((double)true_ns * ((double)part_ns / (double)whole_ns));
}

#endif
