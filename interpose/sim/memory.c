/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain device memory: allocation, freeing, what a pointer is. The device is charged in 2 MiB pages, so NVML, MemGetInfo
 * and the sum of what clients hold agree to the byte.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"

#define CLASSES 12 /* 512 B, 1 KiB … 1 MiB */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sim_range *slabs[SIM_DEVICES][CLASSES]; /* with room */

void sim_memory_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void sim_memory_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

bool sim_charge(struct sim_device *device, uint64_t bytes)
{
	struct sim_process *p = sim_process();
	bool fits = false;

	sim_lock(device->gpu);
	for (int attempt = 0; attempt < 2 && !fits; attempt++) {
		fits = bytes <= device->model->memory_bytes &&
		       sim_used_bytes(p->state, device->gpu_index) <= device->model->memory_bytes - bytes;
		if (!fits && attempt == 0)
			sim_reap(p->state, device->gpu, true); /* the dead may still seem to hold it */
	}
	if (fits)
		p->client->used_bytes[device->gpu_index] += bytes;
	sim_unlock(device->gpu);
	return fits;
}

void sim_uncharge(struct sim_device *device, uint64_t bytes)
{
	sim_lock(device->gpu);
	sim_process()->client->used_bytes[device->gpu_index] -= bytes;
	sim_unlock(device->gpu);
}

bool sim_charge_hard(struct sim_device *device, uint64_t bytes)
{
	if (sim_charge(device, bytes))
		return true;
	sim_pools_give_back(device);
	return sim_charge(device, bytes);
}

static uint64_t in_pages(uint64_t bytes)
{
	return (bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
}

static unsigned class_of(uint64_t bytes)
{
	unsigned class = 0;

	while ((UINT64_C(512) << class) < bytes)
		class ++;
	return class;
}

static struct sim_range *range_charged(struct sim_range like, uint64_t pages_charged)
{
	struct sim_device *d = sim_device_get(like.device);

	if (!sim_charge_hard(d, pages_charged))
		return NULL;
	struct sim_range *r = sim_range_make(like.bytes, SIM_PAGE);

	if (!r) {
		sim_uncharge(d, pages_charged);
		return NULL;
	}
	r->kind = like.kind;
	r->bytes = like.bytes;
	r->charged = like.charged;
	r->shared = like.shared;
	r->device = like.device;
	r->context = like.context;
	return r;
}

struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged)
{
	struct sim_range like = {
		.device = device, .context = context, .kind = kind, .bytes = bytes, .charged = charged
	};

	return range_charged(like, charged);
}

struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken)
{
	struct sim_range like = { .device = context->device, .context = context, .kind = kind, .bytes = bytes };

	if (taken > UINT64_MAX - SIM_PAGE)
		return NULL;
	if (taken > SIM_PAGE / 2)
		return sim_range_charged(context->device, context, kind, bytes, in_pages(taken));
	like.shared = UINT64_C(512) << class_of(taken);
	struct sim_range *r =
		range_charged(like, in_pages(context->shared_bytes + like.shared) - in_pages(context->shared_bytes));

	if (r)
		context->shared_bytes += like.shared;
	return r;
}

void sim_range_drop(struct sim_range *range)
{
	uint64_t charged = range->charged;

	if (range->shared) {
		charged = in_pages(range->context->shared_bytes);
		range->context->shared_bytes -= range->shared;
		charged -= in_pages(range->context->shared_bytes);
	}
	sim_uncharge(sim_device_get(range->device), charged);
	sim_range_free(range);
}

static void slab_link(struct sim_range *r, unsigned class)
{
	struct sim_range **head = &slabs[r->device][class];

	r->previous = NULL;
	r->next = *head;
	if (*head)
		(*head)->previous = r;
	*head = r;
}

static void slab_unlink(struct sim_range *r, unsigned class)
{
	if (r->previous)
		r->previous->next = r->next;
	else
		slabs[r->device][class] = r->next;
	if (r->next)
		r->next->previous = r->previous;
}

static uint64_t slab_alloc(struct CUctx_st *context, uint64_t bytes)
{
	unsigned class = class_of(bytes);
	struct sim_range *r = slabs[context->device][class];

	while (r && r->context != context)
		r = r->next;
	if (!r) {
		r = sim_range_charged(context->device, context, SIM_RANGE_SLAB, SIM_PAGE, SIM_PAGE);
		if (!r)
			return 0;
		r->object_bytes = 512u << class;
		slab_link(r, class);
	}
	uint32_t objects = (uint32_t)(SIM_PAGE / r->object_bytes);

	for (uint32_t w = r->first_free / 64; w < (objects + 63) / 64; w++) {
		if (r->bitmap[w] == UINT64_MAX)
			continue;
		uint32_t bit = w * 64 + (uint32_t)__builtin_ctzll(~r->bitmap[w]);

		if (bit >= objects)
			break;
		r->bitmap[w] |= UINT64_C(1) << (bit & 63);
		r->first_free = bit;
		if (++r->used == objects)
			slab_unlink(r, class);
		return r->base + (uint64_t)bit * r->object_bytes;
	}
	return 0;
}

/* 0, or the device address. */
static uint64_t allocate(struct CUctx_st *context, uint64_t bytes, enum sim_range_kind kind)
{
	uint64_t address = 0;

	pthread_mutex_lock(&mutex);
	if (kind == SIM_RANGE_PLAIN && bytes <= SIM_PAGE / 2) {
		address = slab_alloc(context, bytes);
	} else {
		struct sim_range *r = sim_range_packed(context, kind, bytes, bytes);

		address = r ? r->base : 0;
	}
	pthread_mutex_unlock(&mutex);
	return address;
}

static CUresult release(uint64_t address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&mutex);
	struct sim_range *r = sim_range_at(address);

	if (r && r->kind == SIM_RANGE_SLAB && (address - r->base) % r->object_bytes == 0) {
		uint32_t bit = (uint32_t)((address - r->base) / r->object_bytes);
		uint32_t objects = (uint32_t)(SIM_PAGE / r->object_bytes);

		if (r->bitmap[bit / 64] >> (bit & 63) & 1) {
			r->bitmap[bit / 64] &= ~(UINT64_C(1) << (bit & 63));
			if (bit < r->first_free)
				r->first_free = bit;
			if (r->used == objects)
				slab_link(r, class_of(r->object_bytes));
			if (--r->used == 0) {
				slab_unlink(r, class_of(r->object_bytes));
				sim_range_drop(r);
			}
			result = CUDA_SUCCESS;
		}
	} else if (r && (r->kind == SIM_RANGE_PLAIN || r->kind == SIM_RANGE_MANAGED) && r->base == address) {
		sim_range_drop(r);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

void sim_context_memory_gone(struct CUctx_st *context)
{
	uint64_t cursor = 0;
	struct sim_range *r;

	pthread_mutex_lock(&mutex);
	sim_arrays_context_gone(context);
	sim_pools_context_gone(context);
	sim_imports_context_gone(context);
	while ((r = sim_range_after(&cursor))) {
		if (r->context != context || (r->charged == 0 && r->shared == 0))
			continue;
		if (r->kind == SIM_RANGE_SLAB && r->used < SIM_PAGE / r->object_bytes)
			slab_unlink(r, class_of(r->object_bytes));
		sim_range_drop(r);
	}
	pthread_mutex_unlock(&mutex);
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
	SIM_CALL_CONTEXT(context);
	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	uint64_t at = allocate(context, bytes, SIM_RANGE_PLAIN);

	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = at;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
	SIM_CALL_CONTEXT(context);
	if (!address || !pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	size_t padded = (width + 511) & ~(size_t)511;

	if (padded < width || height > SIZE_MAX / padded)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t at = allocate(context, padded * height, SIM_RANGE_PLAIN);

	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = at;
	*pitch = padded;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	if (!address || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t at = allocate(context, bytes, SIM_RANGE_MANAGED);

	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = at;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemFree_v2(CUdeviceptr address)
{
	SIM_CALL();
	if (address == 0)
		return CUDA_SUCCESS;
	if (sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return sim_pool_free(address) ? CUDA_SUCCESS : release(address);
}

SIM_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	SIM_CALL_CONTEXT(context);
	struct sim_device *d = sim_device_get(context->device);

	if (!free_bytes || !total_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock(d->gpu);
	sim_reap(sim_process()->state, d->gpu, false);
	uint64_t used = sim_used_bytes(sim_process()->state, d->gpu_index);

	sim_unlock(d->gpu);
	*total_bytes = d->model->memory_bytes;
	*free_bytes = used < d->model->memory_bytes ? d->model->memory_bytes - used : 0;
	return CUDA_SUCCESS;
}

/* --- what an address is ------------------------------------------------------------------------------------------- */

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
			return false; /* only mappings side by side are one piece of memory */
		address += left;
		bytes -= left;
	}
	return true;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	pthread_mutex_lock(&mutex);
	struct sim_block block;
	bool found = sim_block_at(address, &block);

	pthread_mutex_unlock(&mutex);
	if (found && base)
		*base = block.base;
	if (found && bytes)
		*bytes = block.bytes;
	return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- the first generation: 32-bit sizes and addresses, which is what the symbols without a suffix still are -------- */

SIM_API CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)bytes;
	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	/* No address of ours fits 32 bits, nor did one of a 64-bit process ever since unified addressing. */
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
                                 unsigned element)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	if (!address || !pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemFree(CUdeviceptr_v1 address)
{
	SIM_CALL();
	return address ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
	SIM_CALL();
	size_t free_now = 0, total = 0;

	if (!free_bytes || !total_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = cuMemGetInfo_v2(&free_now, &total);

	if (r != CUDA_SUCCESS)
		return r;
	*free_bytes = free_now > UINT32_MAX ? UINT32_MAX : (unsigned)free_now;
	*total_bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
	return CUDA_SUCCESS;
}
