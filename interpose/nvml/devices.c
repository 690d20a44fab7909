/* SPDX-License-Identifier: Apache-2.0 */
/* Finding GPUs, and their memory: only the grant's GPUs, and as much memory as the grant has. */
#include "interpose/nvml/nvml.h"

static nvmlReturn_t count_ours(unsigned int *count, nvmlReturn_t (*real_count)(unsigned int *))
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];

	if (!count || !nvml_grant(&region))
		return real_count ? real_count(count) : NVML_ERROR_FUNCTION_NOT_FOUND;
	return nvml_list(&region, ours, count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	nvml_load();
	return count_ours(count, nvml_real.nvmlDeviceGetCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	nvml_load();
	return count_ours(count, nvml_real.nvmlDeviceGetCount_v2);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device,
                             nvmlReturn_t (*real_get)(unsigned int, nvmlDevice_t *))
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];
	unsigned int count;
	nvmlReturn_t r;

	if (!device || !nvml_grant(&region))
		return real_get ? real_get(index, device) : NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_list(&region, ours, &count);
	if (r == NVML_SUCCESS && index >= count)
		r = NVML_ERROR_INVALID_ARGUMENT;
	if (r == NVML_SUCCESS)
		*device = ours[index];
	return r;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	nvml_load();
	return by_index(index, device, nvml_real.nvmlDeviceGetHandleByIndex);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	nvml_load();
	return by_index(index, device, nvml_real.nvmlDeviceGetHandleByIndex_v2);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];
	unsigned int count;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetIndex)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetIndex(device, index);
	if (r != NVML_SUCCESS || !index || !nvml_grant(&region) || nvml_list(&region, ours, &count) != NVML_SUCCESS)
		return r;
	for (unsigned int i = 0; i < count; i++)
		if (ours[i] == device)
			*index = i;
	return r;
}

/* A handle found by name: valid only if it is in the grant. */
static nvmlReturn_t checked(nvmlReturn_t r, nvmlDevice_t *device)
{
	struct attach_region region;

	if (r != NVML_SUCCESS || !device || !nvml_grant(&region) || nvml_is_ours(&region, *device))
		return r;
	*device = NULL;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	nvml_load();
	return nvml_real.nvmlDeviceGetHandleByUUID ? checked(nvml_real.nvmlDeviceGetHandleByUUID(uuid, device), device)
	                                           : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const void *uuid, nvmlDevice_t *device)
{
	nvml_load();
	return nvml_real.nvmlDeviceGetHandleByUUIDV
	               ? checked(nvml_real.nvmlDeviceGetHandleByUUIDV(uuid, device), device)
	               : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	nvml_load();
	return nvml_real.nvmlDeviceGetHandleByPciBusId
	               ? checked(nvml_real.nvmlDeviceGetHandleByPciBusId(bus_id, device), device)
	               : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	nvml_load();
	return nvml_real.nvmlDeviceGetHandleByPciBusId_v2
	               ? checked(nvml_real.nvmlDeviceGetHandleByPciBusId_v2(bus_id, device), device)
	               : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	nvml_load();
	return nvml_real.nvmlDeviceGetHandleBySerial
	               ? checked(nvml_real.nvmlDeviceGetHandleBySerial(serial, device), device)
	               : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* total = min(limit, physical), used = charged to the grant, free = rest of the limit, as far as the card has it
 * free. */
static void show_grant(nvmlDevice_t device, unsigned long long *total, unsigned long long *free_bytes,
                       unsigned long long *used)
{
	struct attach_region region;
	struct sluice_policy_device limits;
	uint64_t limit, charged;
	int i;

	if (!nvml_grant(&region) || (i = nvml_device_of(&region, device)) < 0 ||
	    sluice_policy_read_device(region.policy, (uint32_t)i, &limits) != 0 ||
	    !(limits.flags & SLUICE_FLAG_ENFORCE_MEMORY))
		return;
	limit = limits.memory_limit_bytes < *total ? limits.memory_limit_bytes : *total;
	charged = sluice_memory_charged(region.policy, region.usage, (uint32_t)i);
	if (charged > limit)
		charged = limit;
	*total = limit;
	*used = charged;
	if (*free_bytes > limit - charged)
		*free_bytes = limit - charged;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetMemoryInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetMemoryInfo(device, memory);
	if (r == NVML_SUCCESS && memory)
		show_grant(device, &memory->total, &memory->free, &memory->used);
	return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	unsigned long long before;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetMemoryInfo_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (r == NVML_SUCCESS && memory) {
		before = memory->total;
		show_grant(device, &memory->total, &memory->free, &memory->used);
		if (memory->total != before)
			memory->reserved = 0; /* reserved memory belongs to the card, not to the grant */
	}
	return r;
}

/* The daemon sets limits by cgroup: callers in a grant never have the permission, not even root. */
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const void *limits)
{
	struct attach_region region;

	nvml_load();
	if (!nvml_real.nvmlDeviceSetMemoryLimits_v1)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (!nvml_grant(&region))
		return nvml_real.nvmlDeviceSetMemoryLimits_v1(device, limits);
	return device && limits ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INVALID_ARGUMENT;
}
