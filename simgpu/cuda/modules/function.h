/* SPDX-License-Identifier: Apache-2.0 */
/* Functions: what they say of themselves, and how long they take. */
#ifndef SIM_FUNCTION_H
#define SIM_FUNCTION_H

#include "simgpu/cuda/modules/code.h"

/* What a fresh function says of itself. */
void sim_function_attributes(struct CUfunc_st *function);
/* The device time of a launch of that many blocks and threads of each. */
uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params);

#endif
