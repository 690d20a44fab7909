/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 32-bit entry points from before CUDA 3.2, which the driver still exports under the plain names.
 *
 * No 64-bit program has used them for fifteen years; they are wrapped because each would bypass the cap. Each calls its
 * 64-bit successor, and a result that does not fit 32 bits is an error, as it is with the driver.
 */
#include "interpose/driver/driver.h"

#include <limits.h>

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytes)
{
	CUdeviceptr wide;
	CUresult r;

	if (!driver.cuMemAlloc)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuMemAlloc_v2(&wide, bytes);
	if (r == CUDA_SUCCESS && wide > UINT_MAX) {
		cuMemFree_v2(wide);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS)
		*dptr = (CUdeviceptr_v1)wide;
	return r;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width_bytes, unsigned int height,
                         unsigned int element_bytes)
{
	CUdeviceptr wide;
	size_t wide_pitch;
	CUresult r;

	if (!driver.cuMemAllocPitch)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || !pitch)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuMemAllocPitch_v2(&wide, &wide_pitch, width_bytes, height, element_bytes);
	if (r == CUDA_SUCCESS && (wide > UINT_MAX || wide_pitch > UINT_MAX)) {
		cuMemFree_v2(wide);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		*dptr = (CUdeviceptr_v1)wide;
		*pitch = (unsigned int)wide_pitch;
	}
	return r;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr)
{
	return driver.cuMemFree ? cuMemFree_v2(dptr) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY_DESCRIPTOR wide;

	if (!driver.cuArrayCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY_DESCRIPTOR){ desc->Width, desc->Height, desc->Format, desc->NumChannels };
	return cuArrayCreate_v2(array, &wide);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR wide;

	if (!driver.cuArray3DCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!desc)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY3D_DESCRIPTOR){ desc->Width,  desc->Height,      desc->Depth,
		                          desc->Format, desc->NumChannels, desc->Flags };
	return cuArray3DCreate_v2(array, &wide);
}

static unsigned int narrow(size_t bytes)
{
	return bytes > UINT_MAX ? UINT_MAX : (unsigned int)bytes;
}

CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
	size_t wide_free, wide_total;
	CUresult r;

	if (!driver.cuMemGetInfo)
		return CUDA_ERROR_NOT_FOUND;
	if (!free_bytes || !total_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuMemGetInfo_v2(&wide_free, &wide_total);
	if (r == CUDA_SUCCESS) {
		*free_bytes = narrow(wide_free);
		*total_bytes = narrow(wide_total);
	}
	return r;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t wide;
	CUresult r;

	if (!driver.cuDeviceTotalMem)
		return CUDA_ERROR_NOT_FOUND;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	r = cuDeviceTotalMem_v2(&wide, dev);
	if (r == CUDA_SUCCESS)
		*bytes = narrow(wide);
	return r;
}
