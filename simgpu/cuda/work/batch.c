/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and prefetches in batches: one after another, each as the single call would do it. */
#include "simgpu/cuda/base/call.h"

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream);

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

/* Each entry of `first` is the index at which the next attributes begin; they rise, from 0. */
static bool attributes_fine(const void *attributes, const size_t *first, size_t attribute_count, size_t count)
{
	if (!attributes || !first || attribute_count == 0 || attribute_count > count || first[0] != 0)
		return false;
	for (size_t i = 1; i < attribute_count; i++)
		if (first[i] <= first[i - 1] || first[i] >= count)
			return false;
	return true;
}

SIM_API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                    size_t *ret_failed, CUstream stream)
{
	SIM_CALL();
	/* the legacy default stream is not allowed: no work may be waited for in between */
	if (!to || !from || !bytes || count == 0 || !stream || stream == CU_STREAM_LEGACY ||
	    !attributes_fine(attributes, first, attribute_count, count)) {
		if (ret_failed)
			*ret_failed = SIZE_MAX;
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < count; i++) {
		CUresult r = cuMemcpyAsync(to[i], from[i], bytes[i], stream);

		if (r == CUDA_SUCCESS)
			continue;
		if (ret_failed)
			*ret_failed = i;
		return r;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                       CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                       CUstream stream)
{
	return cuMemcpyBatchAsync(to, from, bytes, count, attributes, first, attribute_count, NULL, stream);
}

SIM_API CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                         CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                         size_t *ret_failed, CUstream stream)
{
	return cuMemcpyBatchAsync(to, from, bytes, count, attributes, first, attribute_count, ret_failed, OWN(stream));
}

SIM_API CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                            CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                            CUstream stream)
{
	return cuMemcpyBatchAsync(to, from, bytes, count, attributes, first, attribute_count, NULL, OWN(stream));
}

SIM_API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *to,
                                         size_t *first, size_t location_count, unsigned long long flags,
                                         CUstream stream)
{
	SIM_CALL();
	size_t at = 0;

	if (!address || !bytes || count == 0 || flags || !attributes_fine(to, first, location_count, count))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		while (at + 1 < location_count && first[at + 1] <= i)
			at++;
		CUresult r = cuMemPrefetchAsync_v2(address[i], bytes[i], to[at], 0, stream);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *to,
                                              size_t *first, size_t location_count, unsigned long long flags,
                                              CUstream stream)
{
	return cuMemPrefetchBatchAsync(address, bytes, count, to, first, location_count, flags, OWN(stream));
}
