/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts: primary and own, the stack of each thread, limits. A context takes a lane of its device and some memory.
 */
#include "interpose/sim/control.h"
#include "interpose/sim/memory.h"

static const size_t default_limit[] = {
	[CU_LIMIT_STACK_SIZE] = 1024,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 7340032,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
	[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] = 0,
};

#define LIMITS (sizeof(default_limit) / sizeof(default_limit[0]))

/* Called with process.lock. */
static CUresult create(struct context **ret_ctx, unsigned ordinal, unsigned flags, bool primary)
{
	unsigned device = process.node_index[ordinal], index;
	struct sim_device *d = &sim_node->device[device];
	struct context *ctx;
	uint64_t bytes;
	int lane;

	sim_control_poll(0);
	if (sim_node->knobs.lost[device])
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	for (index = 0; index < MAX_CONTEXTS && process.contexts[index]; index++)
		;
	ctx = index < MAX_CONTEXTS && arena_of(ordinal) ? object_new(OBJECT_CONTEXT, sizeof(*ctx)) : NULL;
	if (!ctx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = sim_node->knobs.context_bytes ? sim_node->knobs.context_bytes : d->model.context_bytes;
	if (!sim_memory_take(device, bytes)) {
		object_free(ctx);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	lane = sim_lane_claim(device);
	if (lane < 0) {
		sim_memory_give(device, bytes);
		object_free(ctx);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ctx->ordinal = ordinal;
	ctx->device = device;
	ctx->lane = (unsigned)lane;
	ctx->index = index;
	ctx->flags = flags;
	ctx->id = ++process.next_id;
	ctx->overhead_bytes = bytes;
	ctx->primary = primary;
	ctx->users = 1;
	ctx->ring = sim_node_ring(device, (unsigned)lane);
	ctx->shared = &d->lane[lane];
	ctx->tail = ctx->done_seen = ctx->shared->tail;
	for (size_t i = 0; i < LIMITS; i++)
		ctx->limit[i] = default_limit[i];
	ctx->legacy = (struct stream){ .object.magic = OBJECT_STREAM, .ctx = ctx, .last = ctx->tail,
		                       .id = ++process.next_id };
	pthread_mutex_init(&ctx->streams_lock, NULL);
	process.contexts[index] = ctx;
	__atomic_fetch_add(&sim_node->client[sim_slot].contexts[device], 1, __ATOMIC_RELEASE);
	*ret_ctx = ctx;
	return CUDA_SUCCESS;
}

/* Called with process.lock. What is queued is cancelled, as a destroyed context's work is. */
static void destroy(struct context *ctx)
{
	submit_harvest(ctx);
	sim_lane_release(ctx->device, ctx->lane);
	context_streams_free(ctx);
	memory_free_context(ctx);
	process.contexts[ctx->index] = NULL;
	__atomic_fetch_sub(&sim_node->client[sim_slot].contexts[ctx->device], 1, __ATOMIC_RELEASE);
	sim_memory_give(ctx->device, ctx->overhead_bytes);
	ctx->legacy.object.magic = 0;
	object_free(ctx);
}

static void set_current(struct context *ctx)
{
	thread.current = ctx;
	if (thread.depth == 0)
		thread.depth = 1;
	thread.stack[thread.depth - 1] = ctx;
}

static CUresult push(struct context *ctx)
{
	if (thread.depth == MAX_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	thread.stack[thread.depth++] = ctx;
	thread.current = ctx;
	return CUDA_SUCCESS;
}

static struct context *pop(void)
{
	struct context *ctx = thread.stack[--thread.depth];

	thread.current = thread.depth ? thread.stack[thread.depth - 1] : NULL;
	return ctx;
}

/* --- primary contexts ------------------------------------------------------------------------------------------- */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_ctx, CUdevice dev)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ret_ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&process.lock);
	if (!process.primary[dev])
		r = create(&process.primary[dev], (unsigned)dev, process.primary_flags[dev], true);
	if (r == CUDA_SUCCESS) {
		process.primary_users[dev]++;
		*ret_ctx = (CUcontext)process.primary[dev];
	}
	pthread_mutex_unlock(&process.lock);
	return r;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&process.lock);
	if (process.primary_users[dev] == 0) {
		r = CUDA_ERROR_INVALID_CONTEXT;
	} else if (--process.primary_users[dev] == 0) {
		destroy(process.primary[dev]);
		process.primary[dev] = NULL;
	}
	pthread_mutex_unlock(&process.lock);
	return r;
}

/* The references stay; the next retain makes a fresh context. */
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&process.lock);
	if (process.primary[dev])
		destroy(process.primary[dev]);
	process.primary[dev] = NULL;
	process.primary_users[dev] = 0;
	pthread_mutex_unlock(&process.lock);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&process.lock);
	process.primary_flags[dev] = flags;
	if (process.primary[dev])
		process.primary[dev]->flags = flags;
	pthread_mutex_unlock(&process.lock);
	return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&process.lock);
	if (flags)
		*flags = process.primary_flags[dev];
	if (active)
		*active = process.primary[dev] != NULL;
	pthread_mutex_unlock(&process.lock);
	return CUDA_SUCCESS;
}

/* --- own contexts ----------------------------------------------------------------------------------------------- */

static CUresult create_own(const char *function, CUcontext *ret_ctx, unsigned flags, CUdevice dev, unsigned version)
{
	CUresult r = api_enter(function);
	struct context *ctx;

	if (r != CUDA_SUCCESS)
		return r;
	if (!ret_ctx || (flags & ~(unsigned)CU_CTX_FLAGS_MASK))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ordinal_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&process.lock);
	r = create(&ctx, (unsigned)dev, flags, false);
	pthread_mutex_unlock(&process.lock);
	if (r != CUDA_SUCCESS)
		return r;
	ctx->api_version = version;
	push(ctx);
	*ret_ctx = (CUcontext)ctx;
	return CUDA_SUCCESS;
}

API CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev)
{
	return create_own(__func__, ctx, flags, dev, 3010);
}

API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
	return create_own(__func__, ctx, flags, dev, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *affinity, int count, unsigned flags, CUdevice dev)
{
	(void)affinity;
	if (count > 0)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return create_own(__func__, ctx, flags, dev, 3020);
}

API CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice dev)
{
	if (params && params->numExecAffinityParams > 0)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (params && params->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create_own(__func__, ctx, flags, dev, 3020);
}

API CUresult cuCtxDestroy_v2(CUcontext handle)
{
	CUresult r = api_enter(__func__);
	struct context *ctx = context_of(handle);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ctx || ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (thread.current == ctx)
		pop();
	pthread_mutex_lock(&process.lock);
	destroy(ctx);
	pthread_mutex_unlock(&process.lock);
	return CUDA_SUCCESS;
}

API CUresult cuCtxAttach(CUcontext *ret_ctx, unsigned flags)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ret_ctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->users++;
	*ret_ctx = (CUcontext)ctx;
	return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext handle)
{
	CUresult r = api_enter(__func__);
	struct context *ctx = context_of(handle);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ctx || ctx != thread.current)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--ctx->users > 0)
		return CUDA_SUCCESS;
	return ctx->primary ? CUDA_SUCCESS : cuCtxDestroy_v2(handle);
}

/* --- the stack of the thread ------------------------------------------------------------------------------------ */

API CUresult cuCtxSetCurrent(CUcontext handle)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!handle) {
		if (thread.depth)
			pop();
		return CUDA_SUCCESS;
	}
	if (!context_of(handle))
		return CUDA_ERROR_INVALID_CONTEXT;
	set_current(context_of(handle));
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *ret_ctx)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (!ret_ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_ctx = (CUcontext)thread.current;
	return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	CUresult r = api_enter(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	return context_of(handle) ? push(context_of(handle)) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *ret_ctx)
{
	CUresult r = api_enter(__func__);
	struct context *ctx;

	if (r != CUDA_SUCCESS)
		return r;
	if (!thread.current)
		return CUDA_ERROR_INVALID_CONTEXT;
	ctx = pop();
	if (ret_ctx)
		*ret_ctx = (CUcontext)ctx;
	return CUDA_SUCCESS;
}

/* The forms of before CUDA 4.0 and 11.0 differ in nothing that is modelled. */
#define SAME_AS(name, params) API CUresult name params __attribute__((alias(#name "_v2")))
SAME_AS(cuCtxDestroy, (CUcontext));
SAME_AS(cuCtxPushCurrent, (CUcontext));
SAME_AS(cuCtxPopCurrent, (CUcontext *));
SAME_AS(cuDevicePrimaryCtxRelease, (CUdevice));
SAME_AS(cuDevicePrimaryCtxReset, (CUdevice));
SAME_AS(cuDevicePrimaryCtxSetFlags, (CUdevice, unsigned));

/* --- what a context says, and its settings ---------------------------------------------------------------------- */

/* The context a handle names; NULL means the current one. */
static CUresult enter_named(const char *function, CUcontext handle, struct context **ret_ctx)
{
	CUresult r;

	if (!handle)
		return api_enter_ctx(function, ret_ctx);
	r = api_enter(function);
	if (r != CUDA_SUCCESS)
		return r;
	*ret_ctx = context_of(handle);
	return *ret_ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle)
{
	struct context *ctx;
	CUresult r = enter_named(__func__, handle, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = (CUdevice)ctx->ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
	return cuCtxGetDevice_v2(device, NULL);
}

API CUresult cuCtxGetFlags(unsigned *flags)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = ctx->flags;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned flags)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->flags = flags;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct context *ctx;
	CUresult r = enter_named(__func__, handle, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = ctx->id;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
	struct context *ctx;
	CUresult r = enter_named(__func__, handle, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = ctx->api_version ? ctx->api_version : 3020;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit >= LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = ctx->limit[limit];
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (limit >= LIMITS)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	ctx->limit[limit] = value;
	return CUDA_SUCCESS;
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_FUNC_CACHE_PREFER_NONE;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	struct context *ctx;

	(void)config;
	return api_enter_ctx(__func__, &ctx);
}

API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	struct context *ctx;

	(void)config;
	return api_enter_ctx(__func__, &ctx);
}

API CUresult cuCtxResetPersistingL2Cache(void)
{
	struct context *ctx;

	return api_enter_ctx(__func__, &ctx);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *ctx;
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize_v2(CUcontext handle)
{
	struct context *ctx;
	CUresult r = enter_named(__func__, handle, &ctx);

	if (r == CUDA_SUCCESS)
		r = capture_allows_unsafe(ctx);
	if (r != CUDA_SUCCESS)
		return r;
	r = context_wait(ctx, __atomic_load_n(&ctx->tail, __ATOMIC_ACQUIRE));
	pools_at_sync(ctx);
	return r;
}

API CUresult cuCtxSynchronize(void)
{
	return cuCtxSynchronize_v2(NULL);
}

API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags)
{
	struct context *ctx, *peer = context_of(handle);
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!peer || peer == ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (peer->ordinal != ctx->ordinal && !(node_device((CUdevice)ctx->ordinal)->model.nvlink &&
	                                       node_device((CUdevice)peer->ordinal)->model.nvlink))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (ctx->peers & 1u << peer->ordinal)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	ctx->peers |= 1u << peer->ordinal;
	return CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	struct context *ctx, *peer = context_of(handle);
	CUresult r = api_enter_ctx(__func__, &ctx);

	if (r != CUDA_SUCCESS)
		return r;
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(ctx->peers & 1u << peer->ordinal))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	ctx->peers &= ~(1u << peer->ordinal);
	return CUDA_SUCCESS;
}
