/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses apart from memory: cuMemAddressReserve, cuMemMap, and their lifetimes. Mapping shows a range of a file
 * (physical.c) at reserved addresses, so two mappings of one handle are the same bytes, in this process or in two.
 */
#include "simgpu/cuda/memory/memory.h"

#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"

struct mapping {
	struct sim_physical *physical;
	uint64_t base, bytes;
	CUmemAccess_flags access[SIM_DEVICES];
};

struct reservation {
	struct mapping **page; /* NULL = no mapping */
};

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags)
{
	SIM_CALL();
	(void)hint; /* a hint only */
	if (!address || bytes == 0 || bytes % SIM_PAGE || alignment & (alignment - 1) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct reservation *v = calloc(1, sizeof(*v));
	struct sim_range *r = NULL;

	if (v)
		v->page = calloc(bytes / SIM_PAGE, sizeof(struct mapping *));
	if (v && v->page) {
		sim_memory_lock();
		r = sim_range_make(bytes, alignment > SIM_PAGE ? alignment : SIM_PAGE);
		if (r) {
			r->kind = SIM_RANGE_RESERVED;
			r->bytes = bytes;
			r->owner = v;
			*address = r->base;
		}
		sim_memory_unlock();
	}
	if (!r && v) {
		free(v->page);
		free(v);
	}
	return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The reservation that contains all of these whole pages. */
static struct sim_range *reserved(CUdeviceptr address, size_t bytes)
{
	struct sim_range *r = sim_range_at(address);

	if (!r || r->kind != SIM_RANGE_RESERVED || bytes == 0 || address % SIM_PAGE || bytes % SIM_PAGE ||
	    bytes > r->base + r->bytes - address)
		return NULL;
	return r;
}

static struct mapping **page_of(const struct sim_range *r, CUdeviceptr address)
{
	return &((struct reservation *)r->owner)->page[(address - r->base) / SIM_PAGE];
}

static bool all_empty(const struct sim_range *r, CUdeviceptr address, size_t bytes)
{
	for (uint64_t p = 0; p < bytes / SIM_PAGE; p++)
		if (page_of(r, address)[p])
			return false;
	return true;
}

/* True if these pages hold mappings without a gap, all of them whole. */
static bool all_whole(const struct sim_range *r, CUdeviceptr address, size_t bytes)
{
	CUdeviceptr at = address, end = address + bytes;

	while (at < end) {
		const struct mapping *m = *page_of(r, at);

		if (!m || m->base != at || m->bytes > end - at)
			return false;
		at += m->bytes;
	}
	return true;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	struct sim_range *r = reserved(address, bytes);

	if (r && r->base == address && r->bytes == bytes && all_empty(r, address, bytes)) {
		struct reservation *v = r->owner;

		free(v->page);
		free(v);
		r->touched = false; /* the pages had no bytes of their own */
		sim_range_free(r);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (offset || flags) /* documented: must be zero */
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	struct sim_range *r = reserved(address, bytes);
	struct sim_physical *p = sim_physical_of(handle);

	if (r && p && bytes <= p->bytes && all_empty(r, address, bytes)) {
		struct mapping *m = calloc(1, sizeof(*m));

		result = CUDA_ERROR_OUT_OF_MEMORY;
		if (m && sim_range_alias(address, bytes, p->fd, p->offset)) {
			*m = (struct mapping){ .physical = p, .base = address, .bytes = bytes };
			uint64_t page = 0;

			do /* reserved() wants whole pages, at least one */
				page_of(r, address)[page] = m;
			while (++page < bytes / SIM_PAGE);
			p->mappings++;
			result = CUDA_SUCCESS;
		} else {
			free(m);
		}
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	struct sim_range *r = reserved(address, bytes);

	if (r && all_whole(r, address, bytes)) {
		for (CUdeviceptr at = address, next; at < address + bytes; at = next) {
			struct mapping *m = *page_of(r, at);

			next = at + m->bytes;
			memset(page_of(r, at), 0, m->bytes / SIM_PAGE * sizeof(m));
			m->physical->mappings--;
			sim_physical_settle(m->physical);
			free(m);
		}
		sim_range_unalias(address, bytes);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *list, size_t count)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_NOT_SUPPORTED;
		if (!sim_device_get(list[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		if (list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		    list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return CUDA_ERROR_INVALID_VALUE;
	}
	sim_memory_lock();
	struct sim_range *r = reserved(address, bytes);

	if (r && all_whole(r, address, bytes)) {
		for (CUdeviceptr at = address; at < address + bytes; at += (*page_of(r, at))->bytes)
			for (size_t i = 0; i < count; i++)
				(*page_of(r, at))->access[list[i].location.id] = list[i].flags;
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

static struct mapping *mapping_at(CUdeviceptr address)
{
	const struct sim_range *r = sim_range_at(address);

	return r && r->kind == SIM_RANGE_RESERVED ? *page_of(r, address) : NULL;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
	SIM_CALL();
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	const struct mapping *m = mapping_at(address);

	if (m)
		*flags = m->access[location->id];
	sim_memory_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	SIM_CALL();
	if (!handle || !address)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	const struct mapping *m = mapping_at((uintptr_t)address);

	if (m) {
		m->physical->handles++;
		*handle = sim_physical_handle(m->physical);
	}
	sim_memory_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_vmm_block(const struct sim_range *range, uint64_t address, struct sim_block *ret)
{
	const struct mapping *m = *page_of(range, address);

	if (!m)
		return false;
	ret->base = m->base;
	ret->bytes = m->bytes;
	ret->device = m->physical->prop.location.id;
	ret->accessible = false;
	for (int d = 0; d < SIM_DEVICES; d++)
		ret->accessible = ret->accessible || m->access[d] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return true;
}
