/* SPDX-License-Identifier: Apache-2.0 */
/* The location argument of allocations and prefetches. */
#ifndef SLUICE_LOCATION_H
#define SLUICE_LOCATION_H

#include "nativecommon/cuda_abi.h"

/* The CUDA ordinal of the device that a location names, also when it names a part of a device; -1: not device
 * memory. */
static inline int location_ordinal(const CUmemLocation *location)
{
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		return location->id & 0xff;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

#endif
