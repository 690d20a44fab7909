/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of one grant divide its GPU time by time, not by launches.
 *
 * The grant's virtual clock is one word for all of its processes, and whoever comes takes a place on it: so each would
 * get as many launches as the others, and who has the longest kernels nearly all of the time. Therefore each process
 * keeps a book of what all of them have used (their lines of usage.shm say so) and who had to wait for it; one that is
 * ahead of a sibling that waits is let in later: the further ahead, the less of the burst is left for it
 * (gate_tolerance_ns). The cap's clock moves on meanwhile, so what one leaves is another's and nothing is lost: where
 * nobody else comes, the clock falls behind and the one ahead goes on.
 *
 * This is start-time fair queueing (Goyal, Vin, Cheng 1996) without a common word: books agree because all read the
 * same counters, and where they differ a little, by what was noticed late, nobody waits for ever. Pure functions over
 * numbers; throttle.c reads the counters and waits. tests/properties/test_fair.py states what must hold.
 */
#ifndef SLUICE_FAIR_H
#define SLUICE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#define FAIR_IDLE_NS                                                                                                   \
	UINT64_C(250000000) /* neither used nor wanted anything so long: it begins anew when it comes back */
#define FAIR_WANTS_NS                                                                                                  \
	UINT64_C(50000000) /* who waited at the gate so lately wants more; a look at the gate is 10 ms at most */
#define FAIR_LEAD_NS INT64_C(1000000000) /* no more than this is held against one that was away */
#define FAIR_LAG_NS INT64_C(100000000)   /* nor owed to one that wants less than its part, own long launches apart */
#define FAIR_LARGEST_DECAY 16            /* a long launch is forgotten over about so many others */

/* What is known of one process. Zeroed means "never seen". */
struct fair_account {
	uint64_t used_ns;   /* as last read */
	uint64_t waited_ns; /* as last read */
	uint64_t moved_ns;  /* when either was last seen to change */
	uint64_t wanted_ns; /* when it was last seen to have waited */
	int64_t virtual_ns; /* what it has had, on a scale where all who want more should be level */
	bool fresh;         /* came (back) with this look */
};

/* One process's counters, as read for this look. */
struct fair_reading {
	uint64_t used_ns;   /* GPU time charged */
	uint64_t done_ns;   /* of it known to have finished */
	uint64_t waited_ns; /* wall time spent waiting at the gate */
};

/* How far a process of ours is ahead of the sibling that wants GPU time and has had least: 0 = nobody is to be let
 * by. `accounts` and `readings` have `count` entries, `self` among them; `*largest_ns` is kept between looks. */
uint64_t fair_look(struct fair_account *accounts, const struct fair_reading *readings, uint32_t count, uint32_t self,
                   uint64_t now_ns, uint64_t *largest_ns);

#endif
