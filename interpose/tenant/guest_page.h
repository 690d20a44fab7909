/* SPDX-License-Identifier: Apache-2.0 */
/* The state of this process alone, in memory that a forked child finds zeroed. Only this folder accesses it. */
#ifndef SLUICE_GUEST_PAGE_H
#define SLUICE_GUEST_PAGE_H

#include "interpose/attach/attach.h"
#include "interpose/tenant/guest_view.h"

typedef uint64_t __attribute__((may_alias)) guest_word;

#define GUEST_DEVICE_WORDS (sizeof(struct sluice_policy_device) / sizeof(guest_word))

/* The bytes that this process has charged on one device; see tally.c. */
struct guest_tally {
	uint64_t charged; /* slot << TALLY_SLOT_SHIFT | bytes: where the charge stands and its size, in one word */
	uint64_t beyond;  /* bytes of managed memory that are not charged; returned bytes reduce them first */
};

#define TALLY_SLOT_SHIFT 56
#define TALLY_INSIDE_SHIFT 46
#define TALLY_BYTES ((UINT64_C(1) << TALLY_INSIDE_SHIFT) - 1)

static_assert(SLUICE_MAX_SLOTS <= 1 << (64 - TALLY_SLOT_SHIFT), "a slot number fits beside the bytes");

struct guest_page {
	struct sluice_guest guest;
	uint32_t slot; /* release when it changes; read through guest_slot() */
	uint64_t generation;
	uint32_t state;   /* DETACHED, which is what a wiped page says, up to READY */
	uint32_t epoch;   /* number of the attach in this process image; never 0 once attached */
	uint32_t moving;  /* a thread is re-registering */
	uint32_t waiting; /* threads at the gate */
	struct attach_identity identity;
	struct guest_tally tally[SLUICE_MAX_DEVICES];
	/* the last good copy of each device's limits, a seqlock among our own threads */
	uint32_t last_seq[SLUICE_MAX_DEVICES];
	uint64_t last_epoch[SLUICE_MAX_DEVICES];
	guest_word last[SLUICE_MAX_DEVICES][GUEST_DEVICE_WORDS];
};

extern struct guest_page *guest_page;

/* Write the identity of this process into a slot of usage.shm: the last step before the slot is used. */
void guest_introduce(const struct attach_slot *slot);

#endif
