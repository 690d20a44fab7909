/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of graph nodes. */
#ifndef SIM_GRAPH_NODES_H
#define SIM_GRAPH_NODES_H

#include "simgpu/cuda/graphs/graphs.h"

/* Check a kernel node's parameters and convert them to the simulator's form. */
CUresult sim_kernel_params(const CUDA_KERNEL_NODE_PARAMS *p, struct sim_node_params *ret);

#endif
