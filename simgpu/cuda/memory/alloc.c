/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain device memory: allocation and freeing. The device is charged in 2 MiB pages, so NVML, MemGetInfo and the sum
 * over all clients agree to the byte.
 */
#include "simgpu/cuda/memory/memory.h"

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/pools/pools.h"
#include "simgpu/cuda/ranges/ranges.h"
#include "simgpu/node/wall.h"

#define CLASSES 12 /* 512 B, 1 KiB … 1 MiB */

static struct sim_range *slabs[SIM_DEVICES][CLASSES]; /* slabs with a free object */

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
	unsigned class = sim_size_class(bytes);
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

/* Returns 0, or the device address. */
static uint64_t allocate(struct CUctx_st *context, uint64_t bytes, enum sim_range_kind kind)
{
	uint64_t address = 0;

	sim_memory_lock();
	if (kind == SIM_RANGE_PLAIN && bytes <= SIM_PAGE / 2) {
		address = slab_alloc(context, bytes);
	} else {
		struct sim_range *r = sim_range_packed(context, kind, bytes, bytes);

		address = r ? r->base : 0;
	}
	sim_memory_unlock();
	return address;
}

static CUresult release(uint64_t address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	struct sim_range *r = sim_range_at(address);

	if (r && r->kind == SIM_RANGE_SLAB && (address - r->base) % r->object_bytes == 0) {
		uint32_t bit = (uint32_t)((address - r->base) / r->object_bytes);
		uint32_t objects = (uint32_t)(SIM_PAGE / r->object_bytes);

		if (r->bitmap[bit / 64] >> (bit & 63) & 1) {
			r->bitmap[bit / 64] &= ~(UINT64_C(1) << (bit & 63));
			if (bit < r->first_free)
				r->first_free = bit;
			if (r->used == objects)
				slab_link(r, sim_size_class(r->object_bytes));
			if (--r->used == 0) {
				slab_unlink(r, sim_size_class(r->object_bytes));
				sim_range_drop(r);
			}
			result = CUDA_SUCCESS;
		}
	} else if (r && (r->kind == SIM_RANGE_PLAIN || r->kind == SIM_RANGE_MANAGED) && r->base == address) {
		sim_range_drop(r);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

void sim_allocations_context_gone(struct CUctx_st *context)
{
	uint64_t cursor = 0;
	struct sim_range *r;

	while ((r = sim_range_after(&cursor))) {
		if (r->context != context || (r->charged == 0 && r->shared == 0))
			continue;
		if (r->kind == SIM_RANGE_SLAB && r->used < SIM_PAGE / r->object_bytes)
			slab_unlink(r, sim_size_class(r->object_bytes));
		sim_range_drop(r);
	}
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
	const struct sim_process *p = sim_process();
	uint64_t used = sim_used_bytes(p->state, d->gpu_index), total = d->model->memory_bytes;
	uint64_t walled = sim_wall_total(p->state, d->gpu_index, p->client->cgroup);
	uint64_t room = sim_wall_room(p->state, d->gpu_index, p->client->cgroup);

	sim_unlock(d->gpu);
	uint64_t left = used < total ? total - used : 0;

	*total_bytes = walled < total ? walled : total;
	*free_bytes = room < left ? room : left;
	return CUDA_SUCCESS;
}

/* --- the first generation: 32-bit sizes and addresses, still the meaning of the symbols without a suffix ---------- */

SIM_API CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)bytes;
	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	/* No address here fits 32 bits, nor has one in a 64-bit process since unified addressing. */
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
