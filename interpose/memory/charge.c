/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reserve-then-verify (R4 of proto/region.h) with this process's slot and limit filled in. Code that keeps unused
 * memory registers with charge_on_full(), as shrinkers do in the kernel, so this file depends on none of it.
 */
#include "interpose/memory/charge.h"

#include "interpose/driver/driver.h"
#include "nativecommon/footprint.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/moves.h"
#include "interpose/tenant/tally.h"

static bool (*give_back)(int device);

void charge_on_full(bool (*shrink)(int device))
{
	__atomic_store_n(&give_back, shrink, __ATOMIC_RELEASE);
}

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
	return tally_take(device, bytes, guest_memory_limit(device));
}

CUresult charge_take(int device, uint64_t bytes)
{
	bool (*shrink)(int);

	if (device < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	move_if_given_away();
	if (__builtin_expect(reserve(device, bytes), 1))
		return CUDA_SUCCESS;
	/* as the driver does when memory runs out: release the kept memory first */
	shrink = __atomic_load_n(&give_back, __ATOMIC_ACQUIRE);
	return shrink && shrink(device) && reserve(device, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t charge_room(int device, uint64_t beyond)
{
	const struct sluice_guest *guest = guest_self();
	uint64_t limit = guest_memory_limit(device), most = limit + beyond < limit ? limit : limit + beyond;
	uint64_t charged = sluice_memory_charged(guest->policy, guest->usage, (uint32_t)device);

	return most > charged ? most - charged : 0;
}

bool charge_is_beyond(int device)
{
	const struct sluice_guest *guest = guest_self();

	return sluice_memory_charged(guest->policy, guest->usage, (uint32_t)device) > guest_memory_limit(device);
}

void charge_force(int device, uint64_t bytes)
{
	move_if_given_away();
	tally_force(device, bytes);
}

CUresult charge_take_managed(int device, uint64_t bytes)
{
	CUresult r = charge_take(device, bytes);
	uint64_t part = 0;
	bool taken = false;

	if (r == CUDA_SUCCESS || device < 0 || !guest_managed_beyond(device))
		return r;
	/* The rest of the limit is charged. Other threads may charge at the same time: then it is less, or nothing. */
	for (int tries = 0; tries < BEYOND_TRIES && !taken; tries++) {
		uint64_t left = charge_room(device, 0);

		part = (left < bytes ? left : bytes) / FOOTPRINT_GRANULE * FOOTPRINT_GRANULE;
		taken = part == 0 || reserve(device, part);
	}
	if (!taken)
		part = 0;
	tally_beyond(device, bytes - part);
	return CUDA_SUCCESS;
}

void charge_return(int device, uint64_t bytes)
{
	/* after the slot was given to another process its charge must not be lowered */
	move_if_given_away();
	tally_return(device, bytes);
}

CUresult charge_resize(int device, uint64_t have, uint64_t want)
{
	if (want > have)
		return charge_take(device, want - have);
	charge_return(device, have - want);
	return CUDA_SUCCESS;
}
