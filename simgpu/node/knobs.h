/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults and speeds that a test can ask for: lines `name=value` in the file `control` of the node's directory at any
 * time, or SLUICE_SIM_NAME in the environment. The file wins. docs/node/simulator.md lists the names.
 */
#ifndef SIM_KNOBS_H
#define SIM_KNOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/driver/cuda_abi.h"

/* What the control file or the environment says now; `otherwise` when neither names it. */
uint64_t sim_knob_number(const char *name, uint64_t otherwise);
bool sim_knob_text(const char *name, char *ret_text, unsigned bytes);
/* Is `index` in the comma-separated list of numbers that the control file gives? The whole node's, so the file's only. */
bool sim_knob_lists(const char *name, unsigned index);
/* The first line of every driver entry point: latency, and the n-th call's failure. */
CUresult sim_enter_call(const char *function);

#endif
