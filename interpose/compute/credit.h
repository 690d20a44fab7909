/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread keeps for its launches: GPU time that it has drawn and not used, and the shapes it launched lately.
 *
 * The common launch is throttle_expected(): compare with what the thread launched next the last time, and subtract, in
 * memory of this thread only. throttle_pass() finds it among the last few shapes. Everything else is throttle.h.
 */
#ifndef SLUICE_CREDIT_H
#define SLUICE_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/probe.h"
#include "interpose/compute/rules/cost.h"

struct throttle_lane; /* what a thread keeps per device, off the launch path */
struct throttle_pipe;

/* A shape that a thread has launched lately: which entry of the cost table it has, and what the thread launched after it the
 * last time. Frameworks launch the same few in the same order again and again, so the next one is mostly known. */
struct throttle_way {
	_Alignas(64) const void *function; /* NULL = free, and then nothing points here */
	struct cost_shape shape;
	uint64_t key;
	struct cost_entry *entry;
	struct throttle_way *next; /* NULL = not known */
};

static_assert(sizeof(struct throttle_way) == 64, "one cache line for each launch");

/* One per thread; zeroed means "no launch remembered". */
struct throttle_local {
	struct throttle_way *expected; /* what followed the last launch the last time, NULL = take the long way */
	struct throttle_way *last;
	int64_t credit_ns; /* GPU time drawn from the grant and not used yet */
	uint64_t launches; /* not yet added to the slot */
	struct sluice_launch_event event;
	bool mixed; /* launches of several shapes since the last long way */
	struct throttle_lane *lane;
	struct throttle_way *ways; /* of the lane, while its device is current; NULL = nothing remembered */
};

extern __thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

/* Without a branch for each number: which of them differs changes from launch to launch, and nobody can guess it. */
static inline bool throttle_same_shape(const struct cost_shape *a, const struct cost_shape *b)
{
	return ((a->grid[0] ^ b->grid[0]) | (a->grid[1] ^ b->grid[1]) | (a->grid[2] ^ b->grid[2]) |
	        (a->block[0] ^ b->block[0]) | (a->block[1] ^ b->block[1]) | (a->block[2] ^ b->block[2]) |
	        (a->shared_bytes ^ b->shared_bytes)) == 0;
}

/* What goes through the gate, for those who watch: proto/launch_event.h. */
enum throttle_kind { THROTTLE_LAUNCH, THROTTLE_COPY };

/* Look for a shape among those that this thread has launched lately, and remember that it came now; NULL: it is none. */
struct throttle_way *throttle_recall(struct throttle_local *local, const void *function,
                                     const struct cost_shape *shape);

/* True: charged by what is known of this shape, launch away. */
__attribute__((always_inline)) static inline bool throttle_charge(struct throttle_local *local, enum throttle_kind kind,
                                                                  struct throttle_way *way)
{
	/* read there each time, so that nothing here can be stale but whose the entry is */
	uint32_t cost_ns = __atomic_load_n(&way->entry->pass_ns, __ATOMIC_RELAXED);

	if (__builtin_expect(cost_ns == 0 || local->credit_ns < (int64_t)cost_ns ||
	                             __atomic_load_n(&way->entry->key, __ATOMIC_RELAXED) != way->key,
	                     0))
		return false;
	local->credit_ns -= (int64_t)cost_ns;
	local->launches++;
	local->event.cost_ns = cost_ns;
	local->mixed |= way != local->last;
	local->last = way;
	local->expected = way->next;
	if (kind == THROTTLE_LAUNCH)
		PROBE(SLUICE_PROBE_LAUNCH, &local->event);
	else
		PROBE(SLUICE_PROBE_COPY, &local->event);
	return true;
}

/* The common launch: it is what came next the last time, too. The shape is looked at by value, so that it need not be in
 * memory, and the door can leave its arguments where they are and jump to the driver. */
__attribute__((always_inline)) static inline bool throttle_expected(enum throttle_kind kind, const void *function,
                                                                    struct cost_shape shape)
{
	struct throttle_local *local = &throttle_local;
	struct throttle_way *way = local->expected;

	return __builtin_expect(way && way->function == function && throttle_same_shape(&way->shape, &shape), 1) &&
	       throttle_charge(local, kind, way);
}

/* Any launch. True: charged, launch away. False: nothing happened, take the long way. */
static inline bool throttle_pass(enum throttle_kind kind, const void *function, const struct cost_shape *shape)
{
	struct throttle_local *local = &throttle_local;
	struct throttle_way *way = throttle_recall(local, function, shape);

	return way && throttle_charge(local, kind, way);
}

/* The same out of line, for doors that are not worth a probe of their own: each one takes time to attach. */
bool throttle_pass_rare(enum throttle_kind kind, const void *function, const struct cost_shape *shape);

/* --- off the launch path -------------------------------------------------------------------------------------------- */

/*
 * The shapes a thread has launched lately, for programs that alternate between them, as every framework does. Two ways to a
 * set: of 16 shapes nearly all find a place, and one that does not takes the long way.
 */
#define WAY_SETS 64
#define WAYS 2

struct throttle_lane {
	int device;
	struct throttle_pipe *pipe;
	int64_t seen_ns; /* the thread's credit when its use was last reported */
	uint64_t key;    /* of the last launch */
	bool mixed;      /* launches of other keys since the last record */
	uint32_t random;
	struct throttle_way way[WAY_SETS][WAYS];
};

/* The thread's lane on a device, made on first sight; its credit for another device goes back. NULL: no memory. */
struct throttle_lane *credit_lane(struct throttle_local *local, int device);
/* The pipe of the thread's current context; NULL: none. */
struct throttle_pipe *credit_pipe(struct throttle_lane *lane);
/* This shape was launched last, and costs what `entry` says while it has `key`. */
void credit_remember(struct throttle_local *local, const void *function, const struct cost_shape *shape, uint64_t key,
                     struct cost_entry *entry);
/* Add what was launched to the counters of the slot. */
void credit_flush_launches(struct throttle_local *local);
/* Tell the pipe how much of the credit has been used since the last time. */
void credit_report_use(struct throttle_local *local);
/* The thread's current context changed: the next launch takes the long way. */
void credit_forget_pipe(struct throttle_local *local);

#endif
