/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute gate every launch goes through: charge GPU time before it runs, correct it after.
 *
 * The common launch is throttle_pass(): compare with the thread's last launch, or find it among the last few shapes,
 * and subtract, in memory of this thread only. Everything else (new shapes, an empty credit, samples, waits) is throttle_before()/throttle_after() around
 * the driver's call.
 */
#ifndef SLUICE_THROTTLE_H
#define SLUICE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cost.h"
#include "interpose/cuda_abi.h"
#include "interpose/probe.h"

struct throttle_lane; /* what a thread keeps per device, off the launch path */

/* One per thread; zeroed means "no launch remembered". */
struct throttle_local {
	const void *function; /* of the last launch, NULL = take the long way */
	struct cost_shape shape;
	struct sluice_launch_event event; /* its cost is what the last launch cost, and so the next one like it */
	int64_t credit_ns;                /* GPU time drawn from the grant and not used yet */
	uint64_t launches;                /* not yet added to the slot */
	struct throttle_lane *lane;
	struct throttle_way *ways; /* of the lane, while its device is current; NULL = nothing remembered */
};

extern __thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

static inline bool throttle_same_shape(const struct cost_shape *a, const struct cost_shape *b)
{
	return a->grid[0] == b->grid[0] && a->grid[1] == b->grid[1] && a->grid[2] == b->grid[2] &&
	       a->block[0] == b->block[0] && a->block[1] == b->block[1] && a->block[2] == b->block[2] &&
	       a->shared_bytes == b->shared_bytes;
}

/* What goes through the gate, for those who watch: proto/launch_event.h. */
enum throttle_kind { THROTTLE_LAUNCH, THROTTLE_COPY };

/* Make a shape that this thread has launched lately its last launch; false: it is none, or is to be timed. */
bool throttle_recall(struct throttle_local *local, const void *function, const struct cost_shape *shape);

/* True: charged, launch away. False: nothing happened, take the long way. */
static inline bool throttle_pass(enum throttle_kind kind, const void *function, const struct cost_shape *shape)
{
	struct throttle_local *local = &throttle_local;

	if (__builtin_expect(local->function != function || !throttle_same_shape(&local->shape, shape), 0) &&
	    !throttle_recall(local, function, shape))
		return false;
	if (__builtin_expect(local->credit_ns < (int64_t)local->event.cost_ns, 0))
		return false;
	local->credit_ns -= (int64_t)local->event.cost_ns;
	local->launches++;
	if (kind == THROTTLE_LAUNCH)
		PROBE(SLUICE_PROBE_LAUNCH, &local->event);
	else
		PROBE(SLUICE_PROBE_COPY, &local->event);
	return true;
}

/* The same out of line, for doors that are not worth a probe of their own: each one takes time to attach. */
bool throttle_pass_rare(enum throttle_kind kind, const void *function, const struct cost_shape *shape);

struct throttle_pipe;

/* What throttle_before() decided about one launch. */
struct throttle_ticket {
	struct throttle_pipe *pipe; /* NULL: nothing to do afterwards */
	uint64_t cost_ns;           /* charged for this launch */
	uint64_t waited_ns;
	int8_t record; /* ring entry that times this launch, -1 = none */
	bool counted;  /* as a launch, and those who watch are still to be told */
};

/* Charge one launch of `handle` (function or graph exec) on `stream` and wait for its turn.
 * CUDA_SUCCESS: go on, then call throttle_after() with the driver's answer. Anything else: return that. */
CUresult throttle_before(struct throttle_ticket *ticket, const void *handle, const struct cost_shape *shape,
                         CUstream stream);
void throttle_after(enum throttle_kind kind, struct throttle_ticket *ticket, CUresult result);

/* The application waited for work to finish: flush counters, settle what is done. */
void throttle_settle(bool whole_context);

/* The thread's current context changed: the next launch takes the long way. */
void throttle_forget_local(void);
/* The context with this guest_context_tag() is gone, and its events with it. */
void throttle_context_gone(uint32_t tag);
/* This process attaches anew: whatever is remembered was its parent's. */
void throttle_forget_parent(void);
/* Handles may be reused. */
void throttle_forget_all(void);

#endif
