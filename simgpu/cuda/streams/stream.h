/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the meaning of a handle, and a context's list. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "simgpu/cuda/base/call.h"

/* The stream of a handle: NULL and the special values become the context's own. NULL: an invalid handle. */
struct CUstream_st *sim_stream(struct CUctx_st *context, CUstream handle);
/* Locks the lists of all contexts: `streams` of one may be iterated in between. */
void sim_streams_lock(void);
void sim_streams_unlock(void);
void sim_context_streams_gone(struct CUctx_st *context);

/* Like SIM_CALL_CONTEXT, for a call on a stream. */
#define SIM_STREAM(s, handle)                                                                                          \
	SIM_CALL_CONTEXT(context_);                                                                                    \
	struct CUstream_st *s = sim_stream(context_, handle);                                                          \
	SIM_PASS(s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)

#endif
