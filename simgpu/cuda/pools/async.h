/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation. */
#ifndef SIM_ASYNC_H
#define SIM_ASYNC_H

#include "simgpu/cuda/base/object.h"

/* Takes the lock: a pointer from a pool or a graph may be freed by cuMemFree too. false: not such a pointer. */
bool sim_pool_free(uint64_t address);

#endif
