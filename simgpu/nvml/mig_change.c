/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated management library: cutting cards into MIG instances. A GPU instance has memory and slices, a compute
 * instance makes it usable; here one compute instance fills its GPU instance. Only root may change anything, as with
 * the real driver, and not while a client has a context there. From Hopper on the mode changes at once; before, it is
 * pending until the card's next reset (the knob gpu_lost, set and removed).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "simgpu/nvml/nvml.h"

struct profile_info {
	unsigned id, p2p, slices, most, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
};

struct profile_info_v2 {
	unsigned version, id, p2p, slices, most, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
	char name[96];
};

struct instance_info {
	nvmlDevice_t device;
	unsigned id, profile;
	struct placement placement;
};

_Static_assert(sizeof(struct profile_info_v2) == 0x98, "nvmlGpuInstanceProfileInfo_v2");

nvmlReturn_t nvml_enter_change(nvmlDevice_t device, const char *function)
{
	ENTER_DEVICE(device);
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	return (nvmlReturn_t)sim_enter_call(function); /* the knob `fail` */
}

struct sim_gpu *nvml_card_of(const struct sim_gpu *instance)
{
	return &sim_state()->gpu[instance->card];
}

static const struct sim_model *by_id(nvmlDevice_t card, unsigned id)
{
	const struct sim_model *cut;

	for (unsigned i = 0; (cut = sim_model_cut(nvml_model(card), i)); i++)
		if (cut->mig_profile_id == id)
			return cut;
	return NULL;
}

static const struct sim_model *by_index(nvmlDevice_t card, unsigned index)
{
	const struct sim_model *cut;

	for (unsigned i = 0; (cut = sim_model_cut(nvml_model(card), i)); i++)
		if (cut->mig_profile_index == index)
			return cut;
	return NULL;
}

/* --- the mode ----------------------------------------------------------------------------------------------------- */

/* True if any client has a context on the card or on one of its instances. */
static bool card_in_use(nvmlDevice_t card)
{
	struct sim_state *state = sim_state();
	struct sim_gpu *gpu = card;
	bool in_use = false;

	for (unsigned i = 0; gpu && !in_use; gpu = mig_instance(state, card, i++)) {
		sim_lock(gpu);
		sim_reap(state, gpu, true);
		in_use = sim_in_use(state, gpu);
		sim_unlock(gpu);
	}
	return in_use;
}

NVML_API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
	struct sim_state *state = sim_state();

	ENTER_CARD(device);
	CHANGE(device);
	WANT(activation && mode <= 1);
	*activation = NVML_SUCCESS;
	sim_mutex_lock(&state->geometry);
	nvmlReturn_t r = mode == 0 && mig_instance(state, device, 0) ? NVML_ERROR_IN_USE : NVML_SUCCESS;

	if (r == NVML_SUCCESS) {
		device->mig_pending = mode;
		if (device->mig_mode == mode)
			;
		else if (card_in_use(device))
			*activation = NVML_ERROR_IN_USE;
		else if (nvml_model(device)->cc_major < 9)
			*activation = NVML_ERROR_RESET_REQUIRED;
		else
			device->mig_mode = mode;
	}
	pthread_mutex_unlock(&state->geometry);
	return r;
}

/* --- profiles of GPU instances ------------------------------------------------------------------------------------ */

static struct profile_info describe(const struct sim_model *cut)
{
	return (struct profile_info){ .id = cut->mig_profile_id,
		                      .slices = cut->mig_slices,
		                      .most = cut->mig_most,
		                      .multiprocessors = cut->sm_count,
		                      .copy_engines = cut->mig_slices,
		                      .jpeg = cut->mig_media,
		                      .ofa = cut->mig_media,
		                      .memory_mib = cut->memory_bytes >> 20 };
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile,
                                                          struct profile_info *info)
{
	ENTER_CARD(device);
	WANT(info);
	const struct sim_model *cut = by_index(device, profile);

	if (!cut)
		return NVML_ERROR_NOT_SUPPORTED;
	*info = describe(cut);
	return NVML_SUCCESS;
}

static nvmlReturn_t profile_v2(const struct sim_model *cut, struct profile_info_v2 *info)
{
	if (info->version != (sizeof(*info) | 2u << 24))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!cut)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct profile_info p = describe(cut);

	*info = (struct profile_info_v2){ .version = info->version,
		                          .id = p.id,
		                          .slices = p.slices,
		                          .most = p.most,
		                          .multiprocessors = p.multiprocessors,
		                          .copy_engines = p.copy_engines,
		                          .jpeg = p.jpeg,
		                          .ofa = p.ofa,
		                          .memory_mib = p.memory_mib };
	snprintf(info->name, sizeof(info->name), "MIG %s", cut->mig_profile);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile,
                                                           struct profile_info_v2 *info)
{
	ENTER_CARD(device);
	WANT(info);
	return profile_v2(by_index(device, profile), info);
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id,
                                                               struct profile_info_v2 *info)
{
	ENTER_CARD(device);
	WANT(info);
	return profile_v2(by_id(device, id), info);
}

/* All instances of the profile, used or not; without a list their number. */
NVML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                                    struct placement *list, unsigned *count)
{
	ENTER_CARD(device);
	WANT(count);
	const struct sim_model *cut = by_id(device, id);

	if (!cut || !device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned room = *count, found = 0;

	for (unsigned slice = 0; slice < SIM_MIG_SLICES; slice++) {
		if (!(cut->mig_starts >> slice & 1))
			continue;
		if (list && found < room)
			list[found] = (struct placement){ slice, cut->mig_size };
		found++;
	}
	*count = found;
	return list && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id,
                                                                 struct placement *list, unsigned *count)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, list, count);
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
	struct sim_state *state = sim_state();

	ENTER_CARD(device);
	WANT(count);
	const struct sim_model *cut = by_id(device, id);

	if (!cut || !device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	sim_mutex_lock(&state->geometry);
	*count = mig_room(state, device, cut);
	pthread_mutex_unlock(&state->geometry);
	return NVML_SUCCESS;
}

/* --- GPU instances ------------------------------------------------------------------------------------------------ */

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, const struct placement *where, nvmlGpuInstance_t *instance)
{
	struct sim_state *state = sim_state();
	const struct sim_model *cut = by_id(device, id);

	WANT(instance && (!where || where->start < SIM_MIG_SLICES));
	if (!device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	WANT(cut && (!where || where->size == cut->mig_size));
	sim_mutex_lock(&state->geometry);
	int slice = where ? (int)where->start : mig_best(state, device, cut);
	bool fits = slice >= 0 && (mig_free(state, device, cut) >> slice & 1);
	struct sim_gpu *made = fits ? mig_make(state, device, cut, (unsigned)slice) : NULL;

	pthread_mutex_unlock(&state->geometry);
	if (!made)
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	*instance = made;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
	ENTER_CARD(device);
	CHANGE(device);
	return create(device, id, NULL, instance);
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                               const struct placement *where,
                                                               nvmlGpuInstance_t *instance)
{
	ENTER_CARD(device);
	CHANGE(device);
	WANT(where);
	return create(device, id, where, instance);
}

NVML_API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
	struct sim_state *state = sim_state();

	ENTER_INSTANCE(instance);
	CHANGE(instance);
	sim_mutex_lock(&state->geometry);
	bool gone = !instance->compute && mig_destroy(state, instance);

	pthread_mutex_unlock(&state->geometry);
	return gone ? NVML_SUCCESS : NVML_ERROR_IN_USE;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *list,
                                                unsigned *count)
{
	struct sim_gpu *instance;
	unsigned found = 0;

	ENTER_CARD(device);
	WANT(list && count && by_id(device, id));
	if (!device->mig_mode)
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; (instance = mig_instance(sim_state(), device, i)); i++)
		if (nvml_model(instance)->mig_profile_id == id)
			list[found++] = instance; /* the caller provides room for the maximum */
	*count = found;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *ret_instance)
{
	struct sim_gpu *instance;

	ENTER_CARD(device);
	WANT(ret_instance);
	for (unsigned i = 0; (instance = mig_instance(sim_state(), device, i)); i++)
		if (instance->gpu_instance == id) {
			*ret_instance = instance;
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, struct instance_info *info)
{
	ENTER_INSTANCE(instance);
	WANT(info);
	*info = (struct instance_info){ .device = nvml_card_of(instance),
		                        .id = instance->gpu_instance,
		                        .profile = nvml_model(instance)->mig_profile_id,
		                        .placement = { instance->slice, nvml_model(instance)->mig_size } };
	return NVML_SUCCESS;
}
