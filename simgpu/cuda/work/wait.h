/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for work on behalf of a program. */
#ifndef SIM_WAIT_H
#define SIM_WAIT_H

#include "simgpu/cuda/base/object.h"

/* Like sim_wait(), for a call that synchronises: memory pools then release memory above their threshold. */
CUresult sim_synchronise(struct CUctx_st *context, uint64_t sequence);

#endif
