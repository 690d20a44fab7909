/* SPDX-License-Identifier: Apache-2.0 */
/* The inline functions of gate.h and the cost table as a library, so that Python can test their properties. */
#include "interpose/compute/rules/gate.h"
#include "interpose/compute/rules/switch.h"

#include "interpose/compute/rules/cost.c"
#include "interpose/compute/rules/fair.c"
#define table kin_entries
#define probe kin_probe
#include "interpose/compute/rules/kin.c"
#undef table
#undef probe

#define PROBE __attribute__((visibility("default")))

PROBE uint64_t probe_price_ns(uint64_t cost_ns, uint32_t ppm)
{
	return gate_price_ns(cost_ns, ppm);
}

PROBE uint64_t probe_tat_after_ns(uint64_t tat_ns, uint64_t now_ns, uint64_t price_ns)
{
	return gate_tat_after_ns(tat_ns, now_ns, price_ns);
}

PROBE uint64_t probe_cap_wait_ns(uint64_t tat_ns, uint64_t now_ns, uint64_t burst_ns)
{
	return gate_cap_wait_ns(tat_ns, now_ns, burst_ns);
}

PROBE uint32_t probe_effective_ppm(uint32_t cap_ppm, uint32_t plan_ppm)
{
	return gate_effective_ppm(cap_ppm, plan_ppm);
}

PROBE int probe_queue_full(uint64_t inflight_ns, uint64_t cost_ns, uint64_t bound_ns, uint32_t outstanding)
{
	return gate_queue_full(inflight_ns, cost_ns, bound_ns, outstanding);
}

PROBE uint64_t probe_queue_wait_ns(uint64_t inflight_ns, uint64_t cost_ns, uint64_t bound_ns)
{
	return gate_queue_wait_ns(inflight_ns, cost_ns, bound_ns);
}

PROBE uint64_t probe_guess_wait_ns(uint64_t wait_ns, uint64_t still_ns)
{
	return gate_guess_wait_ns(wait_ns, still_ns);
}

PROBE uint64_t probe_arrival_own_ns(struct gate_arrival *sums, uint64_t elapsed_ns, uint64_t paid_ns)
{
	*sums = gate_arrival_after(*sums, elapsed_ns, paid_ns);
	return gate_arrival_own_ns(*sums, elapsed_ns);
}

PROBE uint32_t probe_switch_cost(const uint64_t *sample_ns, uint32_t count, uint32_t before)
{
	struct switch_samples s = { .count = before };
	uint32_t cost_ns = 0;

	for (uint32_t i = 0; i < count; i++)
		cost_ns = switch_cost_after(&s, sample_ns[i]);
	return cost_ns;
}

PROBE uint64_t probe_turn_wait_ns(const struct gate_window *w, uint64_t now_ns, uint64_t inflight_ns, uint64_t cost_ns)
{
	return gate_turn_wait_ns(w, now_ns, inflight_ns, cost_ns);
}

PROBE uint64_t probe_window_begins_ns(const struct gate_window *w, uint64_t now_ns)
{
	return gate_window_begins_ns(w, now_ns);
}

PROBE uint64_t probe_burst_ns(uint64_t burst_ns, uint64_t period_ns)
{
	return gate_burst_ns(burst_ns, period_ns);
}

PROBE uint64_t probe_honest_ns(uint64_t expected_ns, uint64_t inflight_ns, uint64_t oldest_ns, uint64_t late_ns,
                               uint64_t period_ns)
{
	return gate_honest_ns(expected_ns, inflight_ns, oldest_ns, late_ns, period_ns);
}

PROBE uint64_t probe_window_left_ns(const struct gate_window *w, uint64_t now_ns)
{
	return gate_window_left_ns(w, now_ns);
}

PROBE void probe_estimate_after(struct gate_estimate *e, uint64_t sample_ns)
{
	*e = gate_estimate_after(*e, sample_ns);
}

PROBE uint64_t probe_own_ns(uint64_t elapsed_ns, uint64_t own_ns, uint32_t active)
{
	return gate_own_ns(elapsed_ns, own_ns, active);
}

PROBE uint64_t probe_less_gap_ns(uint64_t elapsed_ns, uint64_t gap_ns)
{
	return gate_less_gap_ns(elapsed_ns, gap_ns);
}

PROBE uint64_t probe_part_ns(uint64_t true_ns, uint64_t part_ns, uint64_t whole_ns)
{
	return gate_part_ns(true_ns, part_ns, whole_ns);
}

PROBE uint64_t probe_cost_key(uint64_t handle, const struct cost_shape *shape, int device)
{
	return cost_key((const void *)(uintptr_t)handle, shape, device);
}

PROBE void probe_cost_learn(uint64_t key, uint64_t sample_ns, int exact)
{
	cost_learn(cost_entry(key), sample_ns, exact != 0);
}

PROBE uint64_t probe_cost_ns(uint64_t key)
{
	struct cost_entry *entry = cost_lookup(key);

	return entry ? entry->cost_ns : UINT64_MAX;
}

PROBE void probe_cost_tried(uint64_t key)
{
	cost_tried(cost_entry(key));
}

PROBE void probe_cost_relearn(uint64_t key)
{
	cost_relearn(key);
}

/* What the launch path reads for `key` in the entry of the key `in`. */
PROBE uint64_t probe_cost_pass_ns(uint64_t in, uint64_t key)
{
	return cost_pass_ns(cost_entry(in), key);
}

PROBE uint64_t probe_tolerance_ns(uint64_t burst_ns, uint64_t ahead_ns)
{
	return gate_tolerance_ns(burst_ns, ahead_ns);
}

PROBE uint64_t probe_rest_ns(uint64_t elapsed_ns, uint64_t taken_ns)
{
	return gate_rest_ns(elapsed_ns, taken_ns);
}

PROBE uint64_t probe_fair_look(struct fair_account *accounts, const struct fair_reading *readings, uint32_t count,
                               uint32_t self, uint64_t now_ns, uint64_t *largest_ns)
{
	return fair_look(accounts, readings, count, self, now_ns, largest_ns);
}

PROBE uint64_t probe_kin_ns(uint64_t handle, const struct cost_shape *shape, int *ret_near)
{
	struct kin kin = kin_of((const void *)(uintptr_t)handle, shape, 0);
	struct kin_price price = kin_price(&kin);

	*ret_near = price.near;
	return price.ns;
}

PROBE void probe_kin_learn(uint64_t handle, const struct cost_shape *shape, uint64_t sample_ns, int shared)
{
	struct kin kin = kin_of((const void *)(uintptr_t)handle, shape, 0);

	if (shared)
		kin_learn_shared(&kin, sample_ns);
	else
		kin_learn(&kin, sample_ns);
}

PROBE void probe_kin_forget_all(void)
{
	kin_forget_all();
}
