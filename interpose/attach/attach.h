/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the region of this process's grant and gets a slot in it. See attach.c. */
#ifndef SLUICE_ATTACH_H
#define SLUICE_ATTACH_H

#include <stdint.h>

#include "interpose/attach/region.h"

struct attach_region {
	const struct sluice_policy *policy; /* mapped read-only, so that the kernel stops our own mistakes too */
	struct sluice_usage *usage;
};

/* The identity of this process, read from /proc. */
struct attach_identity {
	uint32_t ns_pid;
	uint64_t starttime; /* field 22 of /proc/self/stat */
	uint64_t process;   /* the process, in every pid namespace; 0 = unknown. See sluice_usage_slot */
	uint64_t image;     /* the program it runs since its last exec; 0 = unknown */
};

struct attach_slot {
	uint32_t slot;
	uint64_t generation; /* odd: registered with the daemon; even: self-claimed while it was away */
};

/* Map the region once per process; the mapping outlives fork. Returns 0 or a negative errno; -ENOENT: no grant here. */
int attach_map(struct attach_region *ret_region);
/* The driver path that the region prescribes, or NULL: search. Needs no slot. */
const char *attach_driver_path(void);
int attach_identify(struct attach_identity *ret_identity);
/* Request a slot from the daemon, or take one if it is away. -ENOSPC: none left; -EPERM or -ESTALE: the daemon
 * refused. */
int attach_register(const struct attach_region *region, const struct attach_identity *identity, uint64_t hook_mask,
                    struct attach_slot *ret_slot);
/* The text of an errno for the one line on stderr. */
const char *attach_strerror(int error);

#endif
