/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: pools grow by whole granules and shrink when trimmed. */
#include "tests/interpose/stub/stub.h"

/* With the lock held: a pool is released as a whole, when it is destroyed and nothing of it is handed out. */
static void end(struct object *pool)
{
	gpu[pool->dev].used -= pool->bytes;
	pool->bytes = 0;
	pool->kind = FREE;
}

static CUresult from_pool(CUdeviceptr *dptr, size_t bytes, struct object *pool)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t more = 0;
	struct object *o;

	if (capturing) {
		*dptr = UINT64_C(0x600000000000);
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&lock);
	if (pool->used + bytes > pool->bytes)
		more = (pool->used + bytes - pool->bytes + GRANULE - 1) / GRANULE * GRANULE;
	if (!take(pool->dev, more, POOL)) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		pool->bytes += more;
		pool->used += bytes;
		o = make(ASYNC, pool->dev, bytes);
		o->owner = (uint64_t)pool;
		*dptr = address_of(o);
	}
	pthread_mutex_unlock(&lock);
	return r;
}
static bool async_free(CUdeviceptr dptr)
{
	struct object *o, *pool;

	pthread_mutex_lock(&lock);
	o = object_at(dptr, ASYNC);
	if (o) {
		pool = (struct object *)o->owner;
		pool->used -= o->bytes;
		o->kind = FREE;
		if (pool->dead && pool->used == 0)
			end(pool);
	}
	pthread_mutex_unlock(&lock);
	return o != NULL;
}
API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	pthread_mutex_lock(&lock);
	if (!gpu[dev].default_pool)
		gpu[dev].default_pool = make(POOL, dev, 0);
	pthread_mutex_unlock(&lock);
	*pool = (CUmemoryPool)gpu[dev].default_pool;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	if (!gpu[dev].pool)
		return cuDeviceGetDefaultMemPool(pool, dev);
	*pool = (CUmemoryPool)gpu[dev].pool;
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	pthread_mutex_lock(&lock);
	*pool = (CUmemoryPool)make(POOL, props->location.id, 0);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct object *pool = (struct object *)handle;
	uint64_t floor;

	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	floor = (pool->used + GRANULE - 1) / GRANULE * GRANULE;
	if (floor < keep)
		floor = keep;
	if (pool->bytes > floor) {
		gpu[pool->dev].used -= pool->bytes - floor;
		pool->bytes = floor;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct object *pool = (struct object *)handle;

	pthread_mutex_lock(&lock);
	pool->dead = true;
	if (pool->used == 0)
		end(pool);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value)
{
	struct object *pool = (struct object *)handle;

	if (pool->kind != POOL || pool->dead)
		return CUDA_ERROR_INVALID_VALUE;
	*(uint64_t *)value = which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->bytes : pool->used;
	return CUDA_SUCCESS;
}
API CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	CUmemoryPool pool;
	CUresult r = begin();

	(void)stream;
	if (r != CUDA_SUCCESS)
		return r;
	cuDeviceGetMemPool(&pool, current()->dev);
	return from_pool(dptr, bytes, (struct object *)pool);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)stream;
	return from_pool(dptr, bytes, (struct object *)pool);
}
API CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	if (async_free(dptr))
		return CUDA_SUCCESS;
	return dptr ? give_back(dptr, MEMORY, CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}
API CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	(void)stream;
	return cuMemFree_v2(dptr);
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}
