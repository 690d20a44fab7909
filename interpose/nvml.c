/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The management library as a tenant sees it (libnvidia-ml.so.1): its own GPUs, its own memory, its own processes.
 *
 * For programs that look before they leap, nvidia-smi first of all. It only reads: no slot is taken, nothing is charged,
 * and in a process without a grant everything is handed on as it is. NVML is not a way to GPU memory or time, so there is
 * nothing here to enforce.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/attach.h"
#include "interpose/reallib.h"

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned long long timestamp;
	unsigned int pid, percent[6]; /* SM, memory, encoder, decoder, JPEG, optical flow */
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
	unsigned int version, count;
	unsigned long long last_seen;
	nvmlProcessUtilizationInfo_v1_t *rows;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
	unsigned long long protected_bytes;
} nvmlProcessDetail_v1_t;

typedef struct {
	unsigned int version, mode, count;
	nvmlProcessDetail_v1_t *rows;
} nvmlProcessDetailList_v1_t;

_Static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 0x18, "its version number says so");
_Static_assert(sizeof(nvmlProcessDetailList_v1_t) == 0x18, "its version number says so");

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_MEMORY = 20,
};

#define MAX_GPUS 64        /* in a node; more than any has */
#define MAX_PROCESSES 1024 /* on a GPU */
#define UUID_TEXT 96

static struct nvml_table {
#define HOOK(ret, name, params) ret(*name) params;
#define DRIVER_ONLY(ret, name, params) ret(*name) params;
#include "interpose/nvml_shim/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
} real;

#define HOOK(ret, name, params)                                                                                        \
	__attribute__((visibility("default"))) ret name params;                                                        \
	__attribute__((visibility("hidden"))) ret lazy_##name params;
#define DRIVER_ONLY(ret, name, params) __attribute__((visibility("hidden"))) ret lazy_##name params;
#include "interpose/nvml_shim/hooks.def"
#undef HOOK
#undef DRIVER_ONLY

static struct nvml_table real = {
#define HOOK(ret, name, params) .name = lazy_##name,
#define DRIVER_ONLY(ret, name, params) .name = lazy_##name,
#include "interpose/nvml_shim/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

static const char *const names[] = {
#define HOOK(ret, name, params) #name,
#define DRIVER_ONLY(ret, name, params) #name,
#include "interpose/nvml_shim/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
#define HOOK(ret, name, params)
#define DRIVER_ONLY(ret, name, params) #name,
#define FORWARD(name) #name,
#include "interpose/nvml_shim/hooks.def"
#include "interpose/nvml_shim/forward.def"
#undef HOOK
#undef DRIVER_ONLY
};

#define NAMES (sizeof(names) / sizeof(names[0]))
#define TABLE (sizeof(struct nvml_table) / sizeof(void *))

/* --- loading --------------------------------------------------------------------------------------------------------- */

static void *handle; /* NULL: not tried; `none`: there is no real library */
static char none;

static bool grant(struct attach_region *ret_region)
{
	return attach_map(ret_region) == 0;
}

/* Idempotent: racing threads store the same values. */
static void *load(void)
{
	struct attach_region region;
	const char *path = NULL;
	void *h = __atomic_load_n(&handle, __ATOMIC_ACQUIRE);
	void **table = (void **)&real;

	if (h)
		return h == &none ? NULL : h;
	if (grant(&region) && region.policy->nvml_path[0] == '/')
		path = (const char *)region.policy->nvml_path;
	h = reallib_open(path, "libnvidia-ml.so.1");
	for (size_t i = 0; i < TABLE; i++)
		__atomic_store_n(&table[i], h ? dlsym(h, names[i]) : NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&handle, h ? h : &none, __ATOMIC_RELEASE);
	return h;
}

static nvmlReturn_t missing(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

__attribute__((visibility("hidden"))) void *trampoline_resolve(size_t index, void **slot);
void *trampoline_resolve(size_t index, void **slot)
{
	void *h = load();
	void *target = h && index < NAMES ? dlsym(h, names[index]) : NULL;

	if (!target)
		target = (void *)missing;
	__atomic_store_n(slot, target, __ATOMIC_RELAXED);
	return target;
}

/* --- which GPUs are ours --------------------------------------------------------------------------------------------- */

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* "GPU-…" or "MIG-…" to the 16 bytes CUDA knows the device by. */
static bool parse_uuid(const char *text, uint8_t ret_uuid[16])
{
	int digits = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	for (text += 4; *text && digits < 32; text++) {
		int value = nibble(*text);

		if (*text == '-')
			continue;
		if (value < 0)
			return false;
		if (digits % 2)
			ret_uuid[digits / 2] = (uint8_t)(ret_uuid[digits / 2] | value);
		else
			ret_uuid[digits / 2] = (uint8_t)(value << 4);
		digits++;
	}
	return digits == 32 && *text == 0;
}

/* Region device of an NVML handle, -1 = none. */
static int device_of(const struct attach_region *region, nvmlDevice_t device)
{
	char text[UUID_TEXT] = { 0 };
	uint8_t uuid[16];

	if (!real.nvmlDeviceGetUUID || real.nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return -1;
	for (uint32_t i = 0; i < region->policy->header.device_count && i < SLUICE_MAX_DEVICES; i++)
		if (memcmp(region->policy->dev[i].gpu_uuid, uuid, sizeof(uuid)) == 0)
			return (int)i;
	return -1;
}

/* A GPU is shown if it, or a MIG device on it, is in the grant. */
static bool is_ours(const struct attach_region *region, nvmlDevice_t device)
{
	unsigned int count = 0;
	nvmlDevice_t mig;

	if (device_of(region, device) >= 0)
		return true;
	if (!real.nvmlDeviceGetMaxMigDeviceCount || !real.nvmlDeviceGetMigDeviceHandleByIndex ||
	    real.nvmlDeviceGetMaxMigDeviceCount(device, &count) != NVML_SUCCESS)
		return false;
	for (unsigned int i = 0; i < count; i++)
		if (real.nvmlDeviceGetMigDeviceHandleByIndex(device, i, &mig) == NVML_SUCCESS &&
		    device_of(region, mig) >= 0)
			return true;
	return false;
}

/* The grant's GPUs in NVML's order. */
static nvmlReturn_t list(const struct attach_region *region, nvmlDevice_t ours[MAX_GPUS], unsigned int *ret_count)
{
	unsigned int all = 0, count = 0;
	nvmlDevice_t device;
	nvmlReturn_t r;

	load();
	if (!real.nvmlDeviceGetCount_v2 || !real.nvmlDeviceGetHandleByIndex_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetCount_v2(&all);
	for (unsigned int i = 0; r == NVML_SUCCESS && i < all && count < MAX_GPUS; i++)
		if (real.nvmlDeviceGetHandleByIndex_v2(i, &device) == NVML_SUCCESS && is_ours(region, device))
			ours[count++] = device;
	if (r == NVML_SUCCESS) /* as the library itself: an error writes nothing */
		*ret_count = count;
	return r;
}

static nvmlReturn_t count_ours(unsigned int *count, nvmlReturn_t (*real_count)(unsigned int *))
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];

	if (!count || !grant(&region))
		return real_count ? real_count(count) : NVML_ERROR_FUNCTION_NOT_FOUND;
	return list(&region, ours, count);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	load();
	return count_ours(count, real.nvmlDeviceGetCount);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	load();
	return count_ours(count, real.nvmlDeviceGetCount_v2);
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device,
                             nvmlReturn_t (*real_get)(unsigned int, nvmlDevice_t *))
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];
	unsigned int count;
	nvmlReturn_t r;

	if (!device || !grant(&region))
		return real_get ? real_get(index, device) : NVML_ERROR_FUNCTION_NOT_FOUND;
	r = list(&region, ours, &count);
	if (r == NVML_SUCCESS && index >= count)
		r = NVML_ERROR_INVALID_ARGUMENT;
	if (r == NVML_SUCCESS)
		*device = ours[index];
	return r;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	load();
	return by_index(index, device, real.nvmlDeviceGetHandleByIndex);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	load();
	return by_index(index, device, real.nvmlDeviceGetHandleByIndex_v2);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct attach_region region;
	nvmlDevice_t ours[MAX_GPUS];
	unsigned int count;
	nvmlReturn_t r;

	load();
	if (!real.nvmlDeviceGetIndex)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetIndex(device, index);
	if (r != NVML_SUCCESS || !index || !grant(&region) || list(&region, ours, &count) != NVML_SUCCESS)
		return r;
	for (unsigned int i = 0; i < count; i++)
		if (ours[i] == device)
			*index = i;
	return r;
}

/* A handle found by name: only if it is ours. */
static nvmlReturn_t checked(nvmlReturn_t r, nvmlDevice_t *device)
{
	struct attach_region region;

	if (r != NVML_SUCCESS || !device || !grant(&region) || is_ours(&region, *device))
		return r;
	*device = NULL;
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	load();
	return real.nvmlDeviceGetHandleByUUID ? checked(real.nvmlDeviceGetHandleByUUID(uuid, device), device)
	                                      : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const void *uuid, nvmlDevice_t *device)
{
	load();
	return real.nvmlDeviceGetHandleByUUIDV ? checked(real.nvmlDeviceGetHandleByUUIDV(uuid, device), device)
	                                       : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	load();
	return real.nvmlDeviceGetHandleByPciBusId ? checked(real.nvmlDeviceGetHandleByPciBusId(bus_id, device), device)
	                                          : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	load();
	return real.nvmlDeviceGetHandleByPciBusId_v2
	               ? checked(real.nvmlDeviceGetHandleByPciBusId_v2(bus_id, device), device)
	               : NVML_ERROR_FUNCTION_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	load();
	return real.nvmlDeviceGetHandleBySerial ? checked(real.nvmlDeviceGetHandleBySerial(serial, device), device)
	                                        : NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* --- memory ---------------------------------------------------------------------------------------------------------- */

/* total = min(limit, physical), used = what the grant holds, free = what is left, if the card has it. */
static void show_grant(nvmlDevice_t device, unsigned long long *total, unsigned long long *free_bytes,
                       unsigned long long *used)
{
	struct attach_region region;
	struct sluice_policy_device limits;
	uint64_t limit, charged;
	int i;

	if (!grant(&region) || (i = device_of(&region, device)) < 0 ||
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

	load();
	if (!real.nvmlDeviceGetMemoryInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetMemoryInfo(device, memory);
	if (r == NVML_SUCCESS && memory)
		show_grant(device, &memory->total, &memory->free, &memory->used);
	return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	unsigned long long before;
	nvmlReturn_t r;

	load();
	if (!real.nvmlDeviceGetMemoryInfo_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetMemoryInfo_v2(device, memory);
	if (r == NVML_SUCCESS && memory) {
		before = memory->total;
		show_grant(device, &memory->total, &memory->free, &memory->used);
		if (memory->total != before)
			memory->reserved = 0; /* the card's, not the grant's */
	}
	return r;
}

/* --- processes ------------------------------------------------------------------------------------------------------- */

/* NVML names processes as the host does, or as this pid namespace does, depending on the driver: both are ours. */
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

/* `at` is where in a record the pid is. Returns how many are ours, moved to the front. */
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

/* nvmlProcessInfo_v1_t: pid, used memory. v2, which the _v3 calls kept: and two instance ids. */
#define PROCESS_V1 16
#define PROCESS_V2 24
#define SAMPLE_BYTES 32 /* nvmlProcessUtilizationSample_t: pid, time, four percentages */

static nvmlReturn_t processes(nvmlDevice_t device, unsigned int *count, void *infos, size_t bytes,
                              nvmlReturn_t (*ask)(nvmlDevice_t, unsigned int *, void *))
{
	struct attach_region region;
	unsigned int all = MAX_PROCESSES;
	nvmlReturn_t r;
	char *records;

	if (!ask)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (!count || !grant(&region))
		return ask(device, count, infos);
	records = calloc(MAX_PROCESSES, bytes);
	if (!records)
		return NVML_ERROR_MEMORY;
	r = ask(device, &all, records);
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
		load();                                                                                                \
		return processes(device, count, infos, BYTES, real.NAME);                                              \
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

	load();
	if (!real.nvmlDeviceGetProcessUtilization)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	given = count ? *count : 0;
	r = real.nvmlDeviceGetProcessUtilization(device, samples, count, since);
	if (r == NVML_SUCCESS && samples && count && *count <= given && grant(&region)) {
		*count = keep_ours(&region, samples, *count, SAMPLE_BYTES, 0);
		if (*count == 0)
			r = NVML_ERROR_NOT_FOUND; /* what NVML says when there is nothing to say */
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct attach_region region;
	unsigned int room = info ? info->count : 0;
	nvmlReturn_t r;

	load();
	if (!real.nvmlDeviceGetProcessesUtilizationInfo)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetProcessesUtilizationInfo(device, info);
	if (r == NVML_SUCCESS && info && info->rows && info->count <= room && grant(&region)) {
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

	load();
	if (!real.nvmlDeviceGetRunningProcessDetailList)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetRunningProcessDetailList(device, list);
	if (r == NVML_SUCCESS && list && list->rows && list->count <= room && grant(&region))
		list->count = keep_ours(&region, list->rows, list->count, sizeof(*list->rows),
		                        offsetof(nvmlProcessDetail_v1_t, pid));
	return r;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	struct attach_region region;
	unsigned int room = count ? *count : 0;
	nvmlReturn_t r;

	load();
	if (!real.nvmlDeviceGetAccountingPids)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	r = real.nvmlDeviceGetAccountingPids(device, count, pids);
	if (r == NVML_SUCCESS && count && pids && *count <= room && grant(&region))
		*count = keep_ours(&region, pids, *count, sizeof(*pids), 0);
	return r;
}

/* Of a process that is not ours there is nothing to know, dead or alive. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, void *stats)
{
	struct attach_region region;

	load();
	if (!real.nvmlDeviceGetAccountingStats)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	if (grant(&region) && !is_our_pid(&region, pid))
		return NVML_ERROR_NOT_FOUND;
	return real.nvmlDeviceGetAccountingStats(device, pid, stats);
}
