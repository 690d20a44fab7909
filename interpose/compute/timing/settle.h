/* SPDX-License-Identifier: Apache-2.0 */
/* The work between two events, and what its time shows. See settle.c. */
#ifndef SLUICE_SETTLE_H
#define SLUICE_SETTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/compute/rules/cost.h"
#include "interpose/compute/rules/kin.h"

#define SETTLE_LOADING_NS UINT64_C(50000) /* a launch call that takes so long was loading code */

struct settle_work {
	uint64_t key;            /* of the launch it was timed for */
	struct kin kin;          /* likewise */
	uint64_t paid_ns;        /* all charges since the record before it */
	uint64_t cost_ns;        /* charged for that launch */
	uint64_t host_ns;        /* how long the launch call took */
	uint64_t own_ns;         /* rest of the own window when this starts; UINT64_MAX = no windows */
	uint64_t others_done_ns; /* done by the grant's other processes at its start, UINT64_MAX = there were none */
	uint32_t contention;     /* as in pipe_launch, like the three below */
	uint32_t busy;           /* processes of the grant at work when it began */
	bool placed, sole, mixed;
	bool early;   /* begins where a neighbour's launch may still be in the own window */
	bool lent;    /* charged at a price that is no time of this shape */
	bool chained; /* the time covers all that was paid, else that launch alone */
};

/* `elapsed_ns` passed between its two events. `entry` belongs to its key; NULL = evicted since. */
void settle_work(int device, const struct settle_work *work, struct cost_entry *entry, uint64_t elapsed_ns);

#endif
