/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: compute instances; see mig_change.c. One fills its GPU instance. */
#include <stdio.h>

#include "simgpu/nvml/nvml.h"

struct compute_profile_info {
	unsigned id, slices, most, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
};

struct compute_profile_info_v2 {
	unsigned version, id, slices, most, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	char name[96];
};

struct compute_info {
	nvmlDevice_t device;
	nvmlGpuInstance_t instance;
	unsigned id, profile;
	struct placement placement;
};

_Static_assert(sizeof(struct compute_profile_info_v2) == 0x88, "nvmlComputeInstanceProfileInfo_v2");

enum { ENGINE_SHARED };

/* NVML_COMPUTE_INSTANCE_PROFILE_*; the ids are the same numbers. */
static unsigned compute_profile(const struct sim_gpu *instance)
{
	const struct sim_model *m = sim_model_at(instance->model);

	return m->mig_slices == 7 ? 4 : m->mig_slices - 1;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned profile,
                                                                   unsigned engine, struct compute_profile_info *info)
{
	ENTER_INSTANCE(instance);
	WANT(info && engine == ENGINE_SHARED);
	const struct sim_model *m = nvml_model(instance);

	if (profile != compute_profile(instance))
		return NVML_ERROR_NOT_SUPPORTED;
	*info = (struct compute_profile_info){ .id = profile,
		                               .slices = m->mig_slices,
		                               .most = 1,
		                               .multiprocessors = m->sm_count,
		                               .copy_engines = m->mig_slices };
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned profile,
                                                                    unsigned engine,
                                                                    struct compute_profile_info_v2 *info)
{
	struct compute_profile_info p;

	WANT(info);
	if (info->version != (sizeof(*info) | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t r = nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, engine, &p);

	if (r != NVML_SUCCESS)
		return r;
	*info = (struct compute_profile_info_v2){ .version = info->version,
		                                  .id = p.id,
		                                  .slices = p.slices,
		                                  .most = p.most,
		                                  .multiprocessors = p.multiprocessors,
		                                  .copy_engines = p.copy_engines };
	snprintf(info->name, sizeof(info->name), "MIG %s", nvml_model(instance)->mig_profile);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id,
                                                                         unsigned *count)
{
	ENTER_INSTANCE(instance);
	WANT(count && id == compute_profile(instance));
	*count = !instance->compute;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id,
                                                           nvmlComputeInstance_t *compute)
{
	struct sim_state *state = sim_state();

	ENTER_INSTANCE(instance);
	CHANGE(instance);
	WANT(compute && id == compute_profile(instance));
	sim_mutex_lock(&state->geometry);
	bool room = !instance->compute;

	instance->compute = 1;
	pthread_mutex_unlock(&state->geometry);
	if (!room)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	*compute = instance;
	return NVML_SUCCESS;
}

static nvmlReturn_t enter_compute(nvmlComputeInstance_t compute)
{
	ENTER_INSTANCE(compute);
	WANT(compute->compute);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
	struct sim_state *state = sim_state();
	nvmlReturn_t r = enter_compute(compute);

	if (r != NVML_SUCCESS)
		return r;
	CHANGE(compute);
	sim_mutex_lock(&state->geometry);
	sim_lock(compute);
	sim_reap(state, compute, true);
	r = sim_in_use(state, compute) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
	if (r == NVML_SUCCESS) {
		compute->compute = 0;
		compute->generation++; /* handles from before become stale */
	}
	sim_unlock(compute);
	pthread_mutex_unlock(&state->geometry);
	return r;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id,
                                                         nvmlComputeInstance_t *list, unsigned *count)
{
	ENTER_INSTANCE(instance);
	WANT(list && count);
	*count = instance->compute && id == compute_profile(instance);
	if (*count)
		*list = instance;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                            nvmlComputeInstance_t *compute)
{
	ENTER_INSTANCE(instance);
	WANT(compute);
	if (id != 0 || !instance->compute)
		return NVML_ERROR_NOT_FOUND;
	*compute = instance;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, struct compute_info *info)
{
	nvmlReturn_t r = enter_compute(compute);

	if (r != NVML_SUCCESS)
		return r;
	WANT(info);
	*info = (struct compute_info){ .device = nvml_card_of(compute),
		                       .instance = compute,
		                       .profile = compute_profile(compute),
		                       .placement = { 0, nvml_model(compute)->mig_slices } };
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, struct compute_info *info)
{
	return nvmlComputeInstanceGetInfo_v2(compute, info);
}
