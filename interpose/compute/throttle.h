/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute gate every launch goes through: charge GPU time before it runs, correct it after.
 *
 * What credit.h does not let pass at once (new shapes, an empty credit, samples, waits) goes through throttle_before() and
 * throttle_after() around the driver's call.
 */
#ifndef SLUICE_THROTTLE_H
#define SLUICE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/credit.h"
#include "interpose/driver/cuda_abi.h"

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

/* Who wants to hear of launches that were timed: `loaded` when the driver took so long over the call that it was loading code. */
void throttle_on_launch(void (*tell_it)(int device, bool loaded));

/* The application waited for work to finish: flush counters, settle what is done. */
void throttle_settle(bool whole_context);

/* The thread's current context changed: the next launch takes the long way. */
void throttle_forget_local(void);
/* The context with this guest_context_tag() is gone, and its events with it. */
void throttle_context_gone(uint32_t tag);
/* This process attaches anew, and no other thread is in yet: whatever is remembered was its parent's. */
void throttle_forget_parent(void);
/* Handles may be reused. */
void throttle_forget_all(void);

#endif
