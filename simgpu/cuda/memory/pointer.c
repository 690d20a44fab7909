/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about a pointer. */
#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/pools/pools.h"

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct sim_block block;

	if (!sim_block_at(address, &block))
		return sim_host_attribute(data, attribute, address);
	struct sim_range *r = block.range;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = r->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (r->kind != SIM_RANGE_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = sim_host_address(address);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = r->kind == SIM_RANGE_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = block.device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = r->kind == SIM_RANGE_PLAIN || r->kind == SIM_RANGE_SLAB;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = block.base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = block.bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = r->kind == SIM_RANGE_POOL ? sim_pool_of(r) : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = block.base;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

SIM_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	SIM_CALL();
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	CUresult r = pointer_attribute(data, attribute, address);

	sim_memory_unlock();
	return r;
}

/* The driver's value for an attribute that a pointer does not have; for all attributes, when the memory is not the
 * driver's. */
static void nothing_known(void *data, CUpointer_attribute attribute)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = -2; /* CU_DEVICE_INVALID */
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		break; /* two numbers without a documented meaning */
	default:
		*(uint64_t *)data = 0; /* handles, addresses, sizes, numbers of buffers */
	}
}

SIM_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                        CUdeviceptr address)
{
	SIM_CALL();
	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	for (unsigned i = 0; i < count; i++)
		if (pointer_attribute(data[i], attributes[i], address) == CUDA_ERROR_INVALID_VALUE)
			nothing_known(data[i], attributes[i]);
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	sim_memory_lock();
	struct sim_block block;
	bool found = sim_block_at(address, &block);

	sim_memory_unlock();
	if (found && base)
		*base = block.base;
	if (found && bytes)
		*bytes = block.bytes;
	return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Whether synchronous copies of it wait: here all of them do. */
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

/* Finds the memory at an address: each kind of memory looks up its own ranges. */

bool sim_block_at(uint64_t address, struct sim_block *ret)
{
	struct sim_range *r = sim_range_at(address);

	if (!r)
		return false;
	*ret = (struct sim_block){
		.range = r, .base = r->base, .bytes = r->bytes, .device = r->device, .accessible = true
	};
	switch (r->kind) {
	case SIM_RANGE_PLAIN:
	case SIM_RANGE_MANAGED:
	case SIM_RANGE_IMPORT:
	case SIM_RANGE_GRAPH:
		ret->base += r->skip;
		return address - ret->base < r->bytes;
	case SIM_RANGE_SLAB: {
		uint32_t bit = (uint32_t)((address - r->base) / r->object_bytes);

		ret->base = r->base + (uint64_t)bit * r->object_bytes;
		ret->bytes = r->object_bytes;
		return r->bitmap[bit / 64] >> (bit & 63) & 1;
	}
	case SIM_RANGE_POOL:
		return sim_pool_block(r, address, &ret->base, &ret->bytes);
	case SIM_RANGE_RESERVED:
		return sim_vmm_block(r, address, ret);
	default:
		return false; /* arrays and backing have no address of their own */
	}
}

bool sim_range_covers(uint64_t address, uint64_t bytes)
{
	while (bytes > 0) {
		struct sim_block block;

		if (!sim_block_at(address, &block) || !block.accessible)
			return false;
		block.range->touched = true;
		uint64_t left = block.base + block.bytes - address;

		if (left >= bytes)
			return true;
		if (block.range->kind != SIM_RANGE_RESERVED)
			return false; /* only adjacent mappings form one block of memory */
		address += left;
		bytes -= left;
	}
	return true;
}
