/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory sizes that a program sees: the grant's, not the card's. Frameworks size their pools by them.
 *
 * total = min(limit, physical), free = min(limit - charged, physically free). The charge is the whole grant's, so two
 * processes of one grant see each other's use, and a limit lowered below the use shows 0 free rather than an error.
 */
#include "interpose/driver/driver.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/tenant/guest.h"

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	const struct sluice_guest *guest;
	uint64_t limit, charged;
	CUresult r;
	int device;

	if (!driver.cuMemGetInfo_v2)
		return CUDA_ERROR_NOT_FOUND;
	r = driver.cuMemGetInfo_v2(free_bytes, total_bytes);
	if (r != CUDA_SUCCESS || !free_bytes || !total_bytes || !guest_enter())
		return r;
	guest = guest_self();
	if (charge_device(&device) == CUDA_SUCCESS) {
		overhead_follow(device, OVERHEAD_EVERY_NS / 10);
		pool_refresh(device); /* a synchronisation may have shrunk a pool since the last query */
		limit = guest_memory_limit(device);
		charged = sluice_memory_charged(guest->policy, guest->usage, (uint32_t)device);
		if (limit < *total_bytes)
			*total_bytes = limit;
		if (charged >= limit)
			*free_bytes = 0;
		else if (limit - charged < *free_bytes)
			*free_bytes = limit - charged;
	}
	guest_leave();
	return r;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult r;
	int device;

	if (!driver.cuDeviceTotalMem_v2)
		return CUDA_ERROR_NOT_FOUND;
	r = driver.cuDeviceTotalMem_v2(bytes, dev);
	if (r != CUDA_SUCCESS || !bytes || !guest_enter())
		return r;
	device = guest_device_of_ordinal(dev);
	if (device >= 0 && guest_memory_limit(device) < *bytes)
		*bytes = guest_memory_limit(device);
	guest_leave();
	return r;
}
