/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry of cards in MIG mode. A card has 8 memory slices and 7 compute slices; an instance takes a run of memory
 * slices, which may begin only where its profile allows, and instances never overlap.
 *
 * A destroyed instance leaves its place in the node's file for the next one. Its UUID follows from the card and its
 * NVML number, and that number from its position, so that the same cut has the same UUIDs again, as with the real
 * driver.
 */
#include "simgpu/node/mig.h"
#include "simgpu/node/place.h"

#include <ctype.h>
#include <string.h>

struct cut_use {
	uint32_t taken;   /* memory slices, one bit each */
	uint32_t compute; /* slices */
	uint32_t media;   /* instances with media extensions */
};

static uint32_t run(const struct sim_model *cut, unsigned slice)
{
	return ((1u << cut->mig_size) - 1) << slice;
}

static void take(struct cut_use *use, const struct sim_model *cut, unsigned slice)
{
	use->taken |= run(cut, slice);
	use->compute += cut->mig_slices;
	use->media += cut->mig_media;
}

static uint32_t places(const struct cut_use *use, const struct sim_model *cut)
{
	uint32_t found = 0;

	if (use->compute + cut->mig_slices > SIM_MIG_COMPUTE || (cut->mig_media && use->media))
		return 0;
	for (unsigned slice = 0; slice + cut->mig_size <= SIM_MIG_SLICES; slice++)
		if ((cut->mig_starts >> slice & 1) && !(use->taken & run(cut, slice)))
			found |= 1u << slice;
	return found;
}

struct sim_gpu *mig_instance(struct sim_state *state, const struct sim_gpu *card, unsigned n)
{
	int32_t index = (int32_t)sim_gpu_index(state, card);

	for (unsigned i = state->card_count; i < state->gpu_count; i++)
		if (state->gpu[i].live && state->gpu[i].card == index && n-- == 0)
			return &state->gpu[i];
	return NULL;
}

static struct cut_use used(struct sim_state *state, const struct sim_gpu *card)
{
	struct cut_use use = { 0 };
	const struct sim_gpu *instance;

	for (unsigned i = 0; (instance = mig_instance(state, card, i)); i++)
		take(&use, sim_model_at(instance->model), instance->slice);
	return use;
}

uint32_t mig_free(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut)
{
	struct cut_use use = used(state, card);

	return places(&use, cut);
}

unsigned mig_room(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut)
{
	struct cut_use use = used(state, card);
	unsigned room = 0;

	/* From the front: the maximum for runs of one size. */
	for (uint32_t open; (open = places(&use, cut)); room++)
		take(&use, cut, (unsigned)__builtin_ctz(open));
	return room;
}

int mig_best(struct sim_state *state, const struct sim_gpu *card, const struct sim_model *cut)
{
	struct cut_use use = used(state, card);
	uint32_t open = places(&use, cut);
	int best = -1, most = -1;

	for (unsigned slice = 0; slice < SIM_MIG_SLICES; slice++) {
		struct cut_use after = use;
		const struct sim_model *other;
		int left = 0;

		if (!(open >> slice & 1))
			continue;
		take(&after, cut, slice);
		for (unsigned i = 0; (other = sim_model_cut(sim_model_at(card->model), i)); i++)
			left += __builtin_popcount(places(&after, other));
		if (left >= most) {
			most = left;
			best = (int)slice;
		}
	}
	return best;
}

/* NVML's number of an instance: 0 is all of the card, 1 and 2 its halves, 3 to 6 quarters, from 7 on eighths. */
static uint32_t number_of(const struct sim_model *cut, unsigned slice)
{
	return SIM_MIG_SLICES / cut->mig_size - 1 + slice / cut->mig_size;
}

struct sim_gpu *mig_make(struct sim_state *state, struct sim_gpu *card, const struct sim_model *cut, unsigned slice)
{
	struct sim_gpu *instance = NULL;

	for (unsigned i = state->card_count; i < state->gpu_count && !instance; i++)
		if (!state->gpu[i].live)
			instance = &state->gpu[i];
	if (!instance)
		instance = sim_gpu_add(state, cut);
	if (!instance)
		return NULL;
	sim_lock(instance);
	struct sim_schedule *draft = sim_edit_begin(instance);

	memset(draft, 0, sizeof(*draft));
	draft->now_ns = sim_now_ns();
	sim_edit_end(instance);
	instance->model = sim_model_index(cut);
	instance->card = (int32_t)sim_gpu_index(state, card);
	instance->numa_node = card->numa_node;
	instance->pci_bus = card->pci_bus;
	instance->gpu_instance = number_of(cut, slice);
	instance->slice = slice;
	instance->compute = 0;
	instance->generation++;
	memcpy(instance->uuid, card->uuid, sizeof(instance->uuid));
	for (unsigned i = 0; i < 4; i++)
		instance->uuid[i] ^= (uint8_t)(0x5a + (instance->gpu_instance << i));
	__atomic_store_n(&instance->live, 1, __ATOMIC_RELEASE);
	sim_unlock(instance);
	return instance;
}

bool mig_destroy(struct sim_state *state, struct sim_gpu *instance)
{
	sim_lock(instance);
	sim_reap(state, instance, true);
	bool idle = !sim_in_use(state, instance);

	if (idle) {
		instance->compute = 0;
		__atomic_store_n(&instance->live, 0, __ATOMIC_RELEASE);
	}
	sim_unlock(instance);
	return idle;
}

/* --- the cut named in SLUICE_SIM_GPUS ----------------------------------------------------------------------------- */

/* Finds places for all of them, the first ones first; false when there is no way. */
static bool arrange(const struct sim_model *const *cut, unsigned count, struct cut_use use, unsigned *ret_slice)
{
	if (count == 0)
		return true;
	for (uint32_t open = places(&use, *cut); open; open &= open - 1) {
		struct cut_use after = use;

		*ret_slice = (unsigned)__builtin_ctz(open);
		take(&after, *cut, *ret_slice);
		if (arrange(cut + 1, count - 1, after, ret_slice + 1))
			return true;
	}
	return false;
}

/* A plus followed by a digit separates two profiles; otherwise it belongs to the name, as in 1g.10gb+me. */
static const char *name_end(const char *at, const char *end)
{
	while (at < end && !(*at == '+' && at + 1 < end && isdigit((unsigned char)at[1])))
		at++;
	return at;
}

int mig_cut(struct sim_state *state, unsigned card, const char *list, const char *end)
{
	const struct sim_model *model = sim_model_at(state->gpu[card].model), *cut[SIM_MIG_COMPUTE];
	unsigned slice[SIM_MIG_COMPUTE], count = 0;

	for (const char *at = list, *stop;; at = stop + 1) {
		stop = name_end(at, end);
		if (count == SIM_MIG_COMPUTE)
			return -1;
		cut[count] = sim_model_instance(model, at, (unsigned)(stop - at));
		if (!cut[count])
			return -1;
		count++;
		if (stop == end)
			break;
	}
	if (!arrange(cut, count, (struct cut_use){ 0 }, slice))
		return -1;
	for (unsigned i = 0; i < count; i++) {
		struct sim_gpu *instance = mig_make(state, &state->gpu[card], cut[i], slice[i]);

		if (!instance)
			return -1;
		instance->compute = 1;
	}
	state->gpu[card].mig_mode = state->gpu[card].mig_pending = 1;
	return 0;
}
