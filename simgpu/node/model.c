/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of models. Memory is CUDA's total; NVML's total also includes the driver's reserve. The context overhead is
 * the memory of a process that has only created a context on such a card.
 */
#include "simgpu/node/model.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static const struct sim_model models[] = {
	{
		.key = "h200-141gb",
		.name = "NVIDIA H200",
		.memory_bytes = 143166 * MIB,
		.reserved_bytes = 605 * MIB,
		.context_bytes = 528 * MIB,
		.bandwidth_bytes_per_us = 4800000,
		.sm_count = 132,
		.cc_major = 9,
		.cc_minor = 0,
		.sm_clock_mhz = 1980,
		.memory_clock_mhz = 3201,
		.bus_width_bits = 6144,
		.l2_bytes = 62914560,
		.shared_per_sm_bytes = 233472,
		.shared_optin_bytes = 232448,
		.threads_per_sm = 2048,
		.blocks_per_sm = 32,
		.power_limit_mw = 700000,
		.pci_device_id = 0x233510de,
		.mig = true,
		.ecc = true,
		.nvlink = true,
	},
	{
		.key = "h100-80gb",
		.name = "NVIDIA H100 80GB HBM3",
		.memory_bytes = 81008 * MIB,
		.reserved_bytes = 551 * MIB,
		.context_bytes = 520 * MIB,
		.bandwidth_bytes_per_us = 3350000,
		.sm_count = 132,
		.cc_major = 9,
		.cc_minor = 0,
		.sm_clock_mhz = 1980,
		.memory_clock_mhz = 2619,
		.bus_width_bits = 5120,
		.l2_bytes = 52428800,
		.shared_per_sm_bytes = 233472,
		.shared_optin_bytes = 232448,
		.threads_per_sm = 2048,
		.blocks_per_sm = 32,
		.power_limit_mw = 700000,
		.pci_device_id = 0x233010de,
		.mig = true,
		.ecc = true,
		.nvlink = true,
	},
	{
		.key = "a100-40gb",
		.name = "NVIDIA A100-SXM4-40GB",
		.memory_bytes = 40338 * MIB,
		.reserved_bytes = 622 * MIB,
		.context_bytes = 416 * MIB,
		.bandwidth_bytes_per_us = 1555000,
		.sm_count = 108,
		.cc_major = 8,
		.cc_minor = 0,
		.sm_clock_mhz = 1410,
		.memory_clock_mhz = 1215,
		.bus_width_bits = 5120,
		.l2_bytes = 41943040,
		.shared_per_sm_bytes = 167936,
		.shared_optin_bytes = 166912,
		.threads_per_sm = 2048,
		.blocks_per_sm = 32,
		.power_limit_mw = 400000,
		.pci_device_id = 0x20b010de,
		.mig = true,
		.ecc = true,
		.nvlink = true,
	},
	{
		.key = "v100-32gb",
		.name = "Tesla V100-SXM2-32GB",
		.memory_bytes = 32510 * MIB,
		.reserved_bytes = 258 * MIB,
		.context_bytes = 306 * MIB,
		.bandwidth_bytes_per_us = 900000,
		.sm_count = 80,
		.cc_major = 7,
		.cc_minor = 0,
		.sm_clock_mhz = 1530,
		.memory_clock_mhz = 877,
		.bus_width_bits = 4096,
		.l2_bytes = 6291456,
		.shared_per_sm_bytes = 98304,
		.shared_optin_bytes = 98304,
		.threads_per_sm = 2048,
		.blocks_per_sm = 32,
		.power_limit_mw = 300000,
		.pci_device_id = 0x1db510de,
		.ecc = true,
		.nvlink = true,
	},
	{
		.key = "rtx4090-24gb",
		.name = "NVIDIA GeForce RTX 4090",
		.memory_bytes = 24210 * MIB,
		.reserved_bytes = 354 * MIB,
		.context_bytes = 384 * MIB,
		.bandwidth_bytes_per_us = 1008000,
		.sm_count = 128,
		.cc_major = 8,
		.cc_minor = 9,
		.sm_clock_mhz = 2520,
		.memory_clock_mhz = 10501,
		.bus_width_bits = 384,
		.l2_bytes = 75497472,
		.shared_per_sm_bytes = 102400,
		.shared_optin_bytes = 101376,
		.threads_per_sm = 1536,
		.blocks_per_sm = 24,
		.power_limit_mw = 450000,
		.pci_device_id = 0x268410de,
	},
};

const struct sim_model *sim_model_find(const char *key, unsigned length)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (strlen(models[i].key) == length && memcmp(models[i].key, key, length) == 0)
			return &models[i];
	return NULL;
}

/* The places at which an instance may begin, by form: NVIDIA's MIG user guide, "MIG device names" and the placements
 * there. */
#define ONE 0x7f   /* 0 to 6, one memory slice */
#define WIDE 0x55  /* 0, 2, 4, 6: two memory slices for one compute slice */
#define TWO 0x15   /* 0, 2, 4 */
#define THREE 0x11 /* 0, 4 */
#define FOUR 0x01
#define SEVEN 0x01

/* The possible instances of a card. Memory is CUDA's total on such an instance. */
static const struct {
	const char *card, *profile;
	uint32_t slices, size, starts, most, id, index, sm_count;
	uint64_t memory_mib;
} cuts[] = {
	{ "a100-40gb", "1g.5gb", 1, 1, ONE, 7, 19, 0, 14, 4864 },
	{ "a100-40gb", "1g.5gb+me", 1, 1, ONE, 1, 20, 7, 14, 4864 },
	{ "a100-40gb", "1g.10gb", 1, 2, WIDE, 4, 15, 9, 14, 9984 },
	{ "a100-40gb", "2g.10gb", 2, 2, TWO, 3, 14, 1, 28, 9984 },
	{ "a100-40gb", "3g.20gb", 3, 4, THREE, 2, 9, 2, 42, 20096 },
	{ "a100-40gb", "4g.20gb", 4, 4, FOUR, 1, 5, 3, 56, 20096 },
	{ "a100-40gb", "7g.40gb", 7, 8, SEVEN, 1, 0, 4, 98, 40192 },
	{ "h100-80gb", "1g.10gb", 1, 1, ONE, 7, 19, 0, 16, 9984 },
	{ "h100-80gb", "1g.10gb+me", 1, 1, ONE, 1, 20, 7, 16, 9984 },
	{ "h100-80gb", "1g.20gb", 1, 2, WIDE, 4, 15, 9, 26, 20096 },
	{ "h100-80gb", "2g.20gb", 2, 2, TWO, 3, 14, 1, 32, 20096 },
	{ "h100-80gb", "3g.40gb", 3, 4, THREE, 2, 9, 2, 60, 40320 },
	{ "h100-80gb", "4g.40gb", 4, 4, FOUR, 1, 5, 3, 64, 40320 },
	{ "h100-80gb", "7g.80gb", 7, 8, SEVEN, 1, 0, 4, 132, 80896 },
	{ "h200-141gb", "1g.18gb", 1, 1, ONE, 7, 19, 0, 16, 16640 },
	{ "h200-141gb", "1g.18gb+me", 1, 1, ONE, 1, 20, 7, 16, 16640 },
	{ "h200-141gb", "1g.35gb", 1, 2, WIDE, 4, 15, 9, 26, 33280 },
	{ "h200-141gb", "2g.35gb", 2, 2, TWO, 3, 14, 1, 32, 33280 },
	{ "h200-141gb", "3g.71gb", 3, 4, THREE, 2, 9, 2, 60, 71168 },
	{ "h200-141gb", "4g.71gb", 4, 4, FOUR, 1, 5, 3, 64, 71168 },
	{ "h200-141gb", "7g.141gb", 7, 8, SEVEN, 1, 0, 4, 132, 143104 },
};

#define CARDS (sizeof(models) / sizeof(models[0]))
#define CUTS (sizeof(cuts) / sizeof(cuts[0]))

static struct sim_model instances[CUTS];
static char instance_names[CUTS][64];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_instances(void)
{
	for (size_t i = 0; i < CUTS; i++) {
		const struct sim_model *card = sim_model_find(cuts[i].card, (unsigned)strlen(cuts[i].card));

		snprintf(instance_names[i], sizeof(instance_names[i]), "%s MIG %s", card->name, cuts[i].profile);
		instances[i] = *card;
		instances[i].key = cuts[i].profile;
		instances[i].name = instance_names[i];
		instances[i].memory_bytes = cuts[i].memory_mib * MIB;
		instances[i].reserved_bytes = 0;
		instances[i].bandwidth_bytes_per_us =
			card->bandwidth_bytes_per_us * cuts[i].memory_mib * MIB / card->memory_bytes;
		instances[i].sm_count = cuts[i].sm_count;
		instances[i].mig = false;
		instances[i].mig_profile = cuts[i].profile;
		instances[i].mig_slices = cuts[i].slices;
		instances[i].mig_size = cuts[i].size;
		instances[i].mig_starts = cuts[i].starts;
		instances[i].mig_most = cuts[i].most;
		instances[i].mig_profile_id = cuts[i].id;
		instances[i].mig_profile_index = cuts[i].index;
		instances[i].mig_media = strstr(cuts[i].profile, "+me") != NULL;
	}
}

const struct sim_model *sim_model_instance(const struct sim_model *card, const char *profile, unsigned length)
{
	pthread_once(&made, make_instances);
	for (size_t i = 0; i < CUTS; i++)
		if (strcmp(cuts[i].card, card->key) == 0 && strlen(cuts[i].profile) == length &&
		    memcmp(cuts[i].profile, profile, length) == 0)
			return &instances[i];
	return NULL;
}

const struct sim_model *sim_model_cut(const struct sim_model *card, unsigned n)
{
	pthread_once(&made, make_instances);
	for (size_t i = 0; i < CUTS; i++)
		if (strcmp(cuts[i].card, card->key) == 0 && n-- == 0)
			return &instances[i];
	return NULL;
}

/* Cards first, then instances. */
const struct sim_model *sim_model_at(unsigned index)
{
	pthread_once(&made, make_instances);
	if (index < CARDS)
		return &models[index];
	return index < CARDS + CUTS ? &instances[index - CARDS] : NULL;
}

unsigned sim_model_index(const struct sim_model *model)
{
	return model->mig_profile ? (unsigned)(CARDS + (size_t)(model - instances)) : (unsigned)(model - models);
}
