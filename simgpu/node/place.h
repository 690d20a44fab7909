/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of the simulated node, and the time of its devices: available to every file of the simulator. */
#ifndef SIM_PLACE_H
#define SIM_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

const char *sim_directory(void); /* SLUICE_SIM_DIR, or this user's default */
uint64_t sim_now_ns(void);

/*
 * Faults and speeds that a test can set: lines `name=value` in the file `control` of the node's directory at any time,
 * or SLUICE_SIM_NAME in the environment. The file wins. docs/node/simulator.md lists the names.
 */

/* The value in the control file or the environment now; `otherwise` when neither has it. */
uint64_t sim_knob_number(const char *name, uint64_t otherwise);
bool sim_knob_text(const char *name, char *ret_text, unsigned bytes);
/* True if `index` is in the comma-separated list of the control file, which applies to the whole node, so only the
 * file is read. */
bool sim_knob_lists(const char *name, unsigned index);
/* The first line of every driver entry point: latency, and the failure of the n-th call. */
CUresult sim_enter_call(const char *function);

#endif
