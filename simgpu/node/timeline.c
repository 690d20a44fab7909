/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler of a simulated GPU: see timeline.h. No clock, no lock, no allocation. */
#include "simgpu/node/timeline.h"

#include <stddef.h>
#include <string.h>

static const struct sim_op *front(const struct sim_schedule *s, const struct sim_world *world, uint32_t c)
{
	const struct sim_lane *lane = &s->lane[c];

	if (!lane->in_use)
		return NULL;
	/* Pairs with the owner's release store of head: the operation is filled before it can be seen. */
	if (lane->tail >= __atomic_load_n(&world->ring[c].head, __ATOMIC_ACQUIRE))
		return NULL;
	return &world->ring[c].op[lane->tail % SIM_RING];
}

/* Move the clock; buckets that are reused start empty. */
static void move_to(struct sim_schedule *s, uint64_t to_ns)
{
	uint64_t from_bucket = s->now_ns / SIM_BUCKET_NS, to_bucket = to_ns / SIM_BUCKET_NS;

	if (to_bucket - from_bucket > SIM_BUCKETS)
		from_bucket = to_bucket - SIM_BUCKETS;
	for (uint64_t b = from_bucket + 1; b <= to_bucket; b++) {
		s->bucket_ns[b % SIM_BUCKETS] = 0;
		for (unsigned c = 0; c < SIM_CONTEXTS; c++)
			s->lane[c].bucket_ns[b % SIM_BUCKETS] = 0;
	}
	s->now_ns = to_ns;
}

/* Give context c the device for `ns`: totals and history, bucket by bucket as the clock enters them. */
static void spend(struct sim_schedule *s, uint32_t c, uint64_t ns)
{
	s->busy_ns += ns;
	s->lane[c].busy_ns += ns;
	while (ns > 0) {
		uint64_t edge_ns = (s->now_ns / SIM_BUCKET_NS + 1) * SIM_BUCKET_NS;
		uint64_t part_ns = edge_ns - s->now_ns < ns ? edge_ns - s->now_ns : ns;
		unsigned b = (unsigned)(s->now_ns / SIM_BUCKET_NS % SIM_BUCKETS);

		s->bucket_ns[b] += (uint32_t)part_ns;
		s->lane[c].bucket_ns[b] += (uint32_t)part_ns;
		move_to(s, s->now_ns + part_ns);
		ns -= part_ns;
	}
}

static bool instant(const struct sim_op *op)
{
	return op->kind == SIM_OP_STAMP || op->duration_ns == 0;
}

/* Run operations that take no time, where they are at the front and due. A context's commands are read while it has the
 * device, so an event has its time after the change of contexts. */
static void run_stamps(struct sim_schedule *s, const struct sim_world *world)
{
	uint32_t c = s->loaded;
	const struct sim_op *op;

	if (s->switch_left_ns)
		return;
	while ((op = front(s, world, c)) && op->submit_ns <= s->now_ns && instant(op)) {
		if (op->kind == SIM_OP_STAMP && world->stamp)
			world->stamp(world->context, s->lane[c].client, op->cell, s->now_ns);
		s->lane[c].tail++;
		s->lane[c].done_ns = 0;
	}
}

/* The context that has the device now: the current one while its slice lasts, else the next with work; -1 = idle. */
static int pick(struct sim_schedule *s, const struct sim_world *world, bool *ret_alone, uint64_t *ret_next_ns)
{
	uint32_t ready = 0;
	int first_after = -1, first = -1;
	bool current_ready = false;

	*ret_next_ns = SIM_FOREVER;
	for (uint32_t c = 0; c < SIM_CONTEXTS; c++) {
		const struct sim_op *op = front(s, world, c);

		if (!op)
			continue;
		if (op->submit_ns > s->now_ns) {
			if (op->submit_ns < *ret_next_ns)
				*ret_next_ns = op->submit_ns;
			continue;
		}
		ready++;
		if (first < 0)
			first = (int)c;
		if (first_after < 0 && c > s->current)
			first_after = (int)c;
		if (c == s->current)
			current_ready = true;
	}
	*ret_alone = ready == 1;
	if (ready == 0)
		return -1;
	if (current_ready && (s->slice_left_ns > 0 || ready == 1)) {
		if (s->slice_left_ns == 0)
			s->slice_left_ns = world->slice_ns;
		return (int)s->current;
	}
	s->current = (uint32_t)(first_after >= 0 ? first_after : first);
	s->slice_left_ns = world->slice_ns;
	return (int)s->current;
}

/* One step; false when `until_ns` is reached. */
static bool step(struct sim_schedule *s, const struct sim_world *world, uint64_t until_ns)
{
	uint64_t next_ns, run_ns;
	bool alone;

	run_stamps(s, world);
	int c = pick(s, world, &alone, &next_ns);

	if (c < 0) {
		uint64_t to_ns = next_ns < until_ns ? next_ns : until_ns;

		if (to_ns > s->now_ns)
			move_to(s, to_ns);
		return s->now_ns < until_ns;
	}
	if (s->now_ns >= until_ns)
		return false;
	if (s->loaded != (uint32_t)c) {
		bool middle = s->lane[s->loaded].in_use && s->lane[s->loaded].done_ns > 0;

		s->loaded = (uint32_t)c;
		s->switch_left_ns = world->switch_ns + (middle ? world->switch_ns / SIM_MIDDLE_COSTS : 0);
	}
	if (s->switch_left_ns) {
		uint64_t pass_ns = s->switch_left_ns < until_ns - s->now_ns ? s->switch_left_ns : until_ns - s->now_ns;

		s->switch_left_ns -= pass_ns;
		move_to(s, s->now_ns + pass_ns);
		return true;
	}
	const struct sim_op *op = front(s, world, (uint32_t)c);

	if (instant(op))
		return true; /* it was waiting for the device */
	uint64_t left_ns = op->duration_ns == SIM_FOREVER ? SIM_FOREVER : op->duration_ns - s->lane[c].done_ns;

	run_ns = left_ns < until_ns - s->now_ns ? left_ns : until_ns - s->now_ns;
	if (run_ns > s->slice_left_ns)
		run_ns = s->slice_left_ns;
	if (next_ns != SIM_FOREVER && run_ns > next_ns - s->now_ns)
		run_ns = next_ns - s->now_ns; /* another context becomes ready: schedule again then */
	spend(s, (uint32_t)c, run_ns);
	s->slice_left_ns -= run_ns;
	if (run_ns == left_ns) {
		s->lane[c].tail++;
		s->lane[c].done_ns = 0;
	} else {
		s->lane[c].done_ns += run_ns;
	}
	return true;
}

void timeline_advance(struct sim_schedule *s, const struct sim_world *world, uint64_t until_ns)
{
	while (step(s, world, until_ns))
		;
}

uint64_t timeline_expect(const struct sim_schedule *s, const struct sim_world *world, uint32_t context,
                         uint64_t sequence)
{
	struct sim_schedule copy = *s;
	struct sim_world quiet = *world;
	uint64_t horizon_ns = s->now_ns + UINT64_C(1000000000);

	quiet.stamp = NULL;
	for (;;) {
		run_stamps(&copy, &quiet);
		if (copy.lane[context].tail >= sequence)
			return copy.now_ns;
		if (!step(&copy, &quiet, horizon_ns))
			return SIM_FOREVER;
	}
}

void timeline_open(struct sim_schedule *s, uint32_t context, uint32_t client)
{
	s->lane[context] = (struct sim_lane){ .in_use = 1, .client = client };
}

void timeline_close(struct sim_schedule *s, uint32_t context)
{
	s->lane[context].in_use = 0;
	if (s->current == context)
		s->slice_left_ns = 0;
}

uint32_t timeline_utilization_permille(const struct sim_schedule *s, int client, uint64_t window_ns)
{
	uint64_t buckets = window_ns / SIM_BUCKET_NS, newest = s->now_ns / SIM_BUCKET_NS, busy_ns = 0;

	if (buckets > SIM_BUCKETS - 1)
		buckets = SIM_BUCKETS - 1;
	if (buckets == 0)
		buckets = 1;
	for (uint64_t i = 1; i <= buckets && i <= newest; i++) { /* whole buckets: the newest one is still filling */
		unsigned b = (unsigned)((newest - i) % SIM_BUCKETS);

		if (client < 0)
			busy_ns += s->bucket_ns[b];
		for (unsigned c = 0; client >= 0 && c < SIM_CONTEXTS; c++)
			if (s->lane[c].in_use && s->lane[c].client == (uint32_t)client)
				busy_ns += s->lane[c].bucket_ns[b];
	}
	uint64_t permille = busy_ns * 1000 / (buckets * SIM_BUCKET_NS);

	return permille > 1000 ? 1000 : (uint32_t)permille;
}
