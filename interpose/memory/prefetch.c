/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving memory to a GPU before it is touched there.
 *
 * Managed memory is charged in full when it is allocated, so the location of its pages does not matter. But where a GPU
 * can use ordinary memory of the host (HMM, ATS), a prefetch accepts that, too, and moves it onto the device without an
 * allocation, outside of the cap. Such a call is refused with the error that drivers return where the GPU has no such
 * access. Only the driver can classify an address (a module's managed variables are in no map of ours); it does not
 * know memory that no CUDA call has made. A touch by a kernel cannot be detected; docs/security.md says so.
 */
#include "interpose/driver/driver.h"
#include "interpose/driver/location.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/guest.h"

/* True for the host's own memory: CUDA neither allocated nor registered it. */
static bool pageable(CUdeviceptr address)
{
	struct ptrmap_entry entry;
	unsigned int kind = 0;

	if (ptrmap_get(PTRMAP_MEMORY, address, &entry) || !driver.cuPointerGetAttribute)
		return false;
	return driver.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS;
}

/* True if memory at this address may move to the device. Outside of a grant any memory may. */
static bool may_go(CUdeviceptr address, bool to_device)
{
	bool may;

	if (!to_device || !guest_enter())
		return true;
	may = !pageable(address);
	guest_leave();
	return may;
}

static bool is_device(const CUmemLocation *location)
{
	return location_ordinal(location) >= 0;
}

/* Location i applies from address first[i] on. The driver reports errors in the lists. */
static bool all_may_go(const CUdeviceptr *address, size_t count, const CUmemLocation *to, const size_t *first,
                       size_t locations)
{
	size_t at = 0;

	if (!address || !to || !first || locations == 0)
		return true;
	for (size_t i = 0; i < count; i++) {
		while (at + 1 < locations && first[at + 1] <= i)
			at++;
		if (!may_go(address[i], is_device(&to[at])))
			return false;
	}
	return true;
}

#define PREFETCH(symbol)                                                                                               \
	CUresult symbol(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream)                               \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		return may_go(address, to >= 0) ? driver.symbol(address, bytes, to, stream)                            \
		                                : CUDA_ERROR_INVALID_VALUE;                                            \
	}

#define PREFETCH_V2(symbol)                                                                                            \
	CUresult symbol(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned int flags, CUstream stream)      \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		return may_go(address, is_device(&to)) ? driver.symbol(address, bytes, to, flags, stream)              \
		                                       : CUDA_ERROR_INVALID_VALUE;                                     \
	}

#define PREFETCH_BATCH(symbol)                                                                                         \
	CUresult symbol(CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *to, size_t *first,           \
	                size_t locations, unsigned long long flags, CUstream stream)                                   \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		return all_may_go(address, count, to, first, locations)                                                \
		               ? driver.symbol(address, bytes, count, to, first, locations, flags, stream)             \
		               : CUDA_ERROR_INVALID_VALUE;                                                             \
	}

PREFETCH(cuMemPrefetchAsync)
PREFETCH(cuMemPrefetchAsync_ptsz)
PREFETCH_V2(cuMemPrefetchAsync_v2)
PREFETCH_V2(cuMemPrefetchAsync_v2_ptsz)
PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemPrefetchBatchAsync_ptsz)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)

/* Pages move to a preferred location at their next touch; other advice moves no page. */
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
	if (!driver.cuMemAdvise)
		return CUDA_ERROR_NOT_FOUND;
	if (!may_go(address, advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && device >= 0))
		return CUDA_ERROR_INVALID_VALUE;
	return driver.cuMemAdvise(address, bytes, advice, device);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	if (!driver.cuMemAdvise_v2)
		return CUDA_ERROR_NOT_FOUND;
	if (!may_go(address, advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION && is_device(&location)))
		return CUDA_ERROR_INVALID_VALUE;
	return driver.cuMemAdvise_v2(address, bytes, advice, location);
}
