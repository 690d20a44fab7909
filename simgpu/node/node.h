/* SPDX-License-Identifier: Apache-2.0 */
/* The node on which this process runs. */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include "simgpu/node/state.h"

/* Map the node, creating it from SLUICE_SIM_DIR and SLUICE_SIM_GPUS if it is new. NULL: errno has the reason. */
struct sim_state *sim_state(void);

#endif
