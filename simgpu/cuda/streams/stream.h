/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: what a handle means, and the list of a context's. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "simgpu/cuda/base/call.h"

/* The stream a handle means here: NULL and the special values become the context's own. NULL: it means none. */
struct CUstream_st *sim_stream(struct CUctx_st *context, CUstream handle);
/* The lists of all contexts: `streams` of one may be walked in between. */
void sim_streams_lock(void);
void sim_streams_unlock(void);
void sim_context_streams_gone(struct CUctx_st *context);

/* As SIM_CALL_CONTEXT, for a call about a stream. */
#define SIM_STREAM(s, handle)                                                                                          \
	SIM_CALL_CONTEXT(context_);                                                                                    \
	struct CUstream_st *s = sim_stream(context_, handle);                                                          \
	SIM_PASS(s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)

#endif
