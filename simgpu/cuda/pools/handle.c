/* SPDX-License-Identifier: Apache-2.0 */
/* Pools as objects: creation, attributes, queries and destruction; and the pools from which allocations come. */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/pools/pools.h"

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_CALL();
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	*pool = sim_pool_default(device);
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_CALL();
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	*pool = sim_pool_current(device);
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	if (pool && sim_pool_alive(pool) && pool->device == device && !pool->imported) {
		sim_pool_use(device, pool);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* Device memory, a part of a device's (the low byte of its number is the device), managed memory, which is placed on a
 * device at once, as everywhere here, or the host's. */
static bool place(const CUmemLocation *location, CUmemAllocationType type, int *ret_device, bool *ret_host)
{
	bool part = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;

	*ret_host = false;
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return false;
	if (part || location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
		*ret_device = part ? location->id & 0xff : location->id;
		return sim_device_get(*ret_device) != NULL;
	}
	*ret_host = type == CU_MEM_ALLOCATION_TYPE_PINNED;
	*ret_device = sim_current() ? sim_current()->device : 0;
	return type == CU_MEM_ALLOCATION_TYPE_MANAGED || location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	SIM_CALL();
	int device = 0;
	bool host = false;

	if (!pool || !props || !place(&props->location, props->allocType, &device, &host))
		return CUDA_ERROR_INVALID_VALUE;
	/* as MEMPOOL_SUPPORTED_HANDLE_TYPES reports; only device memory is shared */
	if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (props->handleTypes && host))
		return CUDA_ERROR_NOT_SUPPORTED;
	struct CUmemPoolHandle_st *p = calloc(1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_pool_begin(p, device);
	p->host = host;
	p->max_bytes = (props->maxSize + SIM_CHUNK_BYTES - 1) / SIM_CHUNK_BYTES * SIM_CHUNK_BYTES;
	if (props->handleTypes && !sim_pool_file_open(&p->file, sim_device_get(device)->gpu_index)) {
		free(p);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_memory_lock();
	sim_pool_list(p);
	sim_memory_unlock();
	*pool = p;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	if (pool && sim_pool_alive(pool) && !sim_pool_is_default(pool)) {
		int device = pool->device;

		if (sim_pool_current(device) == pool)
			sim_pool_use(device, NULL);
		pool->destroyed = true;
		sim_pools_settle(device); /* blocks still in use keep it until they are freed */
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	SIM_CALL();
	sim_memory_lock();
	bool valid = pool && sim_pool_alive(pool);

	if (valid)
		sim_pool_trim(pool, keep_bytes);
	sim_memory_unlock();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The 64-bit attributes. */
static uint64_t *counter(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->reserved_high_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->used_high_bytes;
	default:
		return NULL;
	}
}

static CUresult attribute_set(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute, const void *value)
{
	if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	    attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return CUDA_SUCCESS;
	}
	cuuint64_t wanted = 0;

	memcpy(&wanted, value, sizeof(wanted));
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold_bytes = wanted;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* a high-water mark can only be reset */
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (wanted)
			return CUDA_ERROR_INVALID_VALUE;
		*counter(pool, attribute) =
			attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->used_bytes : pool->reserved_bytes;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult attribute_get(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute, void *value)
{
	const uint64_t *found = counter(pool, attribute);

	if (found) {
		memcpy(value, found, sizeof(*found));
		return CUDA_SUCCESS;
	}
	if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
	    attribute > CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_CALL();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	CUresult r = pool && sim_pool_alive(pool) ? attribute_set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;

	sim_memory_unlock();
	return r;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_CALL();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	CUresult r = pool && sim_pool_alive(pool) ? attribute_get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;

	sim_memory_unlock();
	return r;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *list, size_t count)
{
	SIM_CALL();
	CUresult result = CUDA_SUCCESS;

	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (!pool || !sim_pool_alive(pool))
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		const CUmemAccessDesc *a = &list[i];

		if (a->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_get(a->location.id))
			result = CUDA_ERROR_INVALID_DEVICE;
		else if (a->location.id == pool->device && a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			result = CUDA_ERROR_INVALID_DEVICE; /* access from its own device cannot be revoked */
		else
			pool->access[a->location.id] = a->flags;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_get(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (pool && sim_pool_alive(pool)) {
		*flags = pool->access[location->id];
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* --- pools by location: device memory only ------------------------------------------------------------------------ */

static CUresult of_device(const CUmemLocation *location, CUmemAllocationType type)
{
	if (!location || type == CU_MEM_ALLOCATION_TYPE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = of_device(location, type);

	return r == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, location->id) : r;
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = of_device(location, type);

	return r == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, location->id) : r;
}

SIM_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult r = of_device(location, type);

	return r == CUDA_SUCCESS ? cuDeviceSetMemPool(location->id, pool) : r;
}
