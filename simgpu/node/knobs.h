/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults and speeds that a test can set: lines `name=value` in the file `control` of the node's directory at any time,
 * or SLUICE_SIM_NAME in the environment. The file wins. docs/node/simulator.md lists the names.
 */
#ifndef SIM_KNOBS_H
#define SIM_KNOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

/* The value in the control file or the environment now; `otherwise` when neither has it. */
uint64_t sim_knob_number(const char *name, uint64_t otherwise);
bool sim_knob_text(const char *name, char *ret_text, unsigned bytes);
/* True if `index` is in the comma-separated list of the control file, which applies to the whole node, so only the
 * file is read. */
bool sim_knob_lists(const char *name, unsigned index);
/* The first line of every driver entry point: latency, and the failure of the n-th call. */
CUresult sim_enter_call(const char *function);

#endif
