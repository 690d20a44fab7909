/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs that can be simulated, by their real names and figures. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct sim_model {
	const char *key;         /* as SLUICE_SIM_GPUS spells it */
	const char *name;        /* as the driver prints it */
	uint64_t memory_bytes;   /* CUDA's total */
	uint64_t reserved_bytes; /* the driver's reserve: NVML's total is memory_bytes + this */
	uint64_t context_bytes;  /* memory of a context: of the order seen on the real card */
	uint64_t bandwidth_bytes_per_us;
	uint32_t sm_count;
	uint32_t cc_major, cc_minor;
	uint32_t sm_clock_mhz, memory_clock_mhz, bus_width_bits;
	uint32_t l2_bytes, shared_per_sm_bytes, shared_optin_bytes, threads_per_sm, blocks_per_sm;
	uint32_t power_limit_mw;
	uint32_t pci_device_id; /* device << 16 | vendor, as NVML reports it */
	bool mig, ecc, nvlink;  /* capabilities */
	/* Fields of an instance; a whole card has none of them. */
	const char *mig_profile;    /* as 1g.10gb; NULL for a whole card */
	uint32_t mig_slices;        /* compute slices, of 7 */
	uint32_t mig_size;          /* memory slices, of 8 */
	uint32_t mig_starts;        /* memory slices at which one may begin, one bit each */
	uint32_t mig_most;          /* how many of them fit a card */
	uint32_t mig_profile_id;    /* NVML's id of the profile, as nvidia-smi prints it */
	uint32_t mig_profile_index; /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t mig_media;         /* whether it has the card's one set of media extensions: +me */
};

/* NULL when there is no such model. */
const struct sim_model *sim_model_find(const char *key, unsigned length);
const struct sim_model *sim_model_at(unsigned index);
/* A MIG instance of that profile on that card; NULL when the card does not offer it. */
const struct sim_model *sim_model_instance(const struct sim_model *card, const char *profile, unsigned length);
/* The n-th instance profile of that card; NULL when it has fewer. */
const struct sim_model *sim_model_cut(const struct sim_model *card, unsigned n);
unsigned sim_model_index(const struct sim_model *model);

#endif
