/* SPDX-License-Identifier: Apache-2.0 */
/* Reserved addresses, and the memory mapped there. With the memory lock held. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "simgpu/cuda/ranges/range.h"

bool sim_vmm_block(const struct sim_range *reserved, uint64_t address, struct sim_block *ret);

#endif
