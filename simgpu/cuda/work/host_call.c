/* SPDX-License-Identifier: Apache-2.0 */
/* Host functions in stream order. */
#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/streams/streams.h"

struct host_call {
	CUhostFn function;
	void *data;
};

static void host_effect(void *argument)
{
	struct host_call *call = argument;

	call->function(call->data);
}

static void call_held(struct CUstream_st *stream, void *argument)
{
	(void)stream;
	host_effect(argument);
}

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	SIM_STREAM(s, stream);
	struct host_call call = { function, data };
	struct sim_node_params node = { .type = CU_GRAPH_NODE_TYPE_HOST,
		                        .effect = host_effect,
		                        .argument = &call,
		                        .argument_bytes = sizeof(call) };
	CUresult error;

	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	switch (sim_capture_or_run(s, &node, &error)) {
	case SIM_CAPTURED:
		return CUDA_SUCCESS;
	case SIM_CAPTURE_ERROR:
		return error;
	default:
		break;
	}
	if (sim_held(s))
		return sim_hold(s, sim_ready_idle, call_held, &call, sizeof(call), NULL);
	/* There is no thread of the driver, so the calling thread waits for the stream and calls the function. */
	CUresult r = sim_wait(s->context, s->last);

	if (r == CUDA_SUCCESS)
		function(data);
	return r;
}

struct callback {
	CUstream stream; /* the handle as the caller passed it */
	CUstreamCallback function;
	void *data;
};

static void callback_held(struct CUstream_st *stream, void *argument)
{
	const struct callback *call = argument;

	call->function(call->stream, stream->context->gpu->lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS,
	               call->data);
}

SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags)
{
	SIM_STREAM(s, stream);
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_held(s))
		return sim_hold(s, sim_ready_idle, callback_held, &(struct callback){ stream, callback, data },
		                sizeof(struct callback), NULL);
	CUresult r = sim_wait(s->context, s->last);

	callback(stream, r, data);
	return CUDA_SUCCESS;
}
