/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of another process. */
#ifndef SIM_IPC_H
#define SIM_IPC_H

#include "simgpu/cuda/base/object.h"

/* With the lock held: closes the handles opened in a context that ends. */
void sim_imports_context_gone(struct CUctx_st *context);

#endif
