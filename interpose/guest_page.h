/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to this process alone, in memory that a forked child finds zeroed. Only guest.c, ptrmap.c and pool.c look inside. */
#ifndef SLUICE_GUEST_PAGE_H
#define SLUICE_GUEST_PAGE_H

#include "interpose/attach.h"
#include "interpose/guest.h"
#include "interpose/pool.h"
#include "interpose/ptrmap.h"

typedef uint64_t __attribute__((may_alias)) guest_word;

#define GUEST_DEVICE_WORDS (sizeof(struct sluice_policy_device) / sizeof(guest_word))

struct guest_page {
	struct sluice_guest guest;
	uint32_t state;  /* DETACHED, which is what a wiped page says, up to READY */
	uint32_t epoch;  /* which attach of this process image; never 0 once attached */
	uint32_t moving; /* a thread is re-registering */
	struct attach_identity identity;
	struct ptrmap map;
	struct pool_table pools;
	uint64_t beyond[SLUICE_MAX_DEVICES]; /* managed memory that is not charged; see charge.h */
	/* the last good copy of each device's limits, a seqlock among our own threads */
	uint32_t last_seq[SLUICE_MAX_DEVICES];
	uint64_t last_epoch[SLUICE_MAX_DEVICES];
	guest_word last[SLUICE_MAX_DEVICES][GUEST_DEVICE_WORDS];
};

extern struct guest_page *guest_page;

#endif
