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

/* Let `ns` pass in which context c has the device and context k the copy engine (-1 = none): totals and history, bucket by
 * bucket as the clock enters them. */
static void spend(struct sim_schedule *s, int c, int k, uint64_t ns)
{
	bool busy = c >= 0 || k >= 0;

	s->busy_ns += busy ? ns : 0;
	if (c >= 0)
		s->lane[c].busy_ns += ns;
	if (k >= 0)
		s->lane[k].busy_ns += ns;
	while (ns > 0) {
		uint64_t edge_ns = (s->now_ns / SIM_BUCKET_NS + 1) * SIM_BUCKET_NS;
		uint64_t part_ns = edge_ns - s->now_ns < ns ? edge_ns - s->now_ns : ns;
		unsigned b = (unsigned)(s->now_ns / SIM_BUCKET_NS % SIM_BUCKETS);

		s->bucket_ns[b] += busy ? (uint32_t)part_ns : 0;
		if (c >= 0)
			s->lane[c].bucket_ns[b] += (uint32_t)part_ns;
		if (k >= 0)
			s->lane[k].bucket_ns[b] += (uint32_t)part_ns;
		move_to(s, s->now_ns + part_ns);
		ns -= part_ns;
	}
}

static bool instant(const struct sim_op *op)
{
	return op->kind == SIM_OP_STAMP || op->duration_ns == 0;
}

static void set_copied(struct sim_schedule *s, uint32_t c, bool copied)
{
	s->copied = copied ? s->copied | UINT64_C(1) << c : s->copied & ~(UINT64_C(1) << c);
}

/* Run a context's operations that take no time, where they are at the front and due. */
static void run_instant(struct sim_schedule *s, const struct sim_world *world, uint32_t c)
{
	const struct sim_op *op;

	while ((op = front(s, world, c)) && op->submit_ns <= s->now_ns && instant(op)) {
		if (op->kind == SIM_OP_STAMP && world->stamp)
			world->stamp(world->context, s->lane[c].client, op->cell, s->now_ns);
		s->lane[c].tail++;
		s->lane[c].done_ns = 0;
	}
}

/* A context's commands are read while it has the device, so an event gets its time after the context switch; after a
 * copy, the copy engine reads them. */
static void run_stamps(struct sim_schedule *s, const struct sim_world *world)
{
	for (uint64_t left = s->copied; left; left &= left - 1)
		run_instant(s, world, (uint32_t)__builtin_ctzll(left));
	if (!s->switch_left_ns)
		run_instant(s, world, s->loaded);
}

/* One engine: the device itself, or the one for copies. */
struct engine {
	uint32_t *current;
	uint64_t *slice_left_ns;
	bool copies;
};

/* The context that has the engine now: the current one while its slice lasts, else the next with work; -1 = idle.
 * *next_ns is lowered to the moment when another operation is due. */
static int pick(const struct sim_schedule *s, const struct sim_world *world, const struct engine *e, uint64_t *next_ns)
{
	uint32_t ready = 0;
	int first_after = -1, first = -1;
	bool current_ready = false;

	for (uint32_t c = 0; c < SIM_CONTEXTS; c++) {
		const struct sim_op *op = front(s, world, c);

		if (!op)
			continue;
		if (op->submit_ns > s->now_ns) {
			if (op->submit_ns < *next_ns)
				*next_ns = op->submit_ns;
			continue;
		}
		if ((op->kind == SIM_OP_COPY && !instant(op)) != e->copies)
			continue;
		ready++;
		if (first < 0)
			first = (int)c;
		if (first_after < 0 && c > *e->current)
			first_after = (int)c;
		if (c == *e->current)
			current_ready = true;
	}
	if (ready == 0)
		return -1;
	if (current_ready && (*e->slice_left_ns > 0 || ready == 1)) {
		if (*e->slice_left_ns == 0)
			*e->slice_left_ns = world->slice_ns;
		return (int)*e->current;
	}
	*e->current = (uint32_t)(first_after >= 0 ? first_after : first);
	*e->slice_left_ns = world->slice_ns;
	return (int)*e->current;
}

/* How long the context can go on with the operation at its front. */
static uint64_t run_ns(const struct sim_schedule *s, const struct sim_world *world, int c, uint64_t slice_left_ns)
{
	const struct sim_op *op = front(s, world, (uint32_t)c);
	uint64_t left_ns = op->duration_ns == SIM_FOREVER ? SIM_FOREVER : op->duration_ns - s->lane[c].done_ns;

	return left_ns < slice_left_ns ? left_ns : slice_left_ns;
}

/* The context had its engine for `ns`. */
static void progress(struct sim_schedule *s, const struct sim_world *world, int c, const struct engine *e, uint64_t ns)
{
	const struct sim_op *op = front(s, world, (uint32_t)c);

	*e->slice_left_ns -= ns;
	s->lane[c].done_ns += ns;
	set_copied(s, (uint32_t)c, e->copies);
	if (op->duration_ns != SIM_FOREVER && s->lane[c].done_ns == op->duration_ns) {
		s->lane[c].tail++;
		s->lane[c].done_ns = 0;
	}
}

/* True if a switch from this context now would interrupt a kernel. */
static bool in_the_middle(const struct sim_schedule *s, const struct sim_world *world, uint32_t c)
{
	const struct sim_op *op = front(s, world, c);

	return op && s->lane[c].done_ns > 0 && op->kind == SIM_OP_WORK;
}

/* One step; false when `until_ns` is reached. */
static bool step(struct sim_schedule *s, const struct sim_world *world, uint64_t until_ns)
{
	struct engine device = { &s->current, &s->slice_left_ns, false };
	struct engine copies = { &s->copier, &s->copy_left_ns, true };
	uint64_t next_ns = until_ns;

	run_stamps(s, world);
	int c = pick(s, world, &device, &next_ns), k = pick(s, world, &copies, &next_ns);

	if (s->now_ns >= until_ns)
		return false;
	if (c < 0 && k < 0) {
		move_to(s, next_ns);
		return s->now_ns < until_ns;
	}
	if (c >= 0 && s->loaded != (uint32_t)c) {
		bool middle = in_the_middle(s, world, s->loaded);

		s->loaded = (uint32_t)c;
		s->switch_left_ns = world->switch_ns + (middle ? world->switch_ns / SIM_MIDDLE_COSTS : 0);
	}
	bool changes = c >= 0 && s->switch_left_ns > 0;

	if (c >= 0 && !changes && instant(front(s, world, (uint32_t)c)))
		return true; /* it was waiting for the device */
	/* until another operation is due: schedule again then */
	uint64_t pass_ns = next_ns - s->now_ns;
	uint64_t device_ns = c < 0 ? pass_ns : changes ? s->switch_left_ns : run_ns(s, world, c, s->slice_left_ns);
	uint64_t copy_ns = k < 0 ? pass_ns : run_ns(s, world, k, s->copy_left_ns);

	if (device_ns < pass_ns)
		pass_ns = device_ns;
	if (copy_ns < pass_ns)
		pass_ns = copy_ns;
	spend(s, changes ? -1 : c, k, pass_ns);
	if (changes)
		s->switch_left_ns -= pass_ns;
	else if (c >= 0)
		progress(s, world, c, &device, pass_ns);
	if (k >= 0)
		progress(s, world, k, &copies, pass_ns);
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
	set_copied(s, context, false);
}

void timeline_close(struct sim_schedule *s, uint32_t context)
{
	s->lane[context].in_use = 0;
	if (s->current == context)
		s->slice_left_ns = 0;
	if (s->copier == context)
		s->copy_left_ns = 0;
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
