/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of models. Memory: what CUDA reports as total; NVML's total is larger by what the driver reserves. The
 * context overhead is what a process that only made a context takes on such a card.
 */
#include "interpose/sim/model.h"

#include <stddef.h>
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

const struct sim_model *sim_model_at(unsigned index)
{
	return index < sizeof(models) / sizeof(models[0]) ? &models[index] : NULL;
}

unsigned sim_model_index(const struct sim_model *model)
{
	return (unsigned)(model - models);
}
