/* SPDX-License-Identifier: Apache-2.0 */
/* The memory at an address. With the memory lock held. */
#ifndef SIM_BLOCK_H
#define SIM_BLOCK_H

#include "simgpu/cuda/ranges/range.h"

bool sim_block_at(uint64_t address, struct sim_block *ret);
/* True if a copy may access all of these bytes. Marks the pages as written. */
bool sim_range_covers(uint64_t address, uint64_t bytes);

#endif
