/* SPDX-License-Identifier: Apache-2.0 */
/* Passing the gate: take a place on the grant's clock, then wait until cap, queue and turn allow the launch. */
#ifndef SLUICE_PASS_H
#define SLUICE_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

struct throttle_pipe;

/* One launch, and what was found out about it. */
struct pass_ask {
	struct throttle_pipe *pipe; /* of its context; NULL: the queued work is unknown */
	int device;
	bool proven;  /* its price is good enough to queue by it */
	bool guessed; /* launches of this shape differ, so its price is no more than their mean */
	uint64_t cost_ns;
	uint64_t paid_ns;   /* out: drawn from the grant */
	uint64_t waited_ns; /* out */
	/* out: the situation at the launch, as in pipe_launch */
	uint64_t window_left_ns;
	uint64_t window_ns;
	uint64_t begins_ns; /* CLOCK_MONOTONIC before which it cannot begin */
	uint32_t contention;
	bool placed, sole, alone;
	bool arrived; /* it waited for the own window, which has just begun */
};

/* True: no other grant is at work on the GPU and no cap holds this one back, so a launch of unknown length delays
 * no other. */
bool pass_is_free(int device);

/* Draw what *credit_ns lacks of the cost, and return when the launch may go; the credit is reduced by the cost.
 * `chance`, 0 to 65535, varies how much is drawn. CUDA_ERROR_SYSTEM_NOT_READY: the grant has ended. */
CUresult pass_gate(struct pass_ask *ask, int64_t *credit_ns, uint64_t chance);
/* Fill in the situation alone, for a launch that is paid already. */
void pass_look_around(struct pass_ask *ask);

#endif
