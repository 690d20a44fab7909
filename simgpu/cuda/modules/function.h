/* SPDX-License-Identifier: Apache-2.0 */
/* Functions: their attributes and their duration. */
#ifndef SIM_FUNCTION_H
#define SIM_FUNCTION_H

#include "simgpu/cuda/modules/code.h"

/* The attributes of a new function. */
void sim_function_attributes(struct CUfunc_st *function);
/* The device time of a launch of so many blocks with so many threads each. */
uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params);

#endif
