/* SPDX-License-Identifier: Apache-2.0 */
/* A context's queue of operations, from a submission to its end. */
#ifndef SIM_QUEUE_H
#define SIM_QUEUE_H

#include "simgpu/cuda/base/object.h"

/* Queue one operation; returns its sequence number. Blocks while the queue is full, as real drivers do. */
uint64_t sim_submit(struct CUctx_st *context, enum sim_op_kind kind, uint64_t duration_ns, uint32_t cell);
/* The sequence number of the last operation. */
static inline uint64_t sim_submitted(const struct CUctx_st *context)
{
	return __atomic_load_n(&context->gpu->ring[context->index].head, __ATOMIC_ACQUIRE);
}

/* True if operation `sequence` is done. */
bool sim_done(struct CUctx_st *context, uint64_t sequence);
/* Wait until operation `sequence` is done. Returns CUDA_SUCCESS, or the device's error. */
CUresult sim_wait(struct CUctx_st *context, uint64_t sequence);
/* Time to write, or read, that many bytes of device memory. */
uint64_t sim_copy_ns(const struct CUctx_st *context, uint64_t bytes);

#endif
