/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: what is asked of ranges and pointers beside their allocation, and the pools of a place. */
#include <string.h>

#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"

static bool managed(CUdeviceptr address)
{
	struct sim_block block;

	sim_memory_lock();
	bool found = sim_block_at(address, &block) && block.range->kind == SIM_RANGE_MANAGED;

	sim_memory_unlock();
	return found;
}

/* Advice is not remembered: every answer is that of a range nobody advised. */
SIM_API CUresult cuMemRangeGetAttribute(void *data, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                        size_t count)
{
	SIM_CALL();
	const int nowhere = -2; /* CU_DEVICE_INVALID */

	if (!data || bytes == 0 || count == 0 || !managed(address))
		return CUDA_ERROR_INVALID_VALUE;
	memset(data, 0, bytes);
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: /* CU_MEM_LOCATION_TYPE_INVALID */
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		return bytes == sizeof(int) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		if (bytes % sizeof(int))
			return CUDA_ERROR_INVALID_VALUE;
		for (size_t i = 0; i < bytes / sizeof(int); i++)
			memcpy((char *)data + i * sizeof(int), &nowhere, sizeof(int));
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_API CUresult cuMemRangeGetAttributes(void **data, size_t *bytes, CUmem_range_attribute *attributes, size_t count,
                                         CUdeviceptr address, size_t range_bytes)
{
	SIM_CALL();
	if (!data || !bytes || !attributes || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		CUresult r = cuMemRangeGetAttribute(data[i], bytes[i], attributes[i], address, range_bytes);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

/* Whether copies of it wait: they all do here. */
SIM_API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	SIM_CALL();
	struct sim_block block;

	if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	bool found = sim_block_at(address, &block);

	sim_memory_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned channels,
                                                    CUdevice device)
{
	SIM_CALL();
	(void)format;
	if (!width || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*width = (size_t)1 << 28;
	return CUDA_SUCCESS;
}

/* --- pools of a place: of devices alone ----------------------------------------------------------------------------- */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);

static CUresult place(const CUmemLocation *location, CUmemAllocationType type)
{
	if (!location || type == CU_MEM_ALLOCATION_TYPE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = place(location, type);

	return r == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, location->id) : r;
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = place(location, type);

	return r == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, location->id) : r;
}

SIM_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult r = place(location, type);

	return r == CUDA_SUCCESS ? cuDeviceSetMemPool(location->id, pool) : r;
}
