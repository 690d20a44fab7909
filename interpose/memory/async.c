/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of stream-ordered memory: cuMemAllocAsync and related calls, and pools of the application's own. Their
 * charge is kept in the pool's ledger, pool.c. Under stream capture they build graph nodes and allocate nothing; then
 * they are not charged here.
 */
#include "interpose/driver/driver.h"
#include "interpose/driver/location.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/tenant/capture.h"
#include "interpose/tenant/guest.h"

/* The device whose pool serves a stream: with one GPU no query is needed. */
static CUresult stream_device(CUstream stream, bool per_thread, CUdevice *ret_dev)
{
	CUresult (*ask)(CUstream, CUcontext *) = per_thread ? driver.cuStreamGetCtx_ptsz : driver.cuStreamGetCtx;
	CUcontext own = NULL, context = NULL;
	CUresult r;

	if (guest_self()->device_count > 1 && (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && ask &&
	    driver.cuCtxPushCurrent_v2 && driver.cuCtxPopCurrent_v2 && driver.cuCtxGetCurrent &&
	    ask(stream, &context) == CUDA_SUCCESS && driver.cuCtxGetCurrent(&own) == CUDA_SUCCESS && context != own &&
	    driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		r = driver.cuCtxGetDevice(ret_dev);
		driver.cuCtxPopCurrent_v2(&own);
		return r;
	}
	return driver.cuCtxGetDevice ? driver.cuCtxGetDevice(ret_dev) : CUDA_ERROR_NOT_FOUND;
}

/* The device of a pool whose creation was not seen: one of the default pools, else the stream's. */
static struct pool *known_pool(CUmemoryPool handle, CUdevice fallback)
{
	struct pool *p = pool_find(handle);
	CUmemoryPool other;

	if (p)
		return p;
	for (uint32_t i = 0; driver.cuDeviceGetDefaultMemPool && i < guest_self()->device_count; i++)
		if (driver.cuDeviceGetDefaultMemPool(&other, (CUdevice)i) == CUDA_SUCCESS && other == handle)
			fallback = (CUdevice)i;
	return pool_of(handle, guest_device_of_ordinal(fallback));
}

static CUresult alloc_async(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr *, size_t, CUstream) =
		per_thread ? driver.cuMemAllocAsync_ptsz : driver.cuMemAllocAsync;
	CUmemoryPool handle;
	struct pool *p;
	uint64_t held;
	CUdevice dev;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !guest_enter())
		return real(dptr, bytes, stream);
	if (capture_records(stream, per_thread) || !driver.cuDeviceGetMemPool ||
	    stream_device(stream, per_thread, &dev) != CUDA_SUCCESS ||
	    driver.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS) {
		r = real(dptr, bytes, stream); /* fails, or records a node */
	} else {
		p = known_pool(handle, dev);
		r = p && pool_device(p) >= 0 ? pool_claim(p, bytes, &held) : CUDA_ERROR_OUT_OF_MEMORY;
		if (r == CUDA_SUCCESS)
			r = pool_settle(p, held, real(dptr, bytes, stream), dptr, bytes, stream);
	}
	guest_leave();
	return r;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return alloc_async(dptr, bytes, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return alloc_async(dptr, bytes, stream, true);
}

static CUresult alloc_from_pool(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
		per_thread ? driver.cuMemAllocFromPoolAsync_ptsz : driver.cuMemAllocFromPoolAsync;
	struct pool *p;
	uint64_t held;
	CUdevice dev;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !handle || !guest_enter())
		return real(dptr, bytes, handle, stream);
	if (capture_records(stream, per_thread) || stream_device(stream, per_thread, &dev) != CUDA_SUCCESS) {
		r = real(dptr, bytes, handle, stream);
	} else {
		p = known_pool(handle, dev);
		if (p && pool_device(p) == POOL_DEVICE_NONE) {
			r = real(dptr, bytes, handle, stream);
		} else {
			r = p && pool_device(p) >= 0 ? pool_claim(p, bytes, &held) : CUDA_ERROR_OUT_OF_MEMORY;
			if (r == CUDA_SUCCESS)
				r = pool_settle(p, held, real(dptr, bytes, handle, stream), dptr, bytes, stream);
		}
	}
	guest_leave();
	return r;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return alloc_from_pool(dptr, bytes, pool, stream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return alloc_from_pool(dptr, bytes, pool, stream, true);
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr, CUstream) = per_thread ? driver.cuMemFreeAsync_ptsz : driver.cuMemFreeAsync;
	struct ptrmap_entry entry;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return real(dptr, stream);
	/* removed from the map before the driver may give the address to another thread */
	if (ptrmap_take(PTRMAP_ASYNC, dptr, &entry) || ptrmap_take(PTRMAP_MEMORY, dptr, &entry)) {
		r = real(dptr, stream);
		if (r != CUDA_SUCCESS)
			ptrmap_put(&entry);
		else if (entry.kind == PTRMAP_ASYNC)
			pool_freed(&entry);
		else
			charge_return(entry.device, entry.bytes);
	} else {
		r = real(dptr, stream);
	}
	guest_leave();
	return r;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	return free_async(dptr, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	return free_async(dptr, stream, true);
}

/* The device from which a pool of this kind and location takes memory. Pages of managed memory may move to any device:
 * most likely to that of the calling thread. */
static int device_of_place(const CUmemLocation *location, CUmemAllocationType type)
{
	int ordinal = location_ordinal(location), device;

	if (ordinal >= 0)
		return guest_device_of_ordinal(ordinal);
	if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return POOL_DEVICE_NONE;
	device = guest_current_device();
	return device >= 0 ? device : guest_device_of_ordinal(0);
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	CUresult r;

	if (!driver.cuMemPoolCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!handle || !props || !guest_enter())
		return driver.cuMemPoolCreate(handle, props);
	r = driver.cuMemPoolCreate(handle, props);
	if (r == CUDA_SUCCESS && !pool_of(*handle, device_of_place(&props->location, props->allocType))) {
		if (driver.cuMemPoolDestroy)
			driver.cuMemPoolDestroy(*handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

/* CUDA 13: pools that no program made, pools of the host and of managed memory among them. */
static CUresult pool_at(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type,
                        CUresult (*real)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType))
{
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	r = real(handle, location, type);
	if (r != CUDA_SUCCESS || !handle || !location || !guest_enter())
		return r;
	if (!pool_of(*handle, device_of_place(location, type)))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	guest_leave();
	return r;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type)
{
	return pool_at(handle, location, type, driver.cuMemGetDefaultMemPool);
}

CUresult cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type)
{
	return pool_at(handle, location, type, driver.cuMemGetMemPool);
}

/* Another process's pool. No memory is allocated from it, and what is mapped is charged to its exporter; but its
 * figures include that memory, and after a call that the driver refuses they would be charged here. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable, CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
	CUresult r;

	if (!driver.cuMemPoolImportFromShareableHandle)
		return CUDA_ERROR_NOT_FOUND;
	r = driver.cuMemPoolImportFromShareableHandle(handle, shareable, type, flags);
	if (r != CUDA_SUCCESS || !handle || !guest_enter())
		return r;
	if (!pool_of(*handle, POOL_DEVICE_NONE)) {
		if (driver.cuMemPoolDestroy)
			driver.cuMemPoolDestroy(*handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct pool *p;
	CUresult r;

	if (!driver.cuMemPoolDestroy)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemPoolDestroy(handle);
	p = pool_destroy_begin(handle);
	r = driver.cuMemPoolDestroy(handle);
	if (p)
		pool_destroy_end(p, r == CUDA_SUCCESS);
	guest_leave();
	return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	CUresult r;

	if (!driver.cuMemPoolTrimTo)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemPoolTrimTo(handle, keep_bytes);
	r = driver.cuMemPoolTrimTo(handle, keep_bytes);
	for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
		pool_refresh(device);
	guest_leave();
	return r;
}
