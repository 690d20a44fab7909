/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of calls about a card's geometry: the permission to change it, and the handles of its parts. */
#ifndef SIM_NVML_MIG_CHANGE_H
#define SIM_NVML_MIG_CHANGE_H

#include "simgpu/node/mig.h"
#include "simgpu/nvml/nvml.h"

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
