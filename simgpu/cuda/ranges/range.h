/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that are charged to a device, and the allocation at an address. With the memory lock held. */
#ifndef SIM_RANGE_H
#define SIM_RANGE_H

#include "simgpu/cuda/ranges/arena.h"

/* The allocation that contains an address: the unit that a caller sees, not a page. */
struct sim_block {
	struct sim_range *range;
	uint64_t base;
	uint64_t bytes;
	int device;
	bool accessible; /* device code and copies may access it */
};

/* A charged range; NULL = out of memory. `context` NULL = it belongs to the process. */
struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged);
/* The same for `taken` bytes in whole pages, or in pages shared with other small ranges of the context. */
struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken);
void sim_range_drop(struct sim_range *range);
/* Small memory is allocated in sizes of 512 bytes times a power of two: the index of that power. */
unsigned sim_size_class(uint64_t bytes);

#endif
