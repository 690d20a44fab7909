/* SPDX-License-Identifier: Apache-2.0 */
/* The work between two events, and what is learnt from the time it took. See settle.c. */
#ifndef SLUICE_SETTLE_H
#define SLUICE_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/rules/cost.h"

#define SETTLE_LOADING_NS UINT64_C(50000) /* a launch call this long was loading something */

struct settle_work {
	uint64_t key;            /* of the launch it was timed for */
	uint64_t paid_ns;        /* everything charged since the record before it */
	uint64_t cost_ns;        /* charged for that launch */
	uint64_t host_ns;        /* how long the launch call took */
	uint64_t own_ns;         /* of the own window, what is left when this starts; UINT64_MAX = no windows */
	uint64_t others_done_ns; /* of the other processes of the grant when it began, UINT64_MAX = there were none */
	uint32_t contention;     /* as in pipe_launch, like the three below */
	uint32_t busy;           /* processes of the grant at work when it began */
	bool placed, sole, mixed;
	bool chained; /* the time is of all that was paid, else of that launch alone */
};

/* `elapsed_ns` passed between its two events. `entry`: of its key, NULL = forgotten since. */
void settle_work(int device, const struct settle_work *work, struct cost_entry *entry, uint64_t elapsed_ns);

#endif
