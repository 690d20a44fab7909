/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compute gate that every launch passes: charge GPU time before it runs, correct the charge afterwards.
 *
 * Launches that credit.h does not pass at once (new shapes, empty credit, samples, waits) go through throttle_before()
 * and throttle_after() around the driver's call.
 */
#ifndef SLUICE_THROTTLE_H
#define SLUICE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/credit.h"
#include "nativecommon/cuda_abi.h"

/* The decision of throttle_before() about one launch. */
struct throttle_ticket {
	struct throttle_pipe *pipe; /* NULL: no work afterwards */
	uint64_t cost_ns;           /* charged for this launch */
	uint64_t waited_ns;
	int8_t record; /* ring entry that times this launch, -1 = none */
	bool counted;  /* counts as a launch, and its trace event is still due */
};

/* Charge one launch of `handle` (function or graph exec) on `stream` and wait for its turn. CUDA_SUCCESS: launch, then
 * call throttle_after() with the driver's result. Any other result: return it. */
CUresult throttle_before(struct throttle_ticket *ticket, const void *handle, const struct cost_shape *shape,
                         CUstream stream);
void throttle_after(enum throttle_kind kind, struct throttle_ticket *ticket, CUresult result);

/* Register a callback for timed launches: `loaded` when the driver call took so long that it was loading code. */
void throttle_on_launch(void (*callback)(int device, bool loaded));

/* The application waited for work to finish: flush counters, settle what is done. */
void throttle_settle(bool whole_context);

/* The application polled and got the answer that work is done. As throttle_settle(), but for a call that may come a
 * million times a second, and from a thread that launches nothing. */
void throttle_polled(void);

/* The thread's current context changed: the next launch takes the slow path. */
void throttle_forget_local(void);
/* The context with this guest_context_tag() was destroyed, and its events with it. */
void throttle_context_gone(uint32_t tag);
/* A green context was destroyed, which is never current by itself; otherwise as throttle_context_gone(). */
void throttle_green_gone(uint32_t tag);
/* The process attaches again after a fork, before any other thread uses this: all state was its parent's. */
void throttle_forget_parent(void);
/* The driver may reuse handles from now on. */
void throttle_forget_all(void);

#endif
