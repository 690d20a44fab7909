/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting on behalf of a program. */
#ifndef SIM_WAIT_H
#define SIM_WAIT_H

#include "simgpu/cuda/base/object.h"

/* As sim_wait(), by a call that synchronises: memory pools give back what they may. */
CUresult sim_synchronise(struct CUctx_st *context, uint64_t sequence);

#endif
