/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping the region of this process's grant, and getting a slot in it. See attach.c. */
#ifndef SLUICE_ATTACH_H
#define SLUICE_ATTACH_H

#include <stdint.h>

#include "interpose/attach/region.h"

struct attach_region {
	const struct sluice_policy *policy; /* mapped read-only: the kernel keeps us honest too */
	struct sluice_usage *usage;
};

/* Who this process is, as /proc says it. */
struct attach_identity {
	uint32_t ns_pid;
	uint64_t starttime; /* field 22 of /proc/self/stat */
	uint64_t process;   /* which process, in every pid namespace; 0 = unknown. See sluice_usage_slot */
	uint64_t image;     /* which program of it; 0 = unknown */
};

struct attach_slot {
	uint32_t slot;
	uint64_t generation; /* odd: registered with the daemon; even: self-claimed while it was away */
};

/* Map the region once per process; the mapping outlives fork. 0 or a negative errno: -ENOENT no grant here. */
int attach_map(struct attach_region *ret_region);
/* The driver the region orders us to use, or NULL: search. Needs no slot. */
const char *attach_driver_path(void);
int attach_identify(struct attach_identity *ret_identity);
/* Ask the daemon for a slot, or take one if it is away: -ENOSPC none left, -EPERM or -ESTALE refused by the daemon. */
int attach_register(const struct attach_region *region, const struct attach_identity *identity, uint64_t hook_mask,
                    struct attach_slot *ret_slot);
/* What went wrong, in words for the one line on stderr. */
const char *attach_strerror(int error);

#endif
