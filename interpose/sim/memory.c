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

/* With the lock held. */
static struct sim_range *range_charged(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes)
{
	struct sim_device *d = sim_device_get(context->device);
	uint64_t charged = (bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;

	if (bytes > UINT64_MAX - SIM_PAGE || !sim_charge(d, charged))
		return NULL;
	struct sim_range *r = sim_range_make(bytes, SIM_PAGE);

	if (!r) {
		sim_uncharge(d, charged);
		return NULL;
	}
	r->kind = kind;
	r->bytes = bytes;
	r->charged = charged;
	r->device = context->device;
	r->context = context;
	return r;
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

static unsigned class_of(uint64_t bytes)
{
	unsigned class = 0;

	while ((UINT64_C(512) << class) < bytes)
		class ++;
	return class;
}

static uint64_t slab_alloc(struct CUctx_st *context, uint64_t bytes)
{
	unsigned class = class_of(bytes);
	struct sim_range *r = slabs[context->device][class];

	while (r && r->context != context)
		r = r->next;
	if (!r) {
		r = range_charged(context, SIM_RANGE_SLAB, SIM_PAGE);
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
		struct sim_range *r = range_charged(context, kind, bytes);

		address = r ? r->base : 0;
	}
	pthread_mutex_unlock(&mutex);
	return address;
}

static void range_drop(struct sim_range *r)
{
	sim_uncharge(sim_device_get(r->device), r->charged);
	sim_range_free(r);
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
				range_drop(r);
			}
			result = CUDA_SUCCESS;
		}
	} else if (r && (r->kind == SIM_RANGE_PLAIN || r->kind == SIM_RANGE_MANAGED) && r->base == address) {
		range_drop(r);
		result = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&mutex);
	return result;
}

/* pool.c: a pointer from a pool may be freed by cuMemFree too. */
bool sim_pool_free(uint64_t address);

void sim_context_memory_gone(struct CUctx_st *context)
{
	uint64_t cursor = 0;
	struct sim_range *r;

	pthread_mutex_lock(&mutex);
	while ((r = sim_range_after(&cursor))) {
		if (r->context != context || r->charged == 0)
			continue;
		if (r->kind == SIM_RANGE_SLAB && r->used < SIM_PAGE / r->object_bytes)
			slab_unlink(r, class_of(r->object_bytes));
		range_drop(r);
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

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	SIM_CALL();
	pthread_mutex_lock(&mutex);
	struct sim_range *r = sim_range_at(address);

	if (r && base)
		*base = r->kind == SIM_RANGE_SLAB ? address - (address - r->base) % r->object_bytes : r->base;
	if (r && bytes)
		*bytes = r->kind == SIM_RANGE_SLAB ? r->object_bytes : r->bytes;
	pthread_mutex_unlock(&mutex);
	return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	struct sim_range *r = sim_range_at(address);

	if (!r)
		return CUDA_ERROR_INVALID_VALUE; /* not the driver's: host memory */
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = r->context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = r->kind == SIM_RANGE_ARRAY ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
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
		*(int *)data = r->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = r->base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = r->bytes;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = r->base / SIM_PAGE;
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
	pthread_mutex_lock(&mutex);
	CUresult r = pointer_attribute(data, attribute, address);

	pthread_mutex_unlock(&mutex);
	return r;
}

SIM_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address)
{
	SIM_CALL();
	if (!attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&mutex);
	for (unsigned i = 0; i < count; i++) /* attributes a pointer does not have are left as they are */
		pointer_attribute(data[i], attributes[i], address);
	pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

SIM_API CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)flags;
	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	return posix_memalign(address, 4096, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
	return cuMemHostAlloc(address, bytes, 0);
}

SIM_API CUresult cuMemFreeHost(void *address)
{
	SIM_CALL();
	free(address);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	(void)flags;
	return address && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemHostUnregister(void *address)
{
	SIM_CALL();
	return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags)
{
	SIM_CALL();
	if (!device || !address || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*device = (uintptr_t)address;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
	SIM_CALL();
	if (!flags || !address)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = CU_MEMHOSTALLOC_DEVICEMAP;
	return CUDA_SUCCESS;
}
