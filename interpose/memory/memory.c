/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain device memory and arrays: charged before the driver allocates, returned after the driver has freed.
 *
 * An unknown pointer (imported, mapped, allocated before attaching, or invalid) goes to the driver unchanged, and so
 * does the driver's result. An entry leaves the map before the driver frees it, because right after that the driver may
 * give the same address to another thread.
 */
#include "interpose/driver/driver.h"
#include "nativecommon/footprint.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/guest.h"

/* Note an allocation; false when there is no memory for a note, and then the allocation must be undone. */
static bool note(enum ptrmap_kind kind, uint64_t key, uint64_t bytes, int device)
{
	struct ptrmap_entry entry = {
		.key = key, .bytes = bytes, .owner = guest_current_context(), .kind = kind, .device = (int8_t)device
	};

	return ptrmap_put(&entry);
}

/* The driver has returned from an allocation for which `held` bytes are charged: note it, or return the charge. */
static CUresult keep(const CUdeviceptr *dptr, uint64_t held, int device, CUresult r)
{
	if (r == CUDA_SUCCESS && !note(PTRMAP_MEMORY, *dptr, held, device)) {
		if (driver.cuMemFree_v2)
			driver.cuMemFree_v2(*dptr);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r != CUDA_SUCCESS)
		charge_return(device, held);
	return r;
}

/* The driver has returned from freeing charged memory: return the charge, or keep the note. */
static CUresult let_go(const struct ptrmap_entry *entry, CUresult r)
{
	if (r != CUDA_SUCCESS)
		ptrmap_put(entry);
	else if (entry->kind == PTRMAP_ASYNC)
		pool_freed(entry);
	else
		charge_return(entry->device, entry->bytes);
	return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	uint64_t held = footprint_block(bytes);
	CUresult r;
	int device;

	if (!driver.cuMemAlloc_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !guest_enter())
		return driver.cuMemAlloc_v2(dptr, bytes);
	r = charge_device(&device);
	if (r == CUDA_SUCCESS)
		r = charge_take(device, held);
	if (r == CUDA_SUCCESS)
		r = keep(dptr, held, device, driver.cuMemAlloc_v2(dptr, bytes));
	guest_leave();
	return r;
}

/* Charged at its full size at once: managed memory beyond the grant pushes out the neighbours' pages, so only the
 * daemon may allow it. */
CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	uint64_t held = footprint_block(bytes);
	CUresult r;
	int device;

	if (!driver.cuMemAllocManaged)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !guest_enter())
		return driver.cuMemAllocManaged(dptr, bytes, flags);
	r = charge_device(&device);
	if (r == CUDA_SUCCESS)
		r = charge_take_managed(device, held);
	if (r == CUDA_SUCCESS)
		r = keep(dptr, held, device, driver.cuMemAllocManaged(dptr, bytes, flags));
	guest_leave();
	return r;
}

/* Rows are padded: 4 bytes wide may mean 512 bytes each. The guess is charged first, then the driver's real pitch. */
static CUresult keep_pitched(const CUdeviceptr *dptr, size_t pitch, size_t height, uint64_t held, int device)
{
	uint64_t real = footprint_block(footprint_pitched(pitch, height));

	if (charge_resize(device, held, real) == CUDA_SUCCESS)
		return keep(dptr, real, device, CUDA_SUCCESS);
	if (driver.cuMemFree_v2)
		driver.cuMemFree_v2(*dptr);
	charge_return(device, held);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes)
{
	uint64_t held;
	CUresult r;
	int device;

	if (!driver.cuMemAllocPitch_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || !pitch || width_bytes == 0 || height == 0 || !guest_enter())
		return driver.cuMemAllocPitch_v2(dptr, pitch, width_bytes, height, element_bytes);
	held = footprint_block(footprint_pitched(footprint_pitch(width_bytes), height));
	r = charge_device(&device);
	if (r == CUDA_SUCCESS)
		r = charge_take(device, held);
	if (r == CUDA_SUCCESS) {
		r = driver.cuMemAllocPitch_v2(dptr, pitch, width_bytes, height, element_bytes);
		if (r == CUDA_SUCCESS)
			r = keep_pitched(dptr, *pitch, height, held, device);
		else
			charge_return(device, held);
	}
	guest_leave();
	return r;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct ptrmap_entry entry;
	CUresult r;

	if (!driver.cuMemFree_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemFree_v2(dptr);
	if (ptrmap_take(PTRMAP_MEMORY, dptr, &entry) || ptrmap_take(PTRMAP_ASYNC, dptr, &entry))
		r = let_go(&entry, driver.cuMemFree_v2(dptr));
	else
		r = driver.cuMemFree_v2(dptr);
	guest_leave();
	return r;
}

/* --- arrays ------------------------------------------------------------------------------------------------------ */

/* The driver's own figure where it gives one (today for deferred-mapping arrays only), else the estimate. */
static uint64_t array_bytes(CUarray array, CUdevice dev, uint64_t guess)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = { 0 };

	if (driver.cuArrayGetMemoryRequirements &&
	    driver.cuArrayGetMemoryRequirements(&need, array, dev) == CUDA_SUCCESS && need.size > 0)
		return need.size;
	return guess;
}

static uint64_t mipmap_bytes(CUmipmappedArray array, CUdevice dev, uint64_t guess)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = { 0 };

	if (driver.cuMipmappedArrayGetMemoryRequirements &&
	    driver.cuMipmappedArrayGetMemoryRequirements(&need, array, dev) == CUDA_SUCCESS && need.size > 0)
		return need.size;
	return guess;
}

static CUresult array_begin(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, int *ret_device,
                            uint64_t *ret_held)
{
	CUresult r = charge_device(ret_device);

	if (r != CUDA_SUCCESS)
		return r;
	*ret_held = footprint_array(desc, levels);
	return charge_take(*ret_device, *ret_held);
}

/* After the driver has made an array: correct the charge and note it. CUDA_ERROR_OUT_OF_MEMORY: the caller destroys
 * it. */
static CUresult array_keep(enum ptrmap_kind kind, void *array, uint64_t real, int device, uint64_t *held)
{
	if (charge_resize(device, *held, real) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*held = real;
	return note(kind, (uintptr_t)array, real, device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUdevice current_ordinal(void)
{
	CUdevice dev = 0;

	if (driver.cuCtxGetDevice)
		driver.cuCtxGetDevice(&dev);
	return dev;
}

static CUresult array_finish(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, int device, uint64_t held, CUresult r)
{
	if (r == CUDA_SUCCESS) {
		uint64_t real = footprint_is_deferred(desc) ? 0 : array_bytes(*array, current_ordinal(), held);

		r = array_keep(PTRMAP_ARRAY, *array, real, device, &held);
		if (r != CUDA_SUCCESS && driver.cuArrayDestroy)
			driver.cuArrayDestroy(*array);
	}
	if (r != CUDA_SUCCESS)
		charge_return(device, held);
	return r;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	uint64_t held;
	CUresult r;
	int device;

	if (!driver.cuArrayCreate_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!array || !desc || !guest_enter())
		return driver.cuArrayCreate_v2(array, desc);
	full = (CUDA_ARRAY3D_DESCRIPTOR){
		.Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels
	};
	r = array_begin(&full, 1, &device, &held);
	if (r == CUDA_SUCCESS)
		r = array_finish(array, &full, device, held, driver.cuArrayCreate_v2(array, desc));
	guest_leave();
	return r;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	uint64_t held;
	CUresult r;
	int device;

	if (!driver.cuArray3DCreate_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!array || !desc || !guest_enter())
		return driver.cuArray3DCreate_v2(array, desc);
	r = array_begin(desc, 1, &device, &held);
	if (r == CUDA_SUCCESS)
		r = array_finish(array, desc, device, held, driver.cuArray3DCreate_v2(array, desc));
	guest_leave();
	return r;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	uint64_t held, real;
	CUresult r;
	int device;

	if (!driver.cuMipmappedArrayCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!array || !desc || !guest_enter())
		return driver.cuMipmappedArrayCreate(array, desc, levels);
	r = array_begin(desc, levels, &device, &held);
	if (r == CUDA_SUCCESS) {
		r = driver.cuMipmappedArrayCreate(array, desc, levels);
		if (r == CUDA_SUCCESS) {
			real = footprint_is_deferred(desc) ? 0 : mipmap_bytes(*array, current_ordinal(), held);
			r = array_keep(PTRMAP_MIPMAP, *array, real, device, &held);
			if (r != CUDA_SUCCESS && driver.cuMipmappedArrayDestroy)
				driver.cuMipmappedArrayDestroy(*array);
		}
		if (r != CUDA_SUCCESS)
			charge_return(device, held);
	}
	guest_leave();
	return r;
}

CUresult cuArrayDestroy(CUarray array)
{
	struct ptrmap_entry entry;
	CUresult r;

	if (!driver.cuArrayDestroy)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuArrayDestroy(array);
	if (ptrmap_take(PTRMAP_ARRAY, (uintptr_t)array, &entry))
		r = let_go(&entry, driver.cuArrayDestroy(array));
	else
		r = driver.cuArrayDestroy(array);
	guest_leave();
	return r;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct ptrmap_entry entry;
	CUresult r;

	if (!driver.cuMipmappedArrayDestroy)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMipmappedArrayDestroy(array);
	if (ptrmap_take(PTRMAP_MIPMAP, (uintptr_t)array, &entry))
		r = let_go(&entry, driver.cuMipmappedArrayDestroy(array));
	else
		r = driver.cuMipmappedArrayDestroy(array);
	guest_leave();
	return r;
}
