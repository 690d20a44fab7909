/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the simulated management library. A device handle is the GPU's place in the shared state. */
#ifndef SIM_NVML_H
#define SIM_NVML_H

#include <stdbool.h>
#include <stdint.h>

#include "simgpu/node/place.h"
#include "simgpu/node/mig.h"
#include "simgpu/node/node.h"

#define NVML_API __attribute__((visibility("default")))

enum nvml_return {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_RESET_REQUIRED = 16,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_IN_USE = 19,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
};

typedef enum nvml_return nvmlReturn_t;
typedef struct sim_gpu *nvmlDevice_t;

typedef struct sim_gpu *nvmlGpuInstance_t,
	*nvmlComputeInstance_t; /* the GPU instance's place; it has at most one compute instance */

/* First step of every call: blocks while the knob nvml_hang is set; UNINITIALIZED before init. */
nvmlReturn_t nvml_enter(void);
/* The same for calls about a device: INVALID_ARGUMENT, GPU_IS_LOST. */
nvmlReturn_t nvml_enter_device(nvmlDevice_t device);
/* True if the process has attached to the node's GPUs; without that there are none. */
bool nvml_attached(void);
const struct sim_model *nvml_model(nvmlDevice_t device);
/* Copies `value` if it fits into `bytes`, including its terminator. */
nvmlReturn_t nvml_text(char *text, unsigned bytes, const char *value);
/* Busy part of the last second, percent; of one client, or of the device when client < 0. */
unsigned nvml_busy_percent(nvmlDevice_t device, int client);
/* A knob's value for this GPU, as `3@0,1@2` is 3 for GPU 0; 0 when the GPU is not listed. */
uint64_t nvml_at_gpu(const char *knob, nvmlDevice_t device);
uint64_t nvml_now_us(void); /* on the wall clock, as NVML's samples are stamped */

#define ENTER()                                                                                                        \
	do {                                                                                                           \
		nvmlReturn_t r_ = nvml_enter();                                                                        \
		if (r_ != NVML_SUCCESS)                                                                                \
			return r_;                                                                                     \
	} while (0)
#define ENTER_DEVICE(device)                                                                                           \
	do {                                                                                                           \
		nvmlReturn_t r_ = nvml_enter_device(device);                                                           \
		if (r_ != NVML_SUCCESS)                                                                                \
			return r_;                                                                                     \
	} while (0)
#define WANT(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			return NVML_ERROR_INVALID_ARGUMENT;                                                            \
	} while (0)

/* Shared parts of calls about a card's geometry: the permission to change it, and the handles of its parts. */

struct placement {
	unsigned start, size;
};

/* Only root may call it, and the n-th such call may fail by the knob `fail`. */
nvmlReturn_t nvml_enter_change(nvmlDevice_t device, const char *function);
struct sim_gpu *nvml_card_of(const struct sim_gpu *instance);

/* First step of every call that changes or reads a card's geometry. */
#define CHANGE(device)                                                                                                 \
	do {                                                                                                           \
		nvmlReturn_t r_ = nvml_enter_change(device, __func__);                                                 \
		if (r_ != NVML_SUCCESS)                                                                                \
			return r_;                                                                                     \
	} while (0)

#define ENTER_CARD(device)                                                                                             \
	do {                                                                                                           \
		ENTER_DEVICE(device);                                                                                  \
		if (!nvml_model(device)->mig)                                                                          \
			return NVML_ERROR_NOT_SUPPORTED;                                                               \
	} while (0)

#define ENTER_INSTANCE(instance)                                                                                       \
	do {                                                                                                           \
		ENTER_DEVICE(instance);                                                                                \
		WANT((instance)->card >= 0);                                                                           \
	} while (0)

#endif
