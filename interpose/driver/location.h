/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory is asked for. */
#ifndef SLUICE_LOCATION_H
#define SLUICE_LOCATION_H

#include "interpose/driver/cuda_abi.h"

/* The CUDA ordinal of the device whose memory a location means, a part of a device included; -1: not device memory. */
static inline int location_ordinal(const CUmemLocation *location)
{
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
		return location->id & 0xff;
	return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

#endif
