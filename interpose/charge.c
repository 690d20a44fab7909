/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve-then-verify (R4 of proto/region.h) with this process's slot, limit and pools filled in. */
#include "interpose/charge.h"

#include "interpose/driver.h"
#include "interpose/footprint.h"
#include "interpose/guest_page.h"
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

#define BEYOND_TRIES 8

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

/* Of `bytes` that are given back, what lies beyond the grant goes first. */
static uint64_t settle_beyond(int device, uint64_t bytes)
{
	uint64_t *beyond = &guest_page->beyond[device], old = __atomic_load_n(beyond, __ATOMIC_RELAXED);

	while (old && !__atomic_compare_exchange_n(beyond, &old, old > bytes ? old - bytes : 0, true, __ATOMIC_RELAXED,
	                                           __ATOMIC_RELAXED))
		;
	return bytes > old ? bytes - old : 0;
}

CUresult charge_take_managed(int device, uint64_t bytes)
{
	const struct sluice_guest *guest = guest_self();
	CUresult r = charge_take(device, bytes);
	uint64_t part = 0;
	bool taken = false;

	if (r == CUDA_SUCCESS || device < 0 || !guest_managed_beyond(device))
		return r;
	/* What is left is charged. Others may take of it at the same time: then less is, or nothing. */
	for (int tries = 0; tries < BEYOND_TRIES && !taken; tries++) {
		uint64_t limit = guest_memory_limit(device);
		uint64_t charged = sluice_memory_charged(guest->policy, guest->usage, (uint32_t)device);
		uint64_t left = limit > charged ? limit - charged : 0;

		part = (left < bytes ? left : bytes) / FOOTPRINT_GRANULE * FOOTPRINT_GRANULE;
		taken = part == 0 || reserve(device, part);
	}
	if (!taken)
		part = 0;
	__atomic_fetch_add(&guest_page->beyond[device], bytes - part, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

void charge_return(int device, uint64_t bytes)
{
	const struct sluice_guest *guest = guest_self();

	if (__builtin_expect(__atomic_load_n(&guest_page->beyond[device], __ATOMIC_RELAXED) != 0, 0))
		bytes = settle_beyond(device, bytes);
	sluice_memory_release(guest->usage, __atomic_load_n(&guest->slot, __ATOMIC_RELAXED), (uint32_t)device, bytes);
}

CUresult charge_resize(int device, uint64_t have, uint64_t want)
{
	if (want > have)
		return charge_take(device, want - have);
	charge_return(device, have - want);
	return CUDA_SUCCESS;
}
