/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one context that was handed to the driver and is not known to be done: how much it is, when it should be
 * over, and how long it took. Timing needs events, so whoever calls this has relaxed the thread's capture mode.
 */
#ifndef SLUICE_PIPE_H
#define SLUICE_PIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/rules/cost.h"
#include "interpose/driver/cuda_abi.h"

struct throttle_pipe;

/* What is known about a launch that may be timed. */
struct pipe_launch {
	CUstream stream;
	uint64_t key;
	uint64_t cost_ns;        /* charged for it */
	uint64_t window_left_ns; /* of the grant's own window, UINT64_MAX = no windows */
	uint32_t contention;     /* low bits of the device's contention epoch */
	bool placed;             /* nobody but this grant should be on the GPU: alone, or inside its own window */
	bool sole;               /* no other process of the grant */
	bool mixed;              /* not all that was marked since the last record is launches like this one */
};

/* The pipe of the thread's current context, made on first sight; NULL when there is none or no room for one. */
struct throttle_pipe *pipe_of_current(int device);
/* The context with this guest_context_tag() is gone, and its events with it. */
void pipe_context_gone(uint32_t tag);
/* In a process that attaches anew: all pipes were its parent's. */
void pipe_forget_parent(void);

/* Settle every record whose work is done. */
void pipe_reap(struct throttle_pipe *pipe);
/* GPU time charged for what was queued and is not known to be done. */
uint64_t pipe_inflight_ns(const struct throttle_pipe *pipe);
/* What of it should still be to come if nobody else is on the GPU: by its expected end, part of it must be over by now
 * although nobody has looked yet. */
uint64_t pipe_expected_ns(const struct throttle_pipe *pipe, uint64_t now_ns);
/* Contexts of this process on the same device that have work outstanding, and this one. */
uint32_t pipe_contexts(const struct throttle_pipe *pipe);
/* Records whose work is not known to be done. */
uint32_t pipe_outstanding(const struct throttle_pipe *pipe);
/* Has none of the work that is outstanding begun? Then its streams wait for something that may be the host's to do: a value in
 * memory, another process's event. False also when it cannot be told. */
bool pipe_held(struct throttle_pipe *pipe);
#define PIPE_HELD_PATIENCE_NS                                                                                          \
	UINT64_C(50000000) /* that long without a beginning, and it is no turn of somebody else's */
/* A thread has handed this much to the driver; negative takes back what failed. `who` tells threads apart. */
void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns, const void *who);
/* A shape launched once and not timed yet: the second launch waits for the first one's time, or an application could
 * queue minutes of work at the price of the default. */
void pipe_await_first_sample(struct throttle_pipe *pipe, const struct cost_entry *entry);

/* Before a launch: a record for it if it is time for one, else -1. */
int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch);
/* After it: the record stands for all that was marked up to here. How long the call took the host; 0: there is no record. */
uint64_t pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched);
/* The application has waited for work: for all of the context's, or for some and nothing is outstanding. */
void pipe_settle(struct throttle_pipe *pipe, bool whole_context);

#endif
