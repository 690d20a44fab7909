/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve-then-verify (R4 of proto/region.h) with this process's slot, limit and pools filled in. */
#include "interpose/charge.h"

#include "interpose/driver.h"
#include "interpose/guest.h"
#include "interpose/pool.h"

CUresult charge_device(int *ret_device)
{
	int device = guest_current_device();
	CUresult r;
	CUdevice dev;

	if (__builtin_expect(device < 0, 0)) {
		r = driver.cuCtxGetDevice ? driver.cuCtxGetDevice(&dev) : CUDA_ERROR_NOT_FOUND;
		return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret_device = device;
	return CUDA_SUCCESS;
}

static bool reserve(int device, uint64_t bytes)
{
	const struct sluice_guest *guest = guest_self();

	return sluice_memory_reserve(guest->policy, guest->usage, __atomic_load_n(&guest->slot, __ATOMIC_RELAXED),
	                             (uint32_t)device, bytes, guest_memory_limit(device)) == 0;
}

CUresult charge_take(int device, uint64_t bytes)
{
	if (device < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	guest_check_generation();
	if (__builtin_expect(reserve(device, bytes), 1))
		return CUDA_SUCCESS;
	/* as the driver does when it runs out: first let the pools drop what they only keep for later */
	return pool_give_back(device) && reserve(device, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void charge_return(int device, uint64_t bytes)
{
	const struct sluice_guest *guest = guest_self();

	sluice_memory_release(guest->usage, __atomic_load_n(&guest->slot, __ATOMIC_RELAXED), (uint32_t)device, bytes);
}

CUresult charge_resize(int device, uint64_t have, uint64_t want)
{
	if (want > have)
		return charge_take(device, want - have);
	charge_return(device, have - want);
	return CUDA_SUCCESS;
}
