/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that a thread keeps for its launches: GPU time drawn but not used yet, and the shapes it launched recently.
 *
 * The common launch is throttle_expected(): it compares with the shape that followed the last time and subtracts, all
 * in memory of this thread only. throttle_pass() finds the shape among the last few. Everything else is throttle.h.
 */
#ifndef SLUICE_CREDIT_H
#define SLUICE_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/probe.h"
#include "interpose/compute/rules/cost.h"

struct throttle_lane; /* per thread and device, off the launch path */
struct throttle_pipe;

/* A shape that a thread has launched recently: its entry in the cost table, and the shape launched after it the last
 * time. Frameworks repeat a few launches in the same order, so the next one is mostly known. */
struct throttle_way {
	_Alignas(64) const void *function; /* NULL = free, and then no pointer leads here */
	struct cost_shape shape;
	uint64_t key;
	struct cost_entry *entry;
	struct throttle_way *next; /* NULL = unknown */
};

static_assert(sizeof(struct throttle_way) == 64, "one cache line for each launch");

/* One per thread; zeroed means "no launch remembered". */
struct throttle_local {
	struct sluice_launch_event event; /* first: the probe's register then points to the whole structure */
	struct throttle_way *expected;    /* the shape that followed the last time, NULL = take the slow path */
	struct throttle_way *last;        /* `expected` is NULL or the `next` of this one */
	int64_t credit_ns;                /* GPU time drawn from the grant and not used yet; never negative */
	uint64_t launches;                /* not added to the slot yet */
	bool mixed;                       /* launches of several shapes since the last slow path */
	struct throttle_lane *lane;
	struct throttle_way *ways; /* of the lane, while its device is current; NULL = nothing remembered */
};

extern __thread struct throttle_local throttle_local __attribute__((tls_model("initial-exec")));

/* Its address, in a register: gcc would keep the offset from the thread's pointer instead, and need a second register
 * for the probe. */
static inline struct throttle_local *throttle_here(void)
{
	struct throttle_local *local = &throttle_local;

	__asm__("" : "+r"(local));
	return local;
}

/* No branch per field: which field differs changes from launch to launch, and the branch predictor cannot guess it. */
static inline bool throttle_same_shape(const struct cost_shape *a, const struct cost_shape *b)
{
	return ((a->grid[0] ^ b->grid[0]) | (a->grid[1] ^ b->grid[1]) | (a->grid[2] ^ b->grid[2]) |
	        (a->block[0] ^ b->block[0]) | (a->block[1] ^ b->block[1]) | (a->block[2] ^ b->block[2]) |
	        (a->shared_bytes ^ b->shared_bytes)) == 0;
}

/* One launch passed the gate, for attached tracers: proto/launch_event.h. */
enum throttle_kind { THROTTLE_LAUNCH, THROTTLE_COPY };

/* Look up a shape among those this thread has launched recently, and record that it came now. NULL: not among them. */
struct throttle_way *throttle_recall(struct throttle_local *local, const void *function,
                                     const struct cost_shape *shape);

/* True: charged at the known cost of this shape, so launch at once. */
__attribute__((always_inline)) static inline bool throttle_charge(struct throttle_local *local, enum throttle_kind kind,
                                                                  struct throttle_way *way)
{
	/* read there each time, so that only the owner of the entry can be stale */
	uint64_t cost_ns = cost_pass_ns(way->entry, way->key);

	local->event.cost_ns =
		cost_ns; /* at once, so that the cost needs its register no longer than the credit does */
	if (__builtin_expect((uint64_t)local->credit_ns < cost_ns, 0))
		return false;
	__asm__("" : "+m"(local->credit_ns)); /* subtract in memory, rather than from a register filled above */
	local->credit_ns -= (int64_t)cost_ns;
	local->launches++;
	if (__builtin_expect(way != local->last, 0)) {
		local->mixed = true;
		local->last = way;
		local->expected = way->next;
	}
	if (kind == THROTTLE_LAUNCH)
		PROBE(SLUICE_PROBE_LAUNCH, &local->event);
	else
		PROBE(SLUICE_PROBE_COPY, &local->event);
	return true;
}

/* The common launch: the shape that followed the last time follows again. Each field is compared where the caller has
 * it, so the door needs few registers, leaves its arguments in place and jumps to the driver. The two that a calling
 * convention may leave in memory come by address: each is loaded where it is compared, into the same register. A branch
 * per field is as good as one for all of them, because the fields are nearly always equal here. */
__attribute__((always_inline)) static inline bool throttle_expected(enum throttle_kind kind, const void *function,
                                                                    const uint32_t grid[3], const uint32_t block[2],
                                                                    const uint32_t *block_z,
                                                                    const uint32_t *shared_bytes)
{
	struct throttle_local *local = throttle_here();
	struct throttle_way *way = local->expected;

	return __builtin_expect(way && way->function == function && way->shape.grid[0] == grid[0] &&
	                                way->shape.grid[1] == grid[1] && way->shape.grid[2] == grid[2] &&
	                                way->shape.block[0] == block[0] && way->shape.block[1] == block[1] &&
	                                way->shape.block[2] == *block_z && way->shape.shared_bytes == *shared_bytes,
	                        1) &&
	       throttle_charge(local, kind, way);
}

/* Any launch. True: charged, launch at once. False: nothing was charged, take the slow path. */
static inline bool throttle_pass(enum throttle_kind kind, const void *function, const struct cost_shape *shape)
{
	struct throttle_local *local = &throttle_local;
	struct throttle_way *way = throttle_recall(local, function, shape);

	if (!way || !throttle_charge(local, kind, way))
		return false;
	local->expected = way->next; /* the shape may be the last one's, and follow it for the first time */
	return true;
}

/* throttle_pass() out of line, for the rarer doors: each probe takes time to attach, so they share one. */
bool throttle_pass_rare(enum throttle_kind kind, const void *function, const struct cost_shape *shape);

/* --- off the launch path ------------------------------------------------------------------------------------------ */

/*
 * The shapes a thread has launched recently, for programs that alternate between them, as every framework does. A set
 * has two ways: of 16 shapes nearly all find a place, and one that does not takes the slow path.
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

/* The thread's lane on a device, made on first use; credit for another device is returned. NULL: out of memory. */
struct throttle_lane *credit_lane(struct throttle_local *local, int device);
/* The pipe of the thread's current context; NULL: none. */
struct throttle_pipe *credit_pipe(struct throttle_lane *lane);
/* Record that this shape was launched last, and costs what `entry` says while it has `key`. */
void credit_remember(struct throttle_local *local, const void *function, const struct cost_shape *shape, uint64_t key,
                     struct cost_entry *entry);
/* Add the launches to the counters of the slot. */
void credit_flush_launches(struct throttle_local *local);
/* Report to the pipe how much of the credit has been used since the last call. */
void credit_report_use(struct throttle_local *local);
/* The thread's current context changed: the next launch takes the slow path. */
void credit_forget_pipe(struct throttle_local *local);

#endif
