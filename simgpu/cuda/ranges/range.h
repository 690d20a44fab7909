/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges that a device is charged for, and what an address in one belongs to. With the memory lock held. */
#ifndef SIM_RANGE_H
#define SIM_RANGE_H

#include "simgpu/cuda/ranges/arena.h"

/* What an address belongs to, as a caller sees it: not a page but the allocation. */
struct sim_block {
	struct sim_range *range;
	uint64_t base;
	uint64_t bytes;
	int device;
	bool accessible; /* device code and copies may touch it */
};

/* A charged range; NULL = no memory. `context` NULL = belongs to the process. */
struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged);
/* The same for `taken` bytes in whole pages, or in pages shared with other small ranges of the context. */
struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken);
void sim_range_drop(struct sim_range *range);
/* Small memory is given out in sizes of 512 bytes times a power of two: which one. */
unsigned sim_size_class(uint64_t bytes);

#endif
