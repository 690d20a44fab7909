/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU models that can be simulated, with the figures their vendor and driver report for them.
 *
 * A node file holds a copy of its models, so that a rebuilt library never changes a device under a running client.
 */
#ifndef SIM_MODELS_H
#define SIM_MODELS_H

#include <stdint.h>

struct sim_model {
	char key[24];  /* as SLUICE_SIM_GPUS spells it */
	char name[64]; /* as the driver prints it */
	uint64_t total_bytes;    /* what CUDA calls total */
	uint64_t reserved_bytes; /* kept by the driver: NVML's total is the sum */
	uint64_t context_bytes;  /* device memory that a context takes for itself */
	uint64_t memory_gbps;    /* 1e9 bytes per second */
	uint32_t sms;
	uint32_t cc_major, cc_minor;
	uint32_t sm_khz, memory_khz;
	uint32_t bus_bits;
	uint32_t l2_bytes;
	uint32_t threads_per_sm;
	uint32_t shared_per_sm, shared_optin;
	uint32_t blocks_per_sm;
	uint32_t power_w;
	uint32_t pci_id; /* device << 16 | vendor */
	uint32_t mig;    /* can be partitioned */
	uint32_t ecc;
	uint32_t nvlink;
};

/* The model of that name, NULL if there is none. */
const struct sim_model *sim_model_find(const char *key);

#endif
