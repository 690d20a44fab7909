/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory apart from addresses: cuMemCreate, cuMemMap, and the references that keep memory alive.
 *
 * Charged when it is created, until the last of its handles and mappings ends: the documented idiom maps and then
 * releases the handle at once. The driver may reuse a handle while a mapping still holds the memory, so a mapping
 * remembers our own number of the physical memory, not the handle. Imported handles are not in the map and cost nothing
 * here: their exporter is charged.
 */
#include "interpose/driver/driver.h"
#include "interpose/driver/location.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/guest.h"

static uint32_t next_physical;

/* Drop one reference; the last one returns the charge. */
static void drop(uint32_t physical)
{
	struct ptrmap_entry entry;

	if (ptrmap_refer(PTRMAP_PHYSICAL, physical, -1, &entry) && entry.owner == 0)
		charge_return(entry.device, entry.bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
	struct ptrmap_entry physical = { .bytes = bytes, .owner = 1, .kind = PTRMAP_PHYSICAL };
	struct ptrmap_entry name = { .owner = 1, .kind = PTRMAP_HANDLE };
	CUresult r;
	int device, ordinal;

	if (!driver.cuMemCreate)
		return CUDA_ERROR_NOT_FOUND;
	ordinal = prop ? location_ordinal(&prop->location) : -1;
	if (!handle || bytes == 0 || ordinal < 0 || !guest_enter())
		return driver.cuMemCreate(handle, bytes, prop, flags);
	device = guest_device_of_ordinal(ordinal);
	if (device < 0 && (uint32_t)ordinal >= guest_self()->device_count)
		r = driver.cuMemCreate(handle, bytes, prop, flags); /* no such device: the driver reports the error */
	else if ((r = charge_take(device, bytes)) == CUDA_SUCCESS) {
		r = driver.cuMemCreate(handle, bytes, prop, flags);
		if (r == CUDA_SUCCESS) {
			do
				physical.key = __atomic_add_fetch(&next_physical, 1, __ATOMIC_RELAXED);
			while (physical.key == 0);
			physical.device = (int8_t)device;
			name.key = *handle;
			name.bytes = physical.key;
			if (!ptrmap_put(&physical) || !ptrmap_put(&name)) {
				ptrmap_take(PTRMAP_PHYSICAL, physical.key, &physical);
				if (driver.cuMemRelease)
					driver.cuMemRelease(*handle);
				r = CUDA_ERROR_OUT_OF_MEMORY;
			}
		}
		if (r != CUDA_SUCCESS)
			charge_return(device, bytes);
	}
	guest_leave();
	return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct ptrmap_entry name;
	bool ours;
	CUresult r;

	if (!driver.cuMemRelease)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemRelease(handle);
	/* before the driver's release: right after it the handle may denote other memory */
	ours = ptrmap_refer(PTRMAP_HANDLE, handle, -1, &name);
	r = driver.cuMemRelease(handle);
	if (ours && r == CUDA_SUCCESS) {
		drop((uint32_t)name.bytes);
	} else if (ours) {
		if (name.owner == 0) {
			name.owner = 1;
			ptrmap_put(&name);
		} else {
			ptrmap_refer(PTRMAP_HANDLE, handle, 1, &name);
		}
	}
	guest_leave();
	return r;
}

/* The physical memory behind a mapped address, which need not be the start of its mapping. 0 = not ours. */
static uint32_t physical_at(CUdeviceptr address)
{
	struct ptrmap_entry mapping;
	CUdeviceptr base;
	size_t bytes;

	if (ptrmap_get(PTRMAP_MAPPING, address, &mapping))
		return mapping.owner;
	if (driver.cuMemGetAddressRange_v2 && driver.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS &&
	    ptrmap_get(PTRMAP_MAPPING, base, &mapping))
		return mapping.owner;
	return 0;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct ptrmap_entry name, physical;
	CUresult r;

	if (!driver.cuMemRetainAllocationHandle)
		return CUDA_ERROR_NOT_FOUND;
	if (!handle || !guest_enter())
		return driver.cuMemRetainAllocationHandle(handle, address);
	r = driver.cuMemRetainAllocationHandle(handle, address);
	if (r == CUDA_SUCCESS) {
		if (ptrmap_refer(PTRMAP_HANDLE, *handle, 1, &name)) {
			ptrmap_refer(PTRMAP_PHYSICAL, name.bytes, 1, &physical);
		} else {
			uint32_t id = physical_at((uintptr_t)address);

			if (id && ptrmap_refer(PTRMAP_PHYSICAL, id, 1, &physical)) {
				name = (struct ptrmap_entry){
					.key = *handle, .bytes = id, .owner = 1, .kind = PTRMAP_HANDLE
				};
				ptrmap_put(&name);
			}
		}
	}
	guest_leave();
	return r;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
	struct ptrmap_entry name, physical, mapping = { .key = address, .bytes = bytes, .kind = PTRMAP_MAPPING };
	bool ours;
	CUresult r;

	if (!driver.cuMemMap)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemMap(address, bytes, offset, handle, flags);
	ours = ptrmap_get(PTRMAP_HANDLE, handle, &name) && ptrmap_refer(PTRMAP_PHYSICAL, name.bytes, 1, &physical);
	r = driver.cuMemMap(address, bytes, offset, handle, flags);
	if (ours && r == CUDA_SUCCESS) {
		mapping.owner = (uint32_t)name.bytes;
		/* if the entry cannot be stored, the reference stays: charging for too long is the safe error */
		ptrmap_put(&mapping);
	} else if (ours) {
		drop((uint32_t)name.bytes);
	}
	guest_leave();
	return r;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	struct ptrmap_entry mapping;
	CUresult r;

	if (!driver.cuMemUnmap)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemUnmap(address, bytes);
	r = driver.cuMemUnmap(address, bytes);
	/* One call may end several adjacent mappings, whole ones only; the application cannot map anything here again
	 * before this returns. Gaps and imported mappings are skipped in steps of the smallest granularity. */
	for (CUdeviceptr at = address; r == CUDA_SUCCESS && at - address < bytes;) {
		if (ptrmap_take(PTRMAP_MAPPING, at, &mapping)) {
			drop(mapping.owner);
			at += mapping.bytes ? mapping.bytes : 1;
		} else {
			at += UINT64_C(64) << 10;
		}
	}
	guest_leave();
	return r;
}
