/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes' pools. Under the memory lock. */
#ifndef SIM_POOL_SHARE_H
#define SIM_POOL_SHARE_H

#include "simgpu/cuda/base/object.h"

/* Let go of it; false: this is none. */
bool sim_pool_import_free(uint64_t address);

#endif
