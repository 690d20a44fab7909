/* SPDX-License-Identifier: Apache-2.0 */
/* Physical memory apart from addresses. With the memory lock held. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include <sys/types.h>

#include "simgpu/cuda/ranges/arena.h"

struct sim_physical {
	CUmemAllocationProp prop;
	uint64_t bytes, charged, offset;
	int fd;                  /* separate memfd, or the arena's when there is a range */
	struct sim_range *range; /* range of the arena; NULL = a separate memfd */
	ino_t ino;               /* inode of that memfd */
	uint32_t handles, mappings;
	uint32_t generation; /* distinguishes a reused slot's handles from the earlier ones */
	bool in_use;
};

/* NULL: no such handle. */
struct sim_physical *sim_physical_of(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle sim_physical_handle(const struct sim_physical *p);
/* Called after a reference was dropped. */
void sim_physical_settle(struct sim_physical *p);

#endif
