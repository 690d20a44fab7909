/* SPDX-License-Identifier: Apache-2.0 */
/* This process after cuInit, and its view of the devices. */
#ifndef SIM_PROCESS_H
#define SIM_PROCESS_H

#include "simgpu/cuda/base/object.h"

#define SIM_DEVICES SIM_GPUS

struct sim_device {
	struct sim_gpu *gpu;
	const struct sim_model *model;
	unsigned gpu_index;
	uint32_t generation; /* generation of its MIG instance */
	struct CUctx_st *primary;
	unsigned primary_flags;
};

struct sim_process {
	struct sim_state *state;
	struct sim_client *client;
	int client_index;
	int device_count;
	struct sim_device device[SIM_DEVICES];
};

/* NULL before cuInit, and in a forked child. */
struct sim_process *sim_process(void);
int sim_process_start(void); /* CUresult */
/* NULL: this process has no such device. */
struct sim_device *sim_device_get(CUdevice device);
const struct sim_model *sim_model_of(const struct CUctx_st *context);

#endif
