/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one context that was handed to the driver and is not known to be done: how much it is, when it should be
 * over, and how long it took. Timing needs events, so whoever calls this has relaxed the thread's capture mode.
 */
#ifndef SLUICE_PIPE_H
#define SLUICE_PIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cost.h"
#include "interpose/cuda_abi.h"

#define PIPE_SAMPLE_FIRST 3 /* launches of a new shape that are timed */

struct throttle_pipe;

/* A thread's last record in a pipe. */
struct pipe_trail {
	CUstream stream;
	uint32_t last_sequence;
	int8_t last; /* its index, -1 = none */
};

/* What is known about a launch that may be timed or marked. */
struct pipe_launch {
	CUstream stream;
	uint64_t key;
	uint64_t cost_ns; /* charged for it */
	uint64_t window_left_ns;
	uint32_t contention;
	bool exclusive;
};

/* The pipe of the thread's current context, made on first sight; NULL when there is none or no room for one. */
struct throttle_pipe *pipe_of_current(int device);
/* The context with this guest_context_tag() is gone, and its events with it. */
void pipe_context_gone(uint32_t tag);
/* In a process that attaches anew: all pipes were its parent's. */
void pipe_forget_parent(void);

/* Settle every record whose work is done. */
void pipe_reap(struct throttle_pipe *pipe);
/* Estimated GPU time still to come from what was queued: the records' sum says how much was queued, the expected end how
 * much of it must be over by now although nobody looked yet. */
uint64_t pipe_queued_ns(const struct throttle_pipe *pipe, uint64_t now_ns);
/* Records whose work is not known to be done. */
uint32_t pipe_outstanding(const struct throttle_pipe *pipe);
/* A thread has handed this much to the driver; negative takes back what failed. */
void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns);
/* A shape launched once and not timed yet: the second launch waits for the first one's time, or an application could
 * queue minutes of work at the price of the default. */
void pipe_await_first_sample(struct throttle_pipe *pipe, const struct cost_entry *entry);

/* Before a launch: a record for it if it is time for a sample or a marker, else -1. */
int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch,
                        const struct pipe_trail *trail);
/* After it: the record stands for all that was marked up to here. */
void pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched, struct pipe_trail *trail);
/* The application has waited for work: for all of the context's, or for some and nothing is outstanding. */
void pipe_settle(struct throttle_pipe *pipe, bool whole_context);

#endif
