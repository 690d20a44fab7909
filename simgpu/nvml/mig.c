/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated management library: the MIG devices of cards that are cut; see mig_change.c for cutting them. */
#include "simgpu/nvml/nvml.h"

struct attributes {
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mib;
};

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	ENTER_DEVICE(device);
	WANT(current && pending);
	if (!nvml_model(device)->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*current = device->mig_mode;
	*pending = device->mig_pending;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
	ENTER_DEVICE(device);
	WANT(count);
	if (!nvml_model(device)->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*count = 7;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
	ENTER_DEVICE(device);
	WANT(mig && index < 7);
	if (!nvml_model(device)->mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*mig = sim_instance(sim_state(), device, index);
	return *mig ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
	ENTER_DEVICE(device);
	WANT(is);
	*is = device->card >= 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	ENTER_DEVICE(mig);
	WANT(device && mig->card >= 0);
	*device = &sim_state()->gpu[mig->card];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id)
{
	ENTER_DEVICE(mig);
	WANT(id && mig->card >= 0);
	*id = mig->gpu_instance;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id)
{
	ENTER_DEVICE(mig);
	WANT(id && mig->card >= 0);
	*id = 0; /* one compute instance fills its GPU instance */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, struct attributes *attributes)
{
	ENTER_DEVICE(mig);
	WANT(attributes && mig->card >= 0);
	const struct sim_model *m = nvml_model(mig);

	*attributes = (struct attributes){ .multiprocessors = m->sm_count,
		                           .copy_engines = m->mig_slices,
		                           .gpu_slices = m->mig_slices,
		                           .compute_slices = m->mig_slices,
		                           .memory_mib = m->memory_bytes >> 20 };
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t mig, struct attributes *attributes)
{
	return nvmlDeviceGetAttributes_v2(mig, attributes);
}
