/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: memory limits by cgroup, which only root sets and any caller reads. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "simgpu/kernel/cgroup.h"
#include "simgpu/node/wall.h"
#include "simgpu/nvml/nvml.h"

struct set_limits {
	const char *directory;
	unsigned long long soft_bytes, hard_bytes;
};

struct get_limits {
	const char *directory;
	unsigned long long soft_bytes, hard_bytes, used_bytes;
};

/* The cgroup's path, without a trailing slash. */
static nvmlReturn_t find(nvmlDevice_t device, const char *directory, char ret_path[4096], uint64_t *ret_cgroup)
{
	WANT(directory && directory[0] == '/');
	if (sim_wall_book() == SIM_WALL_OFF || device->card >= 0 || device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	size_t length = strlen(directory);

	while (length > 1 && directory[length - 1] == '/')
		length--;
	WANT(length < 4096);
	memcpy(ret_path, directory, length);
	ret_path[length] = 0;
	*ret_cgroup = sim_cgroup_at(ret_path);
	if (*ret_cgroup)
		return NVML_SUCCESS;
	return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const struct set_limits *limits)
{
	struct sim_state *state = sim_state();
	uint64_t cgroup;
	char path[4096];

	ENTER_DEVICE(device);
	WANT(limits);
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	nvmlReturn_t r = find(device, limits->directory, path, &cgroup);

	if (r != NVML_SUCCESS)
		return r;
	WANT(limits->soft_bytes <= limits->hard_bytes);
	r = (nvmlReturn_t)sim_enter_call(__func__); /* the knob `fail` */
	if (r != NVML_SUCCESS)
		return r;
	sim_mutex_lock(&state->geometry); /* all rows of the book, for any GPU */
	sim_lock(device);
	bool written = sim_wall_set(state, sim_gpu_index(state, device), path, limits->soft_bytes, limits->hard_bytes);

	sim_unlock(device);
	pthread_mutex_unlock(&state->geometry);
	return written ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct get_limits *limits)
{
	struct sim_state *state = sim_state();
	uint64_t cgroup;
	char path[4096];

	ENTER_DEVICE(device);
	WANT(limits);
	nvmlReturn_t r = find(device, limits->directory, path, &cgroup);

	if (r != NVML_SUCCESS)
		return r;
	sim_lock(device);
	sim_reap(state, device, true);
	struct sim_wall wall = sim_wall_get(state, sim_gpu_index(state, device), cgroup);

	limits->soft_bytes = wall.soft_bytes;
	limits->hard_bytes = wall.hard_bytes;
	limits->used_bytes = sim_wall_used(state, sim_gpu_index(state, device), cgroup);
	sim_unlock(device);
	return NVML_SUCCESS;
}
