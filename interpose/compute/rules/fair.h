/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of one grant share its GPU time equally by time, not by number of launches.
 *
 * The grant's virtual clock is one word for all of its processes, and each launch takes a place on it: so each process
 * would get as many launches as the others, and the one with the longest kernels nearly all of the time. Therefore each
 * process keeps accounts of the time that all of them have used (their lines of usage.shm show it) and of waiting; a
 * process that is ahead of a waiting sibling is admitted later: the further ahead, the less of the burst is left for it
 * (gate_tolerance_ns). The cap's clock moves on meanwhile, so another process gets the time and none is lost: where no
 * sibling comes, the clock falls behind and the process ahead continues.
 *
 * This is start-time fair queueing (Goyal, Vin, Cheng 1996) without a shared word: the accounts agree because all
 * processes read the same counters, and where they differ a little, by late reads, no process waits for ever. Pure
 * functions over numbers; throttle.c reads the counters and waits. tests/properties/test_fair.py states what must hold.
 */
#ifndef SLUICE_FAIR_H
#define SLUICE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#define FAIR_IDLE_NS                                                                                                   \
	UINT64_C(250000000) /* neither used nor requested GPU time for so long: it starts afresh when it returns */
#define FAIR_WANTS_NS UINT64_C(50000000) /* a process that waited so recently wants more; a wait checks every 10 ms */
#define FAIR_LEAD_NS INT64_C(1000000000) /* limit of the lead held against a process that was away */
#define FAIR_LAG_NS INT64_C(100000000)   /* limit of its credit if it wants less, own long launches excepted */
#define FAIR_LARGEST_DECAY 16            /* a long launch is forgotten over about so many others */

/* The account of one process. Zeroed means "never seen". */
struct fair_account {
	uint64_t used_ns;   /* as last read */
	uint64_t waited_ns; /* as last read */
	uint64_t moved_ns;  /* when either of them last changed */
	uint64_t wanted_ns; /* when it last waited */
	int64_t virtual_ns; /* time it has had, on a scale where all that want more should be level */
	bool fresh;         /* came (back) in this round */
};

/* One process's counters, as read for this round. */
struct fair_reading {
	uint64_t used_ns;   /* GPU time charged */
	uint64_t done_ns;   /* the part of it known to have finished */
	uint64_t waited_ns; /* wall time spent waiting at the gate */
};

/* How far this process is ahead of the sibling that wants GPU time and has had least; 0 = no sibling goes first.
 * `accounts` and `readings` have `count` entries, `self` among them; `*largest_ns` is kept between rounds. */
uint64_t fair_look(struct fair_account *accounts, const struct fair_reading *readings, uint32_t count, uint32_t self,
                   uint64_t now_ns, uint64_t *largest_ns);

#endif
