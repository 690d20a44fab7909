/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for streams. */
#include "simgpu/cuda/work/wait.h"

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/pools/pools.h"
#include "simgpu/cuda/streams/streams.h"

CUresult sim_synchronise(struct CUctx_st *context, uint64_t sequence)
{
	CUresult r = sim_wait(context, sequence);

	if (r == CUDA_SUCCESS)
		sim_pools_trim(context);
	return r;
}

/* Querying a captured stream's progress is an error, and it invalidates the capture. */
static CUresult spoilt(struct CUstream_st *s)
{
	s->session->broken = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

SIM_API CUresult cuStreamSynchronize(CUstream stream)
{
	SIM_STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	if (sim_capture_forbids() && s == &s->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	CUresult held = sim_hold_wait(s->context, s);

	return held == CUDA_SUCCESS ? sim_synchronise(s->context, s->last) : held;
}

SIM_API CUresult cuStreamQuery(CUstream stream)
{
	SIM_STREAM(s, stream);
	if (s->session)
		return spoilt(s);
	return !sim_held(s) && sim_done(s->context, s->last) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
