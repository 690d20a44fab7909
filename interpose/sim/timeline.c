/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's scheduler, as arithmetic: from one instant at which something changes to the next.
 *
 * Simplifications, all of them in docs/simulator.md: streams of one context run one after the other; a switch between
 * contexts costs nothing; copies overlap with other contexts' kernels but not with their own context's.
 */
#include <assert.h>
#include <string.h>

#include "interpose/sim/timeline.h"

#define NEVER UINT64_MAX

void timeline_init(struct timeline *t, uint64_t now_ns)
{
	memset(t, 0, sizeof(*t));
	t->last_ns = now_ns;
	t->bucket = now_ns / TIMELINE_BUCKET_NS;
}

void timeline_copy(struct timeline *to, const struct timeline *from)
{
	memcpy(to, from, offsetof(struct timeline, log));
	if (to->lanes > TIMELINE_LANES)
		to->lanes = TIMELINE_LANES;
	if (to->logged > TIMELINE_LOG)
		to->logged = TIMELINE_LOG;
	memcpy(to->log, from->log, (size_t)to->logged * sizeof(to->log[0]));
	memcpy(to->lane, from->lane, (size_t)to->lanes * sizeof(to->lane[0]));
}

static const struct timeline_op *head(const struct timeline *t, const struct timeline_input *in, uint64_t i)
{
	const struct timeline_queue *q = &in->queue[i];

	return q->live && t->lane[i].done < q->tail ? &q->ring[t->lane[i].done % TIMELINE_RING] : NULL;
}

/* A lane taken over by a new context starts from zero; a dropped queue is skipped. */
static void adopt(struct timeline *t, const struct timeline_input *in)
{
	if (in->queues > t->lanes) {
		memset(&t->lane[t->lanes], 0, (size_t)(in->queues - t->lanes) * sizeof(t->lane[0]));
		t->lanes = in->queues;
	}
	for (uint64_t i = 0; i < in->queues; i++) {
		const struct timeline_queue *q = &in->queue[i];
		struct timeline_lane *lane = &t->lane[i];

		if (lane->epoch != q->epoch) {
			uint64_t done = lane->done;

			memset(lane, 0, sizeof(*lane));
			lane->epoch = q->epoch;
			lane->done = done;
		}
		if (lane->done < q->dropped) {
			lane->done = q->dropped;
			lane->started = 0;
		}
	}
}

static void roll_buckets(struct timeline *t, uint64_t bucket)
{
	for (unsigned n = 0; t->bucket < bucket && n < TIMELINE_BUCKETS; n++) {
		/* after a pause of more than the history, every bucket is cleared once and the number jumps */
		uint64_t next = bucket - t->bucket > TIMELINE_BUCKETS ? bucket - TIMELINE_BUCKETS + 1 : t->bucket + 1;

		t->bucket = next;
		t->bucket_ns[next % TIMELINE_BUCKETS] = 0;
		for (uint64_t i = 0; i < t->lanes; i++)
			t->lane[i].bucket_ns[next % TIMELINE_BUCKETS] = 0;
	}
	t->bucket = bucket;
}

static void account(struct timeline *t, struct timeline_lane *lane, uint64_t from_ns, uint64_t until_ns)
{
	t->busy_ns += until_ns - from_ns;
	lane->busy_ns += until_ns - from_ns;
	while (from_ns < until_ns) {
		uint64_t bucket = from_ns / TIMELINE_BUCKET_NS;
		uint64_t end_ns = (bucket + 1) * TIMELINE_BUCKET_NS;
		uint64_t part_ns = (end_ns < until_ns ? end_ns : until_ns) - from_ns;

		roll_buckets(t, bucket);
		t->bucket_ns[bucket % TIMELINE_BUCKETS] += part_ns;
		lane->bucket_ns[bucket % TIMELINE_BUCKETS] += part_ns;
		from_ns += part_ns;
	}
}

static void complete(struct timeline *t, uint64_t i, const struct timeline_op *op, uint64_t finish_ns)
{
	struct timeline_lane *lane = &t->lane[i];

	lane->done++;
	lane->started = 0;
	if (op->timed)
		t->log[t->logged++] = (struct timeline_completion){ i, lane->done, finish_ns };
}

enum lane_wants { NOTHING, COMPUTE, ANOTHER_LANE };

/*
 * Complete what needs no compute and is over at last_ns, then say what the lane wants. Without compute work,
 * *ret_next_ns is lowered to the lane's next own change if it has a known one.
 */
static enum lane_wants settle(struct timeline *t, const struct timeline_input *in, uint64_t i, uint64_t *ret_next_ns)
{
	struct timeline_lane *lane = &t->lane[i];
	const struct timeline_queue *q = &in->queue[i];
	const struct timeline_op *op;
	enum lane_wants wants = NOTHING;
	uint64_t at_ns = NEVER;

	while ((op = head(t, in, i)) && t->logged < TIMELINE_LOG) {
		bool over = false;

		at_ns = op->submit_ns;
		if (at_ns > t->last_ns)
			break;
		at_ns = NEVER;
		switch ((enum timeline_kind)op->kind) {
		case TIMELINE_MARK:
			over = true;
			break;
		case TIMELINE_RUN:
			if (!lane->started) {
				lane->started = 1;
				lane->left_ns = op->cost_ns;
			}
			if (lane->left_ns > 0)
				return COMPUTE;
			over = true;
			break;
		case TIMELINE_DELAY:
			if (!lane->started) {
				lane->started = 1;
				lane->until_ns = t->last_ns + op->cost_ns;
			}
			at_ns = lane->until_ns;
			over = at_ns <= t->last_ns;
			break;
		case TIMELINE_HOST:
			if (q->host > lane->done)
				at_ns = q->host_ns;
			over = at_ns <= t->last_ns;
			break;
		case TIMELINE_WAIT:
			over = in->passed(in->arg, t, op);
			if (!over)
				wants = ANOTHER_LANE;
			break;
		}
		if (!over)
			break;
		complete(t, i, op, t->last_ns);
		at_ns = NEVER;
	}
	if (at_ns < *ret_next_ns)
		*ret_next_ns = at_ns;
	return wants;
}

/* Whose turn is it? The running lane's until its slice is used up, then the next ready one's. */
static uint64_t choose(struct timeline *t, const uint8_t *ready, uint64_t slice_ns)
{
	uint64_t i = t->running;

	if (i < t->lanes && ready[i] && t->slice_left_ns > 0)
		return i;
	for (uint64_t n = 1; n <= t->lanes; n++) {
		i = (t->running + n) % t->lanes;
		if (ready[i])
			break;
	}
	t->running = i;
	t->slice_left_ns = slice_ns;
	return i;
}

void timeline_advance(struct timeline *t, const struct timeline_input *in, uint64_t now_ns, uint64_t stop_lane,
                      uint64_t stop_ticket)
{
	uint8_t ready[TIMELINE_LANES] = { 0 };

	assert(in->queues <= TIMELINE_LANES && in->slice_ns > 0);
	adopt(t, in);
	t->logged = 0;
	for (;;) {
		uint64_t next_ns, count, waiting, completed;

		/* again after a change, because what one lane completed may be what another waits for */
		do {
			next_ns = now_ns;
			count = waiting = completed = 0;
			for (uint64_t i = 0; i < in->queues; i++) {
				uint64_t done = t->lane[i].done;
				enum lane_wants wants = settle(t, in, i, &next_ns);

				ready[i] = wants == COMPUTE;
				count += ready[i];
				waiting += wants == ANOTHER_LANE;
				completed += t->lane[i].done - done;
			}
		} while (completed && waiting);
		if (t->last_ns >= now_ns || t->logged == TIMELINE_LOG)
			return;
		if (stop_lane < t->lanes && t->lane[stop_lane].done >= stop_ticket)
			return;
		if (count == 0) {
			t->last_ns = next_ns;
			continue;
		}
		uint64_t i = choose(t, ready, in->slice_ns);
		struct timeline_lane *lane = &t->lane[i];
		uint64_t step_ns = next_ns - t->last_ns;

		if (lane->left_ns < step_ns)
			step_ns = lane->left_ns;
		if (count > 1 && t->slice_left_ns < step_ns)
			step_ns = t->slice_left_ns;
		account(t, lane, t->last_ns, t->last_ns + step_ns);
		if (lane->left_ns != TIMELINE_FOREVER)
			lane->left_ns -= step_ns;
		/* alone, the slices follow each other without a break */
		if (step_ns > t->slice_left_ns)
			t->slice_left_ns = in->slice_ns - (step_ns - t->slice_left_ns) % in->slice_ns;
		else
			t->slice_left_ns -= step_ns;
		t->last_ns += step_ns;
		if (lane->left_ns == 0)
			complete(t, i, head(t, in, i), t->last_ns);
	}
}

uint64_t timeline_recent_ns(const struct timeline *t, uint64_t lane, unsigned buckets)
{
	uint64_t now = t->last_ns / TIMELINE_BUCKET_NS, sum = 0;
	const uint64_t *ns = t->bucket_ns;

	if (lane < TIMELINE_LANES) {
		if (lane >= t->lanes)
			return 0;
		ns = t->lane[lane].bucket_ns;
	}
	for (uint64_t b = now - buckets; b < now; b++)
		if (b <= t->bucket && b + TIMELINE_BUCKETS > t->bucket)
			sum += ns[b % TIMELINE_BUCKETS];
	return sum;
}
