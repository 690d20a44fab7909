/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points that launch kernels. */
#include <time.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/modules/modules.h"
#include "simgpu/cuda/ranges/ranges.h"
#include "simgpu/cuda/streams/streams.h"

#define LOADING_NS 500000

/* Drivers load code at its first launch, which takes memory (knob code_mib, 0: none) and time. */
static CUresult load(struct CUctx_st *context, CUfunction f)
{
	if (__atomic_exchange_n(&f->loaded, true, __ATOMIC_RELAXED))
		return CUDA_SUCCESS;
	uint64_t bytes = sim_knob_number("code_mib", 0) << 20;

	if (!bytes)
		return CUDA_SUCCESS;
	if (!sim_charge(sim_device_get(context->device), bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	__atomic_fetch_add(&context->overhead_bytes, bytes, __ATOMIC_RELAXED);
	nanosleep(&(struct timespec){ .tv_nsec = LOADING_NS }, NULL);
	return CUDA_SUCCESS;
}

static inline CUresult launch(struct CUctx_st *context, CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                              unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
	struct CUstream_st *s = sim_stream(context, stream);
	uint64_t threads = (uint64_t)bx * by * bz;

	if (!SIM_HANDLE(f, SIM_TAG_FUNCTION) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (gx == 0 || gy == 0 || gz == 0 || threads == 0)
		return CUDA_ERROR_INVALID_VALUE;
	context = s->context; /* of the stream, whatever context is current */
	if (f->module->context && f->module->context != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (threads > (uint64_t)f->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] ||
	    shared > (unsigned)f->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES])
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t ns = sim_kernel_ns(f, sim_model_of(context), (uint64_t)gx * gy * gz, threads, params);

	if (s->session || sim_capture_forbids()) {
		struct sim_node_params node = { .type = CU_GRAPH_NODE_TYPE_KERNEL,
			                        .duration_ns = ns,
			                        .kernel = { .func = f,
			                                    .gridDimX = gx,
			                                    .gridDimY = gy,
			                                    .gridDimZ = gz,
			                                    .blockDimX = bx,
			                                    .blockDimY = by,
			                                    .blockDimZ = bz,
			                                    .sharedMemBytes = shared } };
		CUresult error;
		enum sim_capture captured = sim_capture_or_run(s, &node, &error);

		if (captured != SIM_RUN)
			return captured == SIM_CAPTURED ? CUDA_SUCCESS : error;
	}
	if (!f->loaded && load(context, f) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (sim_held(s))
		return sim_hold_work(s, ns);
	s->last = sim_submit(context, SIM_OP_WORK, ns, 0);
	return CUDA_SUCCESS;
}

/* Where parameters are passed as one buffer: that buffer, which begins with the first parameter. */
static void *buffer_of(void **extra)
{
	for (; extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			return extra[1];
	return NULL;
}

SIM_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
	SIM_CALL_CONTEXT(context);
	void *first = params ? NULL : buffer_of(extra);

	return launch(context, f, gx, gy, gz, bx, by, bz, shared, stream, first ? &first : params);
}

SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	SIM_CALL_CONTEXT(context);
	void *first = params ? NULL : buffer_of(extra);

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(context, f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
	              c->sharedMemBytes, c->hStream, first ? &first : params);
}

SIM_API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
	SIM_CALL_CONTEXT(context);
	uint64_t resident = (uint64_t)sim_model_of(context)->sm_count * (sim_model_of(context)->threads_per_sm / 32);

	if ((uint64_t)gx * gy * gz > resident)
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return launch(context, f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

SIM_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	SIM_CALL();
	(void)flags;
	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		struct CUstream_st *s = list[i].hStream;

		if (!SIM_HANDLE(s, SIM_TAG_STREAM))
			return CUDA_ERROR_INVALID_HANDLE;
		CUresult r = launch(s->context, list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ,
		                    list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ, list[i].sharedMemBytes, s,
		                    list[i].kernelParams);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}
