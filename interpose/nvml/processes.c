/* SPDX-License-Identifier: Apache-2.0 */
/* The processes on a GPU: only the grant's, whichever call lists them. */
#include "interpose/nvml/nvml.h"

#include <stdlib.h>
#include <string.h>

/* Depending on the driver NVML reports host pids or pids of this namespace: both count as ours. */
static bool is_our_pid(const struct attach_region *region, unsigned int pid)
{
	for (uint32_t i = 0; pid && i < SLUICE_MAX_SLOTS; i++) {
		const struct sluice_policy_entry *e = &region->policy->dir[i];
		uint64_t claim = __atomic_load_n(&region->usage->slot[i].self_claim, __ATOMIC_ACQUIRE);

		if ((__atomic_load_n(&e->generation, __ATOMIC_ACQUIRE) & 1) &&
		    (__atomic_load_n(&e->host_pid, __ATOMIC_RELAXED) == pid ||
		     __atomic_load_n(&e->ns_pid, __ATOMIC_RELAXED) == pid))
			return true;
		if (claim >> 32 == pid)
			return true;
	}
	return false;
}

/* `at` is the offset of the pid in a record. Returns the number of our records, moved to the front. */
static unsigned int keep_ours(const struct attach_region *region, void *rows, unsigned int count, size_t bytes,
                              size_t at)
{
	char *records = rows;
	unsigned int kept = 0, pid;

	for (unsigned int i = 0; i < count; i++) {
		memcpy(&pid, records + i * bytes + at, sizeof(pid));
		if (is_our_pid(region, pid))
			memmove(records + bytes * kept++, records + i * bytes, bytes);
	}
	return kept;
}

/* nvmlProcessInfo_v1_t: pid, used memory. v2, which the _v3 calls kept, adds two instance ids. */
#define PROCESS_V1 16
#define PROCESS_V2 24
#define SAMPLE_BYTES 32 /* nvmlProcessUtilizationSample_t: pid, time, four percentages */

static nvmlReturn_t processes(nvmlDevice_t device, unsigned int *count, void *infos, size_t bytes,
                              nvmlReturn_t (*query)(nvmlDevice_t, unsigned int *, void *))
{
	struct attach_region region;
	unsigned int all = MAX_PROCESSES;
	nvmlReturn_t r;
	char *records;

	if (!query)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (!count || !nvml_grant(&region))
		return query(device, count, infos);
	records = calloc(MAX_PROCESSES, bytes);
	if (!records)
		return NVML_ERROR_MEMORY;
	r = query(device, &all, records);
	if (r == NVML_SUCCESS) {
		all = keep_ours(&region, records, all < MAX_PROCESSES ? all : MAX_PROCESSES, bytes, 0);
		if (all > *count)
			r = NVML_ERROR_INSUFFICIENT_SIZE;
		else if (all > 0 && infos)
			memcpy(infos, records, all * bytes);
		*count = all;
	}
	free(records);
	return r;
}

#define PROCESSES(NAME, BYTES)                                                                                         \
	nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, void *infos)                                       \
	{                                                                                                              \
		nvml_load();                                                                                           \
		return processes(device, count, infos, BYTES, nvml_real.NAME);                                         \
	}

PROCESSES(nvmlDeviceGetComputeRunningProcesses, PROCESS_V1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, PROCESS_V2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, PROCESS_V2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, PROCESS_V1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, PROCESS_V2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, PROCESS_V2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, PROCESS_V1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, PROCESS_V2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, PROCESS_V2)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, void *samples, unsigned int *count,
                                             unsigned long long since)
{
	struct attach_region region;
	unsigned int given;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetProcessUtilization)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	given = count ? *count : 0;
	r = nvml_real.nvmlDeviceGetProcessUtilization(device, samples, count, since);
	if (r == NVML_SUCCESS && samples && count && *count <= given && nvml_grant(&region)) {
		*count = keep_ours(&region, samples, *count, SAMPLE_BYTES, 0);
		if (*count == 0)
			r = NVML_ERROR_NOT_FOUND; /* NVML's own result when no process matches */
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct attach_region region;
	unsigned int room = info ? info->count : 0;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetProcessesUtilizationInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetProcessesUtilizationInfo(device, info);
	if (r == NVML_SUCCESS && info && info->rows && info->count <= room && nvml_grant(&region)) {
		info->count = keep_ours(&region, info->rows, info->count, sizeof(*info->rows),
		                        offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
		if (info->count == 0)
			r = NVML_ERROR_NOT_FOUND;
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
	struct attach_region region;
	unsigned int room = list ? list->count : 0;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetRunningProcessDetailList)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetRunningProcessDetailList(device, list);
	if (r == NVML_SUCCESS && list && list->rows && list->count <= room && nvml_grant(&region))
		list->count = keep_ours(&region, list->rows, list->count, sizeof(*list->rows),
		                        offsetof(nvmlProcessDetail_v1_t, pid));
	return r;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	struct attach_region region;
	unsigned int room = count ? *count : 0;
	nvmlReturn_t r;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetAccountingPids)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = nvml_real.nvmlDeviceGetAccountingPids(device, count, pids);
	if (r == NVML_SUCCESS && count && pids && *count <= room && nvml_grant(&region))
		*count = keep_ours(&region, pids, *count, sizeof(*pids), 0);
	return r;
}

/* A process outside of the grant is reported as unknown, dead or alive. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, void *stats)
{
	struct attach_region region;

	nvml_load();
	if (!nvml_real.nvmlDeviceGetAccountingStats)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (nvml_grant(&region) && !is_our_pid(&region, pid))
		return NVML_ERROR_NOT_FOUND;
	return nvml_real.nvmlDeviceGetAccountingStats(device, pid, stats);
}
