/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated management library: cutting cards into MIG instances. A GPU instance has memory and slices, a compute
 * instance makes it usable; here one compute instance fills its GPU instance. Changing anything is root's, as with the
 * real driver, and refused while somebody has a context there. From Hopper on the mode changes at once; before, it is
 * pending until the card's next reset (the knob gpu_lost, set and taken back).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "interpose/sim/mig.h"
#include "interpose/sim/nvml.h"

struct placement {
	unsigned start, size;
};

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

_Static_assert(sizeof(struct profile_info_v2) == 0x98, "nvmlGpuInstanceProfileInfo_v2");
_Static_assert(sizeof(struct compute_profile_info_v2) == 0x88, "nvmlComputeInstanceProfileInfo_v2");

enum { ENGINE_SHARED };

/* In every call that changes something, and every call about a card's geometry. */
#define CHANGE(device)                                                                                                 \
	do {                                                                                                           \
		nvmlReturn_t r_ = enter_change(device, __func__);                                                      \
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

static nvmlReturn_t enter_change(nvmlDevice_t device, const char *function)
{
	ENTER_DEVICE(device);
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	return (nvmlReturn_t)sim_enter_call(function); /* the knob `fail` */
}

static struct sim_gpu *card_of(const struct sim_gpu *instance)
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

/* Has anybody a context on the card or on one of its instances? */
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

/* All that the profile knows of, taken or not; without a list their number. */
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
			list[found++] = instance; /* room for all that can be is the caller's part */
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
	*info = (struct instance_info){ .device = card_of(instance),
		                        .id = instance->gpu_instance,
		                        .profile = nvml_model(instance)->mig_profile_id,
		                        .placement = { instance->slice, nvml_model(instance)->mig_size } };
	return NVML_SUCCESS;
}

/* --- compute instances -------------------------------------------------------------------------------------------- */

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
		compute->generation++; /* who looked at it before has it no more */
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
	*info = (struct compute_info){ .device = card_of(compute),
		                       .instance = compute,
		                       .profile = compute_profile(compute),
		                       .placement = { 0, nvml_model(compute)->mig_slices } };
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, struct compute_info *info)
{
	return nvmlComputeInstanceGetInfo_v2(compute, info);
}
