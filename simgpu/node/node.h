/* SPDX-License-Identifier: Apache-2.0 */
/* The node that this process is on. */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include "simgpu/node/state.h"

/* Map the node, making it from SLUICE_SIM_DIR and SLUICE_SIM_GPUS if it is new. NULL: errno says why. */
struct sim_state *sim_state(void);

#endif
