/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of models. Memory: CUDA's total and NVML's total as the driver reports them on such cards; the context
 * overhead is what nvidia-smi shows for a process that only made a context.
 */
#include <stddef.h>
#include <string.h>

#include "interpose/sim/models.h"

#define MIB (1ull << 20)

static const struct sim_model models[] = {
	{
	    .key = "h200-141gb",
	    .name = "NVIDIA H200",
	    .total_bytes = 143166 * MIB,
	    .reserved_bytes = 605 * MIB,
	    .context_bytes = 528 * MIB,
	    .memory_gbps = 4800,
	    .sms = 132,
	    .cc_major = 9,
	    .cc_minor = 0,
	    .sm_khz = 1980000,
	    .memory_khz = 3201000,
	    .bus_bits = 6144,
	    .l2_bytes = 60 * MIB,
	    .threads_per_sm = 2048,
	    .shared_per_sm = 233472,
	    .shared_optin = 232448,
	    .blocks_per_sm = 32,
	    .power_w = 700,
	    .pci_id = 0x233510de,
	    .mig = 1,
	    .ecc = 1,
	    .nvlink = 1,
	},
	{
	    .key = "h100-80gb",
	    .name = "NVIDIA H100 80GB HBM3",
	    .total_bytes = 81008 * MIB,
	    .reserved_bytes = 551 * MIB,
	    .context_bytes = 520 * MIB,
	    .memory_gbps = 3352,
	    .sms = 132,
	    .cc_major = 9,
	    .cc_minor = 0,
	    .sm_khz = 1980000,
	    .memory_khz = 2619000,
	    .bus_bits = 5120,
	    .l2_bytes = 50 * MIB,
	    .threads_per_sm = 2048,
	    .shared_per_sm = 233472,
	    .shared_optin = 232448,
	    .blocks_per_sm = 32,
	    .power_w = 700,
	    .pci_id = 0x233010de,
	    .mig = 1,
	    .ecc = 1,
	    .nvlink = 1,
	},
	{
	    .key = "a100-40gb",
	    .name = "NVIDIA A100-SXM4-40GB",
	    .total_bytes = 40338 * MIB,
	    .reserved_bytes = 622 * MIB,
	    .context_bytes = 416 * MIB,
	    .memory_gbps = 1555,
	    .sms = 108,
	    .cc_major = 8,
	    .cc_minor = 0,
	    .sm_khz = 1410000,
	    .memory_khz = 1215000,
	    .bus_bits = 5120,
	    .l2_bytes = 40 * MIB,
	    .threads_per_sm = 2048,
	    .shared_per_sm = 167936,
	    .shared_optin = 166912,
	    .blocks_per_sm = 32,
	    .power_w = 400,
	    .pci_id = 0x20b010de,
	    .mig = 1,
	    .ecc = 1,
	    .nvlink = 1,
	},
	{
	    .key = "v100-32gb",
	    .name = "Tesla V100-SXM2-32GB",
	    .total_bytes = 32510 * MIB,
	    .reserved_bytes = 258 * MIB,
	    .context_bytes = 306 * MIB,
	    .memory_gbps = 900,
	    .sms = 80,
	    .cc_major = 7,
	    .cc_minor = 0,
	    .sm_khz = 1530000,
	    .memory_khz = 877000,
	    .bus_bits = 4096,
	    .l2_bytes = 6 * MIB,
	    .threads_per_sm = 2048,
	    .shared_per_sm = 98304,
	    .shared_optin = 98304,
	    .blocks_per_sm = 32,
	    .power_w = 300,
	    .pci_id = 0x1db510de,
	    .ecc = 1,
	    .nvlink = 1,
	},
	{
	    .key = "rtx4090-24gb",
	    .name = "NVIDIA GeForce RTX 4090",
	    .total_bytes = 24210 * MIB,
	    .reserved_bytes = 354 * MIB,
	    .context_bytes = 384 * MIB,
	    .memory_gbps = 1008,
	    .sms = 128,
	    .cc_major = 8,
	    .cc_minor = 9,
	    .sm_khz = 2520000,
	    .memory_khz = 10501000,
	    .bus_bits = 384,
	    .l2_bytes = 72 * MIB,
	    .threads_per_sm = 1536,
	    .shared_per_sm = 102400,
	    .shared_optin = 101376,
	    .blocks_per_sm = 24,
	    .power_w = 450,
	    .pci_id = 0x268410de,
	},
};

const struct sim_model *sim_model_find(const char *key)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (strcmp(models[i].key, key) == 0)
			return &models[i];
	return NULL;
}
