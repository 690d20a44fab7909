/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the name driver with an effect; see name_driver.c. */
#include <stdint.h>
#include <string.h>

#include "nativecommon/cuda_abi.h"

#define API __attribute__((visibility("default")))

int name_driver_lookup(const char *symbol, void **pfn, int version, cuuint64_t flags);

API CUresult cuInit(unsigned int flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	memset(uuid, 0xd0 + dev, sizeof(*uuid));
	return CUDA_SUCCESS;
}

#ifndef NAME_DRIVER_ABSENT
API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
	void *any;
	CUresult r;

	if (flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	r = (CUresult)name_driver_lookup(symbol, pfn, version, flags);
	if (status)
		*status = r == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
		          : name_driver_lookup(symbol, &any, 1 << 30, flags)
		                  ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
		                  : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	return CUDA_SUCCESS;
}
API CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                      CUdriverProcAddressQueryResult *status)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags & 1 ? flags : flags | 2, status);
}
API CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	void *found;
	CUresult r =
		flags > 3 ? CUDA_ERROR_INVALID_VALUE : (CUresult)name_driver_lookup(symbol, &found, version, flags);

	if (r == CUDA_SUCCESS)
		*pfn = found;
	return r;
}
#endif

/* Forwarded functions that report their arguments: integers and floats, in registers and on the stack. */
API uint64_t cuGraphAddDependencies(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g,
                                    uint64_t h, uint64_t i, double j, double k, double l, double m, double n, double o,
                                    double p, double q, uint64_t factor)
{
	return factor * (a + b + c + d + e + f + g + h + i + (uint64_t)j + (uint64_t)k + (uint64_t)l + (uint64_t)m +
	                 (uint64_t)n + (uint64_t)o + (uint64_t)p + (uint64_t)q);
}
API int cuTexRefSetMipmapLevelBias(void *texture, float bias)
{
	return texture ? 0 : (int)(bias * 4);
}
