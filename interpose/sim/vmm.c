/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory apart from addresses: cuMemCreate, cuMemAddressReserve, cuMemMap and what keeps them alive.
 *
 * Physical memory is a piece of a file: of the arena's, or, when it may be exported, of a memfd of its own, whose
 * descriptor is the shareable handle. Mapping shows that piece at reserved addresses, so two mappings of one handle are
 * the same bytes, in this process or in two. It is charged from its creation until the last handle and the last mapping
 * are gone; imported memory is charged to its exporter alone, and no longer once that is through with it.
 */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"

#define MEMFD "sim-physical-" /* and the number of the GPU: what an importer cannot know otherwise */

struct physical {
	CUmemAllocationProp prop;
	uint64_t bytes, charged, offset;
	int fd;                  /* its own, or the arena's when there is a range */
	struct sim_range *range; /* of the arena; NULL = a memfd of its own */
	ino_t ino;               /* of that memfd */
	uint32_t handles, mappings;
	uint32_t generation; /* tells a reused slot's handle from the one before */
	bool in_use;
};

struct mapping {
	struct physical *physical;
	uint64_t base, bytes;
	CUmemAccess_flags access[SIM_DEVICES];
};

struct reservation {
	struct mapping **page; /* NULL = nothing there */
};

/* Under memory's lock. A handle is generation << 32 | slot + 1. */
static struct physical **slots;
static uint32_t slot_count;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	uint32_t slot = (uint32_t)handle - 1;

	if (slot >= slot_count)
		return NULL;
	struct physical *p = slots[slot];

	return p->in_use && p->handles > 0 && p->generation == handle >> 32 ? p : NULL;
}

static CUmemGenericAllocationHandle handle_of(const struct physical *p)
{
	for (uint32_t i = 0; i < slot_count; i++)
		if (slots[i] == p)
			return (CUmemGenericAllocationHandle)p->generation << 32 | (i + 1);
	return 0;
}

static struct physical *slot_take(void)
{
	struct physical *p = NULL;

	for (uint32_t i = 0; i < slot_count && !p; i++)
		if (!slots[i]->in_use)
			p = slots[i];
	if (!p) {
		struct physical **grown = realloc(slots, (slot_count + 1) * sizeof(*grown));

		if (!grown)
			return NULL;
		slots = grown;
		p = calloc(1, sizeof(*p));
		if (!p)
			return NULL;
		slots[slot_count++] = p;
	}
	*p = (struct physical){ .generation = p->generation + 1, .in_use = true, .handles = 1, .fd = -1 };
	return p;
}

/* After a reference has gone. */
static void physical_settle(struct physical *p)
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

/* --- physical memory ------------------------------------------------------------------------------------------------ */

/* What cannot be had at all; whether there is room is asked later. */
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
static bool physical_fill(struct physical *p)
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
	struct physical *p = slot_take();
	bool made = false;

	if (p) {
		p->prop = *prop;
		p->bytes = bytes;
		made = physical_fill(p);
		if (made) {
			*handle = handle_of(p);
		} else {
			p->handles = 0;
			physical_settle(p);
		}
	}
	sim_memory_unlock();
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	SIM_CALL();
	sim_memory_lock();
	struct physical *p = physical_of(handle);

	if (p) {
		p->handles--;
		physical_settle(p);
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
	struct physical *p = physical_of(handle);

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
	struct physical *p = physical_of(handle);

	if (p && p->prop.requestedHandleTypes & type) {
		int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);

		if (fd >= 0)
			*(int *)shareable = fd;
		result = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_memory_unlock();
	return result;
}

CUresult sim_memfd_device(int fd, const char *kind, int *ret_device)
{
	char link[64], target[96], wanted[64];
	unsigned gpu;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, target, sizeof(target) - 1);

	target[n > 0 ? n : 0] = 0;
	snprintf(wanted, sizeof(wanted), "/memfd:%s", kind);
	if (strncmp(target, wanted, strlen(wanted)) != 0 || !isdigit((unsigned char)target[strlen(wanted)]))
		return CUDA_ERROR_INVALID_VALUE;
	gpu = (unsigned)strtoul(target + strlen(wanted), NULL, 10);
	for (int d = 0; sim_device_get(d); d++)
		if (sim_device_get(d)->gpu_index == gpu) {
			*ret_device = d;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
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
	struct physical *p = NULL;

	if (result != CUDA_SUCCESS)
		return result;

	sim_memory_lock();
	for (uint32_t i = 0; i < slot_count && !p; i++) /* ours, or imported before: one more name for it */
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
			physical_settle(p);
			result = CUDA_ERROR_OPERATING_SYSTEM;
		}
	} else {
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (result == CUDA_SUCCESS)
		*handle = handle_of(p);
	sim_memory_unlock();
	return result;
}

/* --- addresses ------------------------------------------------------------------------------------------------------ */

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags)
{
	SIM_CALL();
	(void)hint; /* a wish only */
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

/* The reservation that holds all of these whole pages. */
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

/* Do these pages hold mappings without a gap, none of them cut? */
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
		r->touched = false; /* it had no bytes of its own */
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
	struct physical *p = physical_of(handle);

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
			physical_settle(m->physical);
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
		*handle = handle_of(m->physical);
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
