/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the simulated driver: a list of nodes in an order that respects their dependencies. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "simgpu/cuda/base/object.h"

struct sim_node_params {
	CUgraphNodeType type;
	uint64_t duration_ns;
	void (*effect)(void *argument); /* data movement or host function, done when the graph is launched */
	void *argument;                 /* a copy of argument_bytes bytes */
	size_t argument_bytes;
	CUDA_KERNEL_NODE_PARAMS kernel; /* valid for a kernel node */
};

struct CUgraphNode_st {
	uint32_t tag;
	uint32_t mark; /* its place in the list, or a visit mark: valid within one call only */
	struct CUgraph_st *graph;
	struct sim_node_params params; /* params.argument is the node's own copy */
	struct CUgraphNode_st **dependency;
	size_t dependencies;
	struct CUgraphNode_st *next;
	struct CUgraph_st *child;
};

/* A node comes after all nodes on which it depends, unless dependencies were added later explicitly. */
struct CUgraph_st {
	uint32_t tag;
	struct CUgraphNode_st *first, *last;
	size_t count;
};

struct CUgraph_st *sim_graph_copy(struct CUgraph_st *graph);
struct CUgraph_st *sim_graph_make(void);
void sim_graph_free(struct CUgraph_st *graph);
struct CUgraphNode_st *sim_graph_add(struct CUgraph_st *graph, const struct sim_node_params *params,
                                     struct CUgraphNode_st *const *dependencies, size_t count);
/* True if all of `others` are among `tips` and their dependencies. */
bool sim_graph_reaches(struct CUgraph_st *graph, struct CUgraphNode_st *const *tips, unsigned tip_count,
                       struct CUgraphNode_st *const *others, unsigned other_count);

#endif
