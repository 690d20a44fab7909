/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that devices can access: the caller's own, or allocated here and page-aligned. Devices use the same
 * address. */
#include "simgpu/cuda/memory/memory.h"

#include <stdlib.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/ranges/ranges.h"

/* One block of such memory. A process has few of them, so a list is enough. */
struct host_block {
	struct CUctx_st *context;
	uint64_t base, bytes;
	unsigned flags;
	bool registered; /* memory of the caller */
	struct host_block *next;
};

static struct host_block *host_blocks;

static struct host_block *host_at(uint64_t address)
{
	struct host_block *h = host_blocks;

	while (h && address - h->base >= h->bytes)
		h = h->next;
	return h;
}

CUresult sim_host_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct host_block *h = host_at(address);

	if (!h)
		return CUDA_ERROR_INVALID_VALUE; /* memory unknown to the driver */
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = h->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = CU_MEMORYTYPE_HOST;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(CUdeviceptr *)data = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = h->context->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = h->base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = h->bytes;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

bool sim_host_covers(uint64_t address, uint64_t bytes)
{
	const struct host_block *h = host_at(address);

	return h && h->base + h->bytes - address >= bytes;
}

static CUresult host_add(struct CUctx_st *context, void *address, size_t bytes, unsigned flags, bool registered)
{
	struct host_block *h = calloc(1, sizeof(*h));

	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*h = (struct host_block){
		.context = context, .base = (uintptr_t)address, .bytes = bytes, .flags = flags, .registered = registered
	};
	sim_memory_lock();
	h->next = host_blocks;
	host_blocks = h;
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

/* Take the block that begins at this address off the list. */
static bool host_remove(void *address, bool registered)
{
	struct host_block *found = NULL;

	sim_memory_lock();
	for (struct host_block **at = &host_blocks; *at; at = &(*at)->next) {
		if ((*at)->base == (uintptr_t)address && (*at)->registered == registered) {
			found = *at;
			*at = found->next;
			break;
		}
	}
	sim_memory_unlock();
	free(found);
	return found != NULL;
}

static CUresult host_alloc(struct CUctx_st *context, void **address, size_t bytes, unsigned flags)
{
	void *at;

	if (!address || bytes == 0 ||
	    flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	if (posix_memalign(&at, 4096, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = host_add(context, at, bytes, flags, false);

	if (r == CUDA_SUCCESS)
		*address = at;
	else
		free(at);
	return r;
}

SIM_API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	return host_alloc(context, address, bytes, flags);
}

SIM_API CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
	SIM_CALL_CONTEXT(context);
	return host_alloc(context, address, bytes, 0);
}

SIM_API CUresult cuMemFreeHost(void *address)
{
	SIM_CALL();
	if (!address || !host_remove(address, false))
		return CUDA_ERROR_INVALID_VALUE;
	free(address);
	return CUDA_SUCCESS;
}

static CUresult host_register(struct CUctx_st *context, void *address, size_t bytes, unsigned flags)
{
	const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
	                       CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

	if (!address || bytes == 0 || flags & ~known)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	bool already = host_at((uintptr_t)address) || host_at((uintptr_t)address + bytes - 1);

	sim_memory_unlock();
	return already ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : host_add(context, address, bytes, flags, true);
}

SIM_API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	return host_register(context, address, bytes, flags);
}

SIM_API CUresult cuMemHostUnregister(void *address)
{
	SIM_CALL();
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	return host_remove(address, true) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags)
{
	SIM_CALL();
	if (!device || !address || flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	bool ours = host_at((uintptr_t)address) || sim_range_at((uintptr_t)address);

	sim_memory_unlock();
	if (!ours)
		return CUDA_ERROR_INVALID_VALUE;
	*device = (uintptr_t)address;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
	SIM_CALL();
	if (!flags || !address)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	const struct host_block *h = host_at((uintptr_t)address);
	unsigned found = h ? h->flags : 0;

	sim_memory_unlock();
	if (!h)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = found | CU_MEMHOSTALLOC_DEVICEMAP;
	return CUDA_SUCCESS;
}
