/* SPDX-License-Identifier: Apache-2.0 */
/* Imported memory of other processes' pools. Under the memory lock. */
#ifndef SIM_POOL_SHARE_H
#define SIM_POOL_SHARE_H

#include "simgpu/cuda/base/object.h"

/* Release it; false: not imported memory. */
bool sim_pool_import_free(uint64_t address);

#endif
