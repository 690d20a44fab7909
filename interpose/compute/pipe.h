/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one context that was handed to the driver and is not known to be done: its amount, its expected end, and
 * its measured time. Timing needs events, so every caller has relaxed the thread's capture mode.
 */
#ifndef SLUICE_PIPE_H
#define SLUICE_PIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/rules/cost.h"
#include "interpose/compute/rules/kin.h"
#include "nativecommon/cuda_abi.h"

struct throttle_pipe;

/* The facts about a launch that may be timed. */
struct pipe_launch {
	CUstream stream;
	uint64_t key;
	struct kin kin;
	uint64_t cost_ns;        /* charge of the launch */
	uint64_t window_left_ns; /* rest of the grant's own window, UINT64_MAX = no windows */
	uint64_t begins_ns;      /* before that it cannot begin: the window starts with a change of contexts */
	uint32_t contention;     /* low bits of the device's contention epoch */
	bool placed;             /* no other grant should be on the GPU: this one is alone, or inside its own window */
	bool sole;               /* no other process of the grant is at work */
	bool alone;              /* that, and no other grant is at work on the GPU */
	bool lent;               /* its price is no time of its shape */
	bool mixed;              /* some work marked since the last record is of other launches */
};

/* The pipe of the thread's current context, made on first use; NULL when there is no context or no room for a pipe. */
struct throttle_pipe *pipe_of_current(int device);
/* The context with this guest_context_tag() was destroyed, and its events with it. */
void pipe_context_gone(uint32_t tag);
/* The same of a context that only lent its streams: a green context. */
void pipe_home_gone(uint32_t tag);
/* The process attaches again after a fork: all pipes were its parent's. */
void pipe_forget_parent(void);

/* Settle every record whose work is done. */
void pipe_reap(struct throttle_pipe *pipe);
/* The same, but only when the oldest record should be over: each query is a call of the driver. */
void pipe_reap_due(struct throttle_pipe *pipe, uint64_t now_ns);
/* GPU time charged for queued work that is not known to be done. */
uint64_t pipe_inflight_ns(const struct throttle_pipe *pipe);
/* The part of it that should still be to come if no other process uses the GPU: by its expected end, some of it must be
 * over although no thread has checked yet. */
uint64_t pipe_expected_ns(const struct throttle_pipe *pipe, uint64_t now_ns);
/* The end of the queue as far as it is certain, see gate_honest_ns(): for the windows of `period_ns`. */
uint64_t pipe_honest_ns(const struct throttle_pipe *pipe, uint64_t now_ns, uint64_t period_ns);
/* Contexts of this process on the same device that have work outstanding, this one included. */
uint32_t pipe_contexts(const struct throttle_pipe *pipe);
/* Number of records whose work is not known to be done. */
uint32_t pipe_outstanding(const struct throttle_pipe *pipe);
/* True when none of the outstanding work has begun: its streams then wait for something that the host may have to do,
 * such as a value in memory or another process's event. False also when that cannot be determined. */
bool pipe_held(struct throttle_pipe *pipe);
#define PIPE_HELD_PATIENCE_NS UINT64_C(50000000) /* without a beginning for so long, it is no other grant's turn */
/* A thread has handed so much to the driver; a negative amount takes back what failed. `thread` identifies it. */
void pipe_mark(struct throttle_pipe *pipe, int64_t used_ns, const void *thread);
/* A shape launched once, not timed yet, and of a function without a price: its second launch waits for the time of the
 * first, or an application could queue minutes of work at the default price. Returns at once while at most `ahead`
 * records are outstanding. */
void pipe_await_first_sample(struct throttle_pipe *pipe, const struct cost_entry *entry, uint32_t ahead);

/* Before a launch: open a record for it if one is due. Returns its index, or -1. */
int8_t pipe_record_open(struct throttle_pipe *pipe, struct cost_entry *entry, const struct pipe_launch *launch);
/* After the launch: the record stands for all work marked so far. Returns how long the call took the host; 0: there is
 * no record. */
uint64_t pipe_record_close(struct throttle_pipe *pipe, int8_t index, bool launched);
/* The application has waited for work: for all of the context's, or for some when no other work is outstanding. */
void pipe_settle(struct throttle_pipe *pipe, bool whole_context);
/* True if a context of the process has work that should be over, but is not known to be. */
bool pipe_any_due(uint64_t now_ns);
/* Some work of the process is done, of whatever context: settle what is over. */
void pipe_settle_polled(void);

#endif
