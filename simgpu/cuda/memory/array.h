/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays. With the memory lock held. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "simgpu/cuda/ranges/arena.h"

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

#endif
