/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event sets of the simulated management library. The only event is a critical XID, triggered by the control file's
 * line `xid=CODE@GPU`: each set that watches the GPU gets it once, and again when the text changes.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simgpu/node/place.h"
#include "simgpu/nvml/nvml.h"

#define XID_CRITICAL 8ull
#define LOOK_EVERY_NS 10000000

struct event_set {
	uint64_t watched; /* GPUs, one bit each */
	char seen[64];    /* the knob's text that was delivered, or was set before the set was created */
};

typedef struct event_set *nvmlEventSet_t;

struct event_data {
	nvmlDevice_t device;
	unsigned long long type, data;
	unsigned gpu_instance, compute_instance;
};

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	ENTER();
	WANT(set);
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NVML_ERROR_UNKNOWN;
	sim_knob_text("xid", (*set)->seen, sizeof((*set)->seen));
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	ENTER_DEVICE(device);
	WANT(set);
	if (types & ~XID_CRITICAL)
		return NVML_ERROR_NOT_SUPPORTED;
	if (types)
		set->watched |= UINT64_C(1) << sim_gpu_index(sim_state(), device);
	return NVML_SUCCESS;
}

/* True if there is an event that this set has not received. */
static bool next(nvmlEventSet_t set, struct event_data *data)
{
	char text[sizeof(set->seen)] = "", *end;

	sim_knob_text("xid", text, sizeof(text));
	if (strcmp(text, set->seen) == 0)
		return false;
	memcpy(set->seen, text, sizeof(text));
	unsigned long code = strtoul(text, &end, 10);

	if (end == text || *end != '@')
		return false;
	unsigned long gpu = strtoul(end + 1, NULL, 10);

	if (gpu >= sim_state()->gpu_count || !(set->watched >> gpu & 1))
		return false;
	*data = (struct event_data){ .device = &sim_state()->gpu[gpu],
		                     .type = XID_CRITICAL,
		                     .data = code,
		                     .gpu_instance = UINT32_MAX,
		                     .compute_instance = UINT32_MAX };
	return true;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event_data *data, unsigned timeout_ms)
{
	uint64_t end_ns = sim_now_ns() + (uint64_t)timeout_ms * 1000000;

	ENTER();
	WANT(set && data);
	while (!next(set, data)) {
		struct timespec nap = { .tv_nsec = LOOK_EVERY_NS };

		if (sim_now_ns() >= end_ns)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&nap, NULL);
		ENTER();
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct event_data *data, unsigned timeout_ms)
{
	struct event_data wide;
	nvmlReturn_t r;

	WANT(data);
	r = nvmlEventSetWait_v2(set, &wide, timeout_ms);
	if (r == NVML_SUCCESS)
		memcpy(data, &wide, offsetof(struct event_data, gpu_instance)); /* the size of version 1 */
	return r;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	ENTER();
	WANT(set);
	free(set);
	return NVML_SUCCESS;
}
