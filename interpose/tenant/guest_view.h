/* SPDX-License-Identifier: Apache-2.0 */
/* The public view of this process as a tenant; it does not change while guest_self() returns it. */
#ifndef SLUICE_GUEST_VIEW_H
#define SLUICE_GUEST_VIEW_H

#include <stdint.h>

#include "interpose/attach/region.h"

struct sluice_guest {
	const struct sluice_policy *policy; /* read-only mapping */
	struct sluice_usage *usage;
	uint32_t device_count;        /* CUDA ordinals of this process */
	int8_t device_of_ordinal[64]; /* CUDA ordinal -> index into policy->dev, -1 = not of this grant */
};

#endif
