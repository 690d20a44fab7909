/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory: cuMemCreate, and the calls that share it.
 *
 * It is a range of a file: of the arena's file, or, when it may be exported, of a separate memfd, whose descriptor is
 * the shareable handle. It is charged from its creation until the last handle and the last mapping end; imported memory
 * is charged to its exporter only, and no longer once the exporter has released it.
 */
#include "simgpu/cuda/memory/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/ranges/ranges.h"

#define MEMFD "sim-physical-" /* followed by the GPU's number, which an importer cannot find out otherwise */

/* Under the memory lock. A handle is generation << 32 | slot + 1. */
static struct sim_physical **slots;
static uint32_t slot_count;

struct sim_physical *sim_physical_of(CUmemGenericAllocationHandle handle)
{
	uint32_t slot = (uint32_t)handle - 1;

	if (slot >= slot_count)
		return NULL;
	struct sim_physical *p = slots[slot];

	return p->in_use && p->handles > 0 && p->generation == handle >> 32 ? p : NULL;
}

CUmemGenericAllocationHandle sim_physical_handle(const struct sim_physical *p)
{
	for (uint32_t i = 0; i < slot_count; i++)
		if (slots[i] == p)
			return (CUmemGenericAllocationHandle)p->generation << 32 | (i + 1);
	return 0;
}

static struct sim_physical *slot_take(void)
{
	struct sim_physical *p = NULL;

	for (uint32_t i = 0; i < slot_count && !p; i++)
		if (!slots[i]->in_use)
			p = slots[i];
	if (!p) {
		struct sim_physical **grown = realloc(slots, (slot_count + 1) * sizeof(*grown));

		if (!grown)
			return NULL;
		slots = grown;
		p = calloc(1, sizeof(*p));
		if (!p)
			return NULL;
		slots[slot_count++] = p;
	}
	*p = (struct sim_physical){ .generation = p->generation + 1, .in_use = true, .handles = 1, .fd = -1 };
	return p;
}

/* Called after a reference was dropped. */
void sim_physical_settle(struct sim_physical *p)
{
	if (p->handles || p->mappings)
		return;
	if (p->range) {
		sim_range_drop(p->range);
	} else {
		if (p->fd >= 0)
			close(p->fd);
		if (p->charged)
			sim_uncharge(sim_device_get(p->prop.location.id), p->charged);
	}
	p->in_use = false;
}

/* Checks for invalid requests; room is checked later. */
static CUresult prop_check(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST || prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	    prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
	SIM_CALL();
	if (!granularity || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = prop_check(prop);

	if (r == CUDA_SUCCESS)
		*granularity = SIM_PAGE;
	return r;
}

/* With the lock held. */
static bool physical_fill(struct sim_physical *p)
{
	struct sim_device *d = sim_device_get(p->prop.location.id);
	struct stat info;
	char name[32];

	if (p->prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE) {
		p->range = sim_range_charged(p->prop.location.id, NULL, SIM_RANGE_BACKING, p->bytes, p->bytes);
		if (!p->range)
			return false;
		p->range->touched = true;
		p->fd = sim_arena_fd();
		p->offset = sim_arena_offset(p->range->base);
		return true;
	}
	if (!sim_charge_hard(d, p->bytes))
		return false;
	p->charged = p->bytes;
	snprintf(name, sizeof(name), MEMFD "%u", d->gpu_index);
	p->fd = memfd_create(name, MFD_CLOEXEC);
	if (p->fd < 0 || ftruncate(p->fd, (off_t)p->bytes) || fstat(p->fd, &info))
		return false;
	p->ino = info.st_ino;
	return true;
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                             unsigned long long flags)
{
	SIM_CALL();
	CUresult r = prop_check(prop);

	if (!handle || bytes == 0 || bytes % SIM_PAGE || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	sim_memory_lock();
	struct sim_physical *p = slot_take();
	bool made = false;

	if (p) {
		p->prop = *prop;
		p->bytes = bytes;
		made = physical_fill(p);
		if (made) {
			*handle = sim_physical_handle(p);
		} else {
			p->handles = 0;
			sim_physical_settle(p);
		}
	}
	sim_memory_unlock();
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	SIM_CALL();
	sim_memory_lock();
	struct sim_physical *p = sim_physical_of(handle);

	if (p) {
		p->handles--;
		sim_physical_settle(p);
	}
	sim_memory_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	SIM_CALL();
	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	struct sim_physical *p = sim_physical_of(handle);

	if (p)
		*prop = p->prop;
	sim_memory_unlock();
	return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!shareable || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	struct sim_physical *p = sim_physical_of(handle);

	if (p && p->prop.requestedHandleTypes & type) {
		int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);

		if (fd >= 0)
			*(int *)shareable = fd;
		result = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                CUmemAllocationHandleType type)
{
	SIM_CALL();
	int fd = (int)(intptr_t)shareable;
	struct stat info;

	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &info))
		return CUDA_ERROR_INVALID_VALUE;
	int device = 0;
	CUresult result = sim_memfd_device(fd, MEMFD, &device);
	struct sim_physical *p = NULL;

	if (result != CUDA_SUCCESS)
		return result;

	sim_memory_lock();
	for (uint32_t i = 0; i < slot_count && !p; i++) /* own memory, or imported before: the new handle is an alias */
		if (slots[i]->in_use && !slots[i]->range && slots[i]->ino == info.st_ino)
			p = slots[i];
	if (p) {
		p->handles++;
	} else if ((p = slot_take())) {
		p->prop = (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
			                         .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			                         .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
		p->bytes = (uint64_t)info.st_size;
		p->ino = info.st_ino;
		p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (p->fd < 0) {
			p->handles = 0;
			sim_physical_settle(p);
			result = CUDA_ERROR_OPERATING_SYSTEM;
		}
	} else {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS)
		*handle = sim_physical_handle(p);
	sim_memory_unlock();
	return result;
}
