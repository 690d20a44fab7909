/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A management library for the tests of nvml.c: every symbol of the lists, most of which return only a number, and for
 * the wrapped ones a node of STUB_DEVICES GPUs with the UUIDs of the stub driver, 16 GiB each, and three processes on
 * every one: STUB_PID, 4000000 and 4000001. With STUB_DRIVER, the path of the stub driver, it lists this process
 * instead, with that driver's memory in use.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

#define GIB (1024ull << 20)

typedef void *device_t;

/* Numbers outside of NVML's own codes, so that a call of the wrong function is noticed. */
#define FORWARD(name)                                                                                                  \
	API int name(void)                                                                                             \
	{                                                                                                              \
		return 100000 + __COUNTER__;                                                                           \
	}
#define nvmlInitWithFlags unused_init
#include "interpose/nvml/forward.def"
#undef nvmlInitWithFlags

API int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return 0;
}

static unsigned int devices(void)
{
	const char *n = getenv("STUB_DEVICES");

	return n ? (unsigned int)strtoul(n, NULL, 10) : 1;
}

/* Handles are opaque: not the index. */
static device_t handle_of(unsigned int index)
{
	return (device_t)(0x1000ul + 0x10ul * index);
}
static unsigned int index_of(device_t device)
{
	return (unsigned int)(((unsigned long)device - 0x1000ul) / 0x10ul);
}

API int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = devices();
	return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device)
{
	if (index >= devices())
		return 2;
	*device = handle_of(index);
	return 0;
}
API int nvmlDeviceGetIndex(device_t device, unsigned int *index)
{
	*index = index_of(device);
	return 0;
}
API int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned int length)
{
	unsigned int b = 0xd0 + index_of(device);

	return snprintf(uuid, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b,
	                b, b, b, b, b, b, b, b, b, b, b, b, b, b) < (int)length
	               ? 0
	               : 7;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
	char own[96];

	for (unsigned int i = 0; i < devices(); i++) {
		nvmlDeviceGetUUID(handle_of(i), own, sizeof(own));
		if (strcmp(own, uuid) == 0) {
			*device = handle_of(i);
			return 0;
		}
	}
	return 6;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *device)
{
	*device = handle_of((unsigned int)strtoul(bus_id, NULL, 16));
	return 0;
}
API int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long memory[3])
{
	(void)device;
	memory[0] = 16 * GIB; /* total, free, used */
	memory[1] = 10 * GIB;
	memory[2] = 6 * GIB;
	return 0;
}
/* version, total, reserved, free, used */
API int nvmlDeviceGetMemoryInfo_v2(device_t device, unsigned long long memory[5])
{
	(void)device;
	memory[1] = 16 * GIB;
	memory[2] = GIB;
	memory[3] = 10 * GIB;
	memory[4] = 5 * GIB;
	return 0;
}

struct process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int instances[2];
};

/* Number of times that the processes were asked for; each takes STUB_QUERY_US. */
static unsigned int queries;
API unsigned int stub_nvml_queries(void)
{
	return queries;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned int *count, void *infos)
{
	const char *own = getenv("STUB_PID");
	struct process *to = infos;
	queries++;
	if (getenv("STUB_QUERY_US"))
		usleep((useconds_t)strtoul(getenv("STUB_QUERY_US"), NULL, 10));
	unsigned int pids[3] = { 4000000, own ? (unsigned int)strtoul(own, NULL, 10) : 1, 4000001 };

	if (getenv("STUB_DRIVER")) {
		void *driver = dlopen(getenv("STUB_DRIVER"), RTLD_LAZY | RTLD_NOLOAD);
		uint64_t (*used)(int) = driver ? (uint64_t(*)(int))dlsym(driver, "stub_used") : NULL;
		uint64_t bytes = used ? used((int)index_of(device)) : 0;

		*count = bytes > 0;
		if (bytes > 0)
			to[0] = (struct process){ (unsigned int)getpid(), bytes, { 0, 0 } };
		return 0;
	}
	if (*count < 3) {
		*count = 3;
		return 7;
	}
	*count = 3;
	for (unsigned int i = 0; i < 3; i++)
		to[i] = (struct process){ pids[i], (i + 1) * GIB, { 0, 0 } };
	return 0;
}

static unsigned int own_pid(void)
{
	const char *own = getenv("STUB_PID");

	return own ? (unsigned int)strtoul(own, NULL, 10) : 1;
}

API int nvmlDeviceGetProcessesUtilizationInfo(device_t device, unsigned int *info)
{
	struct row {
		unsigned long long timestamp;
		unsigned int pid, percent[6];
	} *rows;

	(void)device;
	if (info[1] < 3) {
		info[1] = 3;
		return 7;
	}
	info[1] = 3;
	memcpy(&rows, info + 4, sizeof(rows));
	for (unsigned int i = 0; i < 3; i++)
		rows[i] = (struct row){ i, i == 1 ? own_pid() : 4000000 + i, { 10 * i } };
	return 0;
}

API int nvmlDeviceGetRunningProcessDetailList(device_t device, unsigned int *list)
{
	struct row {
		unsigned int pid;
		unsigned long long used;
		unsigned int instances[2];
		unsigned long long protected;
	} *rows;

	(void)device;
	if (list[2] < 3) {
		list[2] = 3;
		return 7;
	}
	list[2] = 3;
	memcpy(&rows, list + 4, sizeof(rows));
	for (unsigned int i = 0; i < 3; i++)
		rows[i] = (struct row){ i == 1 ? own_pid() : 4000000 + i, (i + 1) * GIB, { 0, 0 }, 0 };
	return 0;
}

API int nvmlDeviceGetAccountingPids(device_t device, unsigned int *count, unsigned int *pids)
{
	(void)device;
	for (unsigned int i = 0; i < 3 && i < *count; i++)
		pids[i] = i == 1 ? own_pid() : 4000000 + i;
	*count = 3;
	return 0;
}

API int nvmlDeviceGetAccountingStats(device_t device, unsigned int pid, void *stats)
{
	(void)device;
	memcpy(stats, &pid, sizeof(pid));
	return 0;
}

API int nvmlDeviceSetMemoryLimits_v1(device_t device, const void *limits)
{
	(void)device;
	(void)limits;
	return 0;
}
