/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: processes on a device, and their use of it, in the driver's own terms. */
#include <stdlib.h>
#include <string.h>

#include "simgpu/kernel/cgroup.h"
#include "simgpu/node/place.h"
#include "simgpu/node/wall.h"
#include "simgpu/nvml/nvml.h"

struct memory_info {
	unsigned long long total_bytes, free_bytes, used_bytes;
};

struct memory_info_v2 {
	unsigned version;
	unsigned long long total_bytes, reserved_bytes, free_bytes, used_bytes;
};

struct process_info_v1 {
	unsigned pid;
	unsigned long long used_bytes;
};

struct process_info {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance, compute_instance;
};

struct utilization {
	unsigned gpu_percent, memory_percent;
};

struct process_sample {
	unsigned pid;
	unsigned long long at_us;
	unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
};

struct sample {
	unsigned long long at_us;
	union {
		double real;
		unsigned number;
		unsigned long long wide;
	} value;
};

static uint64_t used_bytes(nvmlDevice_t device)
{
	nvmlDevice_t instance;

	sim_lock(device);
	sim_reap(sim_state(), device, true);
	uint64_t used = sim_used_bytes(sim_state(), sim_gpu_index(sim_state(), device));

	sim_unlock(device);
	for (unsigned i = 0; (instance = sim_instance(sim_state(), device, i)); i++)
		used += used_bytes(instance);
	return used;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_info *memory)
{
	ENTER_DEVICE(device);
	WANT(memory);
	const struct sim_model *m = nvml_model(device);
	uint64_t used = used_bytes(device);

	*memory = (struct memory_info){ .total_bytes = m->memory_bytes + m->reserved_bytes,
		                        .free_bytes = m->memory_bytes - used,
		                        .used_bytes = used + m->reserved_bytes };
	return NVML_SUCCESS;
}

/* Memory as a process with a cgroup limit sees it; MIG handles report the whole instance. */
static void within_wall(nvmlDevice_t device, struct memory_info_v2 *memory)
{
	struct sim_state *state = sim_state();
	unsigned index = sim_gpu_index(state, device);
	uint64_t cgroup[SIM_CGROUPS];

	if (device->card >= 0)
		return;
	sim_cgroups(cgroup);
	sim_lock(device);
	uint64_t total = sim_wall_total(state, index, cgroup), room = sim_wall_room(state, index, cgroup);

	sim_unlock(device);
	if (total == SIM_NO_LIMIT)
		return;
	memory->total_bytes = total < memory->total_bytes ? total : memory->total_bytes;
	memory->free_bytes = room < memory->free_bytes ? room : memory->free_bytes;
	memory->used_bytes = memory->total_bytes > memory->free_bytes ? memory->total_bytes - memory->free_bytes : 0;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_info_v2 *memory)
{
	ENTER_DEVICE(device);
	WANT(memory);
	if (memory->version != (sizeof(*memory) | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct sim_model *m = nvml_model(device);

	memory->used_bytes = used_bytes(device);
	memory->reserved_bytes = m->reserved_bytes;
	memory->total_bytes = m->memory_bytes + m->reserved_bytes;
	memory->free_bytes = m->memory_bytes - memory->used_bytes;
	within_wall(device, memory);
	return NVML_SUCCESS;
}

/* The processes with a context here: from the `found`-th on, up to `room` of them; returns the number found so far. */
static unsigned add_processes(nvmlDevice_t device, struct process_info *list, unsigned room, unsigned found)
{
	struct sim_state *state = sim_state();
	unsigned index = sim_gpu_index(state, device);
	unsigned gi = device->card < 0 ? UINT32_MAX : device->gpu_instance, ci = device->card < 0 ? UINT32_MAX : 0;

	sim_lock(device);
	sim_reap(state, device, true);
	for (unsigned i = 0; i < SIM_CLIENTS; i++) {
		const struct sim_client *client = &state->client[i];

		if (!client->in_use || client->used_bytes[index] == 0)
			continue;
		uint32_t pid = sim_client_pid(state, i);

		if (pid == 0)
			continue; /* in a container whose pids the caller cannot see */
		if (found < room)
			list[found] = (struct process_info){ pid, client->used_bytes[index], gi, ci };
		found++;
	}
	sim_unlock(device);
	return found;
}

static unsigned list_processes(nvmlDevice_t device, struct process_info *list, unsigned room)
{
	unsigned found = add_processes(device, list, room, 0);
	nvmlDevice_t instance;

	for (unsigned i = 0; (instance = sim_instance(sim_state(), device, i)); i++)
		found = add_processes(instance, list, room, found);
	return found;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                              struct process_info *list)
{
	ENTER_DEVICE(device);
	WANT(count && (list || *count == 0));
	unsigned room = *count;

	*count = list_processes(device, list, room);
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                              struct process_info *list)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                           struct process_info_v1 *list)
{
	struct process_info wide[SIM_CLIENTS];

	ENTER_DEVICE(device);
	WANT(count && (list || *count == 0));
	unsigned room = *count;

	*count = list_processes(device, wide, SIM_CLIENTS);
	for (unsigned i = 0; i < *count && i < room; i++)
		list[i] = (struct process_info_v1){ wide[i].pid, wide[i].used_bytes };
	return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count)
{
	ENTER_DEVICE(device);
	WANT(count);
	*count = 0;
	return NVML_SUCCESS;
}

/* One that a test names: `graphics` in the control file is PID:MIB@GPU. */
NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               struct process_info *list)
{
	char text[64], *rest = text;
	unsigned long pid, index;
	unsigned long long mib;

	ENTER_DEVICE(device);
	WANT(count && (list || *count == 0));
	unsigned room = *count;

	*count = 0;
	if (!sim_knob_text("graphics", text, sizeof(text)))
		return NVML_SUCCESS;
	pid = strtoul(rest, &rest, 10);
	mib = *rest == ':' ? strtoull(rest + 1, &rest, 10) : 0;
	index = *rest == '@' ? strtoul(rest + 1, NULL, 10) : SIM_GPUS;
	if (index != sim_gpu_index(sim_state(), device))
		return NVML_SUCCESS;
	*count = 1;
	if (room == 0)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	list[0] = (struct process_info){ (unsigned)pid, mib << 20, UINT32_MAX, UINT32_MAX };
	return NVML_SUCCESS;
}

/* Other forms of it list none, and MPS is not modelled. */
#define NO_PROCESSES(symbol)                                                                                           \
	NVML_API nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, void *list)                                 \
	{                                                                                                              \
		(void)list;                                                                                            \
		return none(device, count);                                                                            \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *rates)
{
	ENTER_DEVICE(device);
	WANT(rates);
	if (device->card >= 0 || device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED; /* not counted under MIG */
	rates->gpu_percent = nvml_busy_percent(device, -1);
	rates->memory_percent = rates->gpu_percent / 2; /* a kernel that half saturates the memory */
	return NVML_SUCCESS;
}

/* One sample for each process that used the device in the last second, if that second ended after `since_us`. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct process_sample *samples,
                                                      unsigned *count, unsigned long long since_us)
{
	struct sim_state *state = sim_state();
	uint64_t now_us = nvml_now_us();
	unsigned found = 0;

	ENTER_DEVICE(device);
	WANT(count);
	unsigned room = samples ? *count : 0;

	for (unsigned i = 0; i < SIM_CLIENTS && now_us > since_us; i++) {
		unsigned percent = state->client[i].in_use ? nvml_busy_percent(device, (int)i) : 0;
		uint32_t pid = percent ? sim_client_pid(state, i) : 0;

		if (pid == 0)
			continue;
		if (found < room)
			samples[found] = (struct process_sample){
				.pid = pid, .at_us = now_us, .sm_percent = percent, .memory_percent = percent / 2
			};
		found++;
	}
	*count = found;
	return found == 0 ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The utilisation of each completed tenth of a second, oldest first. */
NVML_API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long since_us,
                                           unsigned *value_type, unsigned *count, struct sample *samples)
{
	enum { POWER, GPU_UTILIZATION, UNSIGNED_INT = 1 };
	uint64_t now_us = nvml_now_us(), bucket_us = SIM_BUCKET_NS / 1000;
	unsigned found = 0;

	ENTER_DEVICE(device);
	WANT(value_type && count);
	if (type != GPU_UTILIZATION)
		return NVML_ERROR_NOT_SUPPORTED;
	sim_lock(device);
	struct sim_schedule s = *sim_advance(sim_state(), device);

	sim_unlock(device);
	uint64_t newest = s.now_ns / SIM_BUCKET_NS, since_bucket_us = s.now_ns % SIM_BUCKET_NS / 1000;

	*value_type = UNSIGNED_INT;
	for (unsigned back = SIM_BUCKETS - 1; back >= 1; back--) {
		uint64_t end_us = now_us - since_bucket_us - (back - 1) * bucket_us;

		if (back > newest || end_us <= since_us)
			continue;
		if (samples && found < *count)
			samples[found] = (struct sample){
				.at_us = end_us,
				.value.number = (unsigned)((uint64_t)s.bucket_ns[(newest - back) % SIM_BUCKETS] * 100 /
				                           SIM_BUCKET_NS)
			};
		found++;
	}
	if (samples && found > *count)
		found = *count;
	*count = found;
	return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	ENTER_DEVICE(device);
	WANT(percent && period_us);
	*percent = 0;
	*period_us = 167000;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return idle_engine(device, percent, period_us);
}

NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
	return idle_engine(device, percent, period_us);
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode)
{
	ENTER_DEVICE(device);
	WANT(mode);
	*mode = 0;
	return NVML_SUCCESS;
}
