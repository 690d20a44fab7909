/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the management library: its types, the real library as a table, and the check which of its GPUs are in
 * the grant. */
#ifndef SLUICE_NVML_H
#define SLUICE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "interpose/attach/attach.h"

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

_Static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 0x18, "its version number encodes it");
_Static_assert(sizeof(nvmlProcessDetailList_v1_t) == 0x18, "its version number encodes it");

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_MEMORY = 20,
};

#define MAX_GPUS 64        /* per node; more than any has */
#define MAX_PROCESSES 1024 /* per GPU */
#define UUID_TEXT 96

/* The real library; an entry is first a stub that loads it, then the real function or NULL. */
struct nvml_table {
#define HOOK(ret, name, params) ret(*name) params;
#define DRIVER_ONLY(ret, name, params) ret(*name) params;
#include "interpose/nvml/hooks.def"
#undef HOOK
#undef DRIVER_ONLY
};

extern struct nvml_table nvml_real;

#define HOOK(ret, name, params)                                                                                        \
	__attribute__((visibility("default"))) ret name params;                                                        \
	__attribute__((visibility("hidden"))) ret lazy_##name params;
#define DRIVER_ONLY(ret, name, params) __attribute__((visibility("hidden"))) ret lazy_##name params;
#include "interpose/nvml/hooks.def"
#undef HOOK
#undef DRIVER_ONLY

/* Load the real library once; NULL: not found. */
void *nvml_load(void);
/* The region of this process's grant; false: it has no grant, and sees all GPUs. */
bool nvml_grant(struct attach_region *ret_region);

/* Region device of an NVML handle, -1 = not in the grant. */
int nvml_device_of(const struct attach_region *region, nvmlDevice_t device);
/* A GPU is visible if it, or a MIG device on it, is in the grant. */
bool nvml_is_ours(const struct attach_region *region, nvmlDevice_t device);
/* The grant's GPUs in NVML's order. */
nvmlReturn_t nvml_list(const struct attach_region *region, nvmlDevice_t ours[MAX_GPUS], unsigned int *ret_count);

#endif
