/* SPDX-License-Identifier: Apache-2.0 */
/* Plain device memory. */
#ifndef SIM_ALLOC_H
#define SIM_ALLOC_H

#include "simgpu/cuda/base/object.h"

/* With the lock held: frees the allocations of a context that ends. */
void sim_allocations_context_gone(struct CUctx_st *context);

#endif
