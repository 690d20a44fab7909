/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the simulated driver: a list of nodes in an order that respects their dependencies. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "interpose/sim/object.h"

struct CUgraphNode_st {
	uint32_t tag;
	uint32_t mark; /* its place in the list, or a visit: valid within one call only */
	struct CUgraph_st *graph;
	struct sim_node_params params; /* params.argument is the node's own copy */
	struct CUgraphNode_st **dependency;
	size_t dependencies;
	struct CUgraphNode_st *next;
	struct CUgraph_st *child;
};

/* A node comes after all it depends on, unless dependencies were added later by hand. */
struct CUgraph_st {
	uint32_t tag;
	struct CUgraphNode_st *first, *last;
	size_t count;
};

struct CUgraph_st *sim_graph_copy(struct CUgraph_st *graph);
/* Check a kernel node's parameters and make them the simulator's. */
CUresult sim_kernel_params(const CUDA_KERNEL_NODE_PARAMS *p, struct sim_node_params *ret);

#endif
