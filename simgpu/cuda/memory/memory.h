/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <sys/types.h>

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/ranges/ranges.h"

/* The memory at an address. With the memory lock held. */

bool sim_block_at(uint64_t address, struct sim_block *ret);
/* True if a copy may access all of these bytes. Marks the pages as written. */
bool sim_range_covers(uint64_t address, uint64_t bytes);

/* Host memory that the driver allocated or registered. With the memory lock held. */

bool sim_host_covers(uint64_t address, uint64_t bytes);
CUresult sim_host_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address);

/* Plain device memory. */

/* With the lock held: frees the allocations of a context that ends. */
void sim_allocations_context_gone(struct CUctx_st *context);

/* Arrays. With the memory lock held. */

/* The bytes of an array, tightly packed. */
struct sim_array_view {
	struct sim_range *range;
	uint8_t *bytes;
	uint64_t row_bytes, rows, slices;
	uint32_t element_bytes;
};

/* false = no such array, or no memory is mapped to it. */
bool sim_array_view(CUarray array, struct sim_array_view *ret);
void sim_arrays_context_gone(struct CUctx_st *context);

/* Physical memory apart from addresses. With the memory lock held. */

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

/* Reserved addresses, and the memory mapped there. With the memory lock held. */

bool sim_vmm_block(const struct sim_range *reserved, uint64_t address, struct sim_block *ret);

/* Device memory of another process. */

/* With the lock held: closes the handles opened in a context that ends. */
void sim_imports_context_gone(struct CUctx_st *context);

#endif
