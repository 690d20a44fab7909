/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: start and end, the system, and the common parts of all calls. */
#include "simgpu/nvml/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int references;

static void wait_while_hung(void)
{
	while (sim_knob_number("nvml_hang", 0)) {
		struct timespec nap = { .tv_nsec = 20000000 };

		nanosleep(&nap, NULL);
	}
}

nvmlReturn_t nvml_enter(void)
{
	wait_while_hung();
	return __atomic_load_n(&references, __ATOMIC_ACQUIRE) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_enter_device(nvmlDevice_t device)
{
	struct sim_state *state = sim_state();

	ENTER();
	WANT(device && device >= state->gpu && device < state->gpu + state->gpu_count && device->live);
	sim_lock(device);
	sim_reap(state, device, false);
	sim_unlock(device);
	return device->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

const struct sim_model *nvml_model(nvmlDevice_t device)
{
	return sim_model_at(device->model);
}

nvmlReturn_t nvml_text(char *text, unsigned bytes, const char *value)
{
	WANT(text);
	if (strlen(value) >= bytes)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(text, value, strlen(value) + 1);
	return NVML_SUCCESS;
}

unsigned nvml_busy_percent(nvmlDevice_t device, int client)
{
	sim_lock(device);
	uint32_t permille =
		timeline_utilization_permille(sim_advance(sim_state(), device), client, UINT64_C(1000000000));

	sim_unlock(device);
	return (permille + 5) / 10;
}

uint64_t nvml_at_gpu(const char *knob, nvmlDevice_t device)
{
	char text[128], *at = text;
	unsigned index = sim_card_index(sim_state(), device);

	if (!sim_knob_text(knob, text, sizeof(text)))
		return 0;
	while (*at) {
		char *end;
		uint64_t value = strtoull(at, &end, 0);

		if (end == at || *end != '@')
			return 0;
		at = end + 1;
		unsigned long gpu = strtoul(at, &end, 10);

		if (end == at)
			return 0;
		if (gpu == index)
			return value;
		at = *end == ',' ? end + 1 : end;
	}
	return 0;
}

uint64_t nvml_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* --- start and end ------------------------------------------------------------------------------------------------ */

#define NO_ATTACH 2

/* There are no GPUs until the process has requested them (driver 580). */
static bool attached;

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	wait_while_hung();
	if (sim_knob_number("version_skew", 0))
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	if (!sim_state())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	__atomic_add_fetch(&references, 1, __ATOMIC_ACQ_REL);
	if (!(flags & NO_ATTACH))
		__atomic_store_n(&attached, true, __ATOMIC_RELEASE);
	return NVML_SUCCESS;
}

bool nvml_attached(void)
{
	return __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	ENTER();
	__atomic_sub_fetch(&references, 1, __ATOMIC_ACQ_REL);
	return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
		[NVML_SUCCESS] = "Success",
		[NVML_ERROR_UNINITIALIZED] = "Uninitialized",
		[NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
		[NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
		[NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
		[NVML_ERROR_NOT_FOUND] = "Not Found",
		[NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
		[NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
		[NVML_ERROR_TIMEOUT] = "Timeout",
		[NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
		[NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
		[NVML_ERROR_IN_USE] = "In use by another client",
		[NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
		[NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
		[NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "The provided version is invalid/unsupported",
	};

	if ((unsigned)result < sizeof(texts) / sizeof(texts[0]) && texts[result])
		return texts[result];
	return "Unknown Error";
}

/* --- the system --------------------------------------------------------------------------------------------------- */

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned bytes)
{
	char text[80];

	ENTER();
	if (!sim_knob_text("driver_version", text, sizeof(text)))
		snprintf(text, sizeof(text), SIM_DRIVER_VERSION);
	return nvml_text(version, bytes, text);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned bytes)
{
	ENTER();
	return nvml_text(version, bytes, "13." SIM_DRIVER_VERSION);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	ENTER();
	WANT(version);
	*version = (int)sim_knob_number("cuda_version", 13000);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned bytes)
{
	char path[40], text[256] = "";

	ENTER();
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "re");

	if (!file)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(text, 1, sizeof(text) - 1, file);

	fclose(file);
	text[n] = 0; /* up to the end of the first argument */
	return nvml_text(name, bytes, text);
}
