/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: finding devices, by number and by each of their names. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "simgpu/nvml/device.h"

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	unsigned card[SIM_GPUS];

	ENTER();
	WANT(count);
	*count = nvml_attached() ? sim_cards(sim_state(), card) : 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	unsigned card[SIM_GPUS];

	ENTER();
	WANT(device && nvml_attached() && index < sim_cards(sim_state(), card));
	*device = &sim_state()->gpu[card[index]];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

typedef nvmlReturn_t (*name_of)(nvmlDevice_t device, char *text, unsigned bytes);

static nvmlReturn_t find(const char *wanted, nvmlDevice_t *device, name_of name)
{
	struct sim_state *state = sim_state();

	ENTER();
	WANT(wanted && device);
	for (unsigned i = 0; nvml_attached() && i < state->gpu_count; i++) {
		char text[96];

		if (state->gpu[i].live && sim_gpu_there(state, &state->gpu[i]) &&
		    name(&state->gpu[i], text, sizeof(text)) == NVML_SUCCESS && strcasecmp(text, wanted) == 0) {
			*device = &state->gpu[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return find(uuid, device, nvmlDeviceGetUUID);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	return find(serial, device, nvmlDeviceGetSerial);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
	char full[32];

	WANT(bus_id && device);
	/* 0000:10:00.0 is equivalent to 00000000:10:00.0 */
	snprintf(full, sizeof(full), "%s%s", strcspn(bus_id, ":") == 4 ? "0000" : "", bus_id);
	return find(full, device, nvml_bus_id);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
