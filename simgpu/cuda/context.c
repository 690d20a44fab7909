/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: each occupies a lane of its GPU, a ring, and the memory of a real one. */
#include <pthread.h>
#include <stdlib.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/pools/pools.h"
#include "simgpu/cuda/ranges/ranges.h"
#include "simgpu/cuda/streams/streams.h"
#include "simgpu/cuda/work/wait.h"

/* Uses the given record (an inactive primary context's, which keeps its handle), or a new one when it is NULL. */
static CUresult context_make(struct sim_device *d, int ordinal, unsigned flags, struct CUctx_st **ret_context)
{
	static uint64_t made;
	uint64_t overhead = sim_knob_number("context_mib", d->model->context_bytes >> 20) << 20;

	if (d->gpu->lost)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (!sim_charge(d, overhead))
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct CUctx_st *known = *ret_context, *c = known ? known : calloc(1, sizeof(*c));

	if (!c) {
		sim_uncharge(d, overhead);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	sim_lock(d->gpu);
	sim_advance(sim_process()->state, d->gpu);
	sim_reap(sim_process()->state, d->gpu, true);
	if (!d->gpu->live || d->gpu->generation != d->generation || d->gpu->mig_mode) {
		/* cut into other MIG instances since this process read it */
		sim_unlock(d->gpu);
		sim_uncharge(d, overhead);
		if (c != known)
			free(c);
		return CUDA_ERROR_INVALID_DEVICE;
	}
	struct sim_schedule *draft = sim_edit_begin(d->gpu);
	uint32_t lane = 0;

	while (lane < SIM_CONTEXTS && draft->lane[lane].in_use)
		lane++;
	if (lane == SIM_CONTEXTS) {
		sim_unlock(d->gpu);
		sim_uncharge(d, overhead);
		if (c != known)
			free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	d->gpu->ring[lane].head = 0;
	timeline_open(draft, lane, (uint32_t)sim_process()->client_index);
	sim_edit_end(d->gpu);
	sim_unlock(d->gpu);

	*c = (struct CUctx_st){ .id = __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) };
	c->gpu = d->gpu;
	c->device = ordinal;
	c->index = lane;
	c->flags = flags;
	c->references = 1;
	c->overhead_bytes = overhead;
	c->legacy = (struct CUstream_st){ .tag = SIM_TAG_STREAM, .context = c };
	c->limit[CU_LIMIT_STACK_SIZE] = 1024;
	c->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
	c->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
	__atomic_store_n(&c->tag, SIM_TAG_CONTEXT, __ATOMIC_RELEASE);
	sim_context_listed(c);
	*ret_context = c;
	return CUDA_SUCCESS;
}

/* All allocations of a context end with it. Objects in records go before the ranges they point to. */
static void memory_end(struct CUctx_st *c)
{
	sim_memory_lock();
	sim_arrays_context_gone(c);
	sim_pools_context_gone(c);
	sim_imports_context_gone(c);
	sim_allocations_context_gone(c);
	sim_memory_unlock();
}

static void context_end(struct CUctx_st *c)
{
	struct sim_device *d = sim_device_get(c->device);

	sim_hold_drop(c);
	sim_wait(c, sim_submitted(c));
	sim_lock(c->gpu);
	sim_advance(sim_process()->state, c->gpu);
	timeline_close(sim_edit_begin(c->gpu), c->index);
	sim_edit_end(c->gpu);
	sim_unlock(c->gpu);
	sim_context_streams_gone(c);
	memory_end(c);
	sim_uncharge(d, c->overhead_bytes);
	sim_context_unlisted(c);
	if (c->primary) {
		c->tag = SIM_TAG_INACTIVE; /* when retained again, it has the same handle in every thread */
		return;
	}
	sim_current_forget(c);
	c->tag = 0; /* other threads may still have it on their stacks: the small record is kept, not freed */
}

static bool active(const struct sim_device *d)
{
	return d->primary && d->primary->tag == SIM_TAG_CONTEXT;
}

#define DEVICE(d, handle)                                                                                              \
	SIM_CALL();                                                                                                    \
	struct sim_device *d = sim_device_get(handle);                                                                 \
	SIM_PASS(d ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE)

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	DEVICE(d, device);
	CUresult r = CUDA_SUCCESS;
	static pthread_mutex_t primary = PTHREAD_MUTEX_INITIALIZER;

	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&primary);
	if (active(d)) {
		d->primary->references++;
	} else {
		r = context_make(d, device, d->primary_flags, &d->primary);
		if (r == CUDA_SUCCESS)
			d->primary->primary = true;
	}
	*context = d->primary;
	pthread_mutex_unlock(&primary);
	return r;
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	DEVICE(d, device);
	if (!active(d))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--d->primary->references == 0)
		context_end(d->primary);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	DEVICE(d, device);
	if (active(d))
		context_end(d->primary);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return cuDevicePrimaryCtxReset_v2(device);
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active)
{
	DEVICE(d, device);
	if (!flags || !is_active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = d->primary_flags;
	*is_active = active(d);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	DEVICE(d, device);
	d->primary_flags = flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	DEVICE(d, device);
	if (active(d))
		return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
	d->primary_flags = flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	DEVICE(d, device);
	struct CUctx_st *made = NULL;

	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_make(d, device, flags, &made);

	if (r != CUDA_SUCCESS)
		return r;
	if (!sim_current_push(made))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*context = made;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                                CUdevice device)
{
	if (affinity && count > 0)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
	(void)params;
	return cuCtxCreate_v2(context, flags, device);
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext context)
{
	SIM_CALL();
	if (!context || !sim_context_alive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	bool top = sim_current() == context;

	context_end(context);
	if (top)
		sim_current_pop(&context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

SIM_API CUresult cuCtxDetach(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	SIM_CALL();
	if (!context || !(sim_context_alive(context) || sim_context_inactive(context)))
		return CUDA_ERROR_INVALID_CONTEXT;
	return sim_current_push(context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuCtxPushCurrent(CUcontext context)
{
	return cuCtxPushCurrent_v2(context);
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	SIM_CALL();
	struct CUctx_st *left;

	if (!sim_current_pop(&left))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context)
		*context = left;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxPopCurrent(CUcontext *context)
{
	return cuCtxPopCurrent_v2(context);
}

SIM_API CUresult cuCtxSetCurrent(CUcontext context)
{
	SIM_CALL();
	if (context && !sim_context_alive(context) && !sim_context_inactive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_current_set(context);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *context)
{
	SIM_CALL();
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = sim_context_inactive(sim_current_top()) ? sim_current_top() : sim_current();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice *device)
{
	SIM_CALL_CONTEXT(context);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	SIM_CALL();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context)
		return cuCtxGetDevice(device);
	if (!sim_context_alive(context) && !sim_context_inactive(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = context->device;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetFlags(unsigned *flags)
{
	SIM_CALL_CONTEXT(context);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	SIM_CALL();
	context = context ? context : sim_current();
	if (!id || !context)
		return CUDA_ERROR_INVALID_VALUE;
	*id = context->id;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
	SIM_CALL();
	(void)context;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSynchronize(void)
{
	SIM_CALL_CONTEXT(context);
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	CUresult held = sim_hold_wait(context, NULL);

	if (held != CUDA_SUCCESS)
		return held;
	return sim_synchronise(context, sim_submitted(context));
}

/* As an H200 does (driver 580): allocated at once, for all threads that its SMs can hold. The first KiB is part of the
 * context's own memory. */
static bool stacks_resize(struct CUctx_st *c, size_t value)
{
	struct sim_device *d = sim_device_get(c->device);
	uint64_t threads = (uint64_t)d->model->sm_count * d->model->threads_per_sm, was = c->limit[CU_LIMIT_STACK_SIZE];
	uint64_t bytes = threads * (value > was ? value - was : was - value);

	if (value > was) {
		if (value > UINT32_MAX || !sim_charge(d, bytes))
			return false;
		__atomic_fetch_add(&c->overhead_bytes, bytes, __ATOMIC_RELAXED);
	} else {
		sim_uncharge(d, bytes);
		__atomic_fetch_sub(&c->overhead_bytes, bytes, __ATOMIC_RELAXED);
	}
	return true;
}

SIM_API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	SIM_CALL_CONTEXT(context);
	if ((unsigned)limit >= 16)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (limit == CU_LIMIT_STACK_SIZE && !stacks_resize(context, value))
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->limit[limit] = value;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	SIM_CALL_CONTEXT(context);
	if (!value || (unsigned)limit >= 16)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = context->limit[limit];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	*config = CU_FUNC_CACHE_PREFER_NONE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)config;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	if (flags || !peer || peer == context)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return peer ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
