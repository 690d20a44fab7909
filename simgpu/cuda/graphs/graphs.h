/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include "simgpu/cuda/base/object.h"

/* Graphs of the simulated driver: a list of nodes in an order that respects their dependencies. */

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

/* Stream capture: every call that puts work on a stream first checks whether that stream is being captured. */

enum sim_capture { SIM_RUN, SIM_CAPTURED, SIM_CAPTURE_ERROR };

enum sim_capture sim_capture_or_run(struct CUstream_st *stream, const struct sim_node_params *node,
                                    CUresult *ret_error);
/* True if a capture forbids calls which could wait for the captured work. */
bool sim_capture_forbids(void);
/* The same at a query of an event, which also ends every capture in global mode. */
bool sim_capture_violated(void);
/* The session to which a captured event belongs, while it lasts. */
struct sim_session *sim_session_of(struct CUctx_st *context, unsigned long long id);
/* The stream's next node depends on these nodes, too. false: too many dependencies. */
bool sim_tips_add(struct CUstream_st *stream, struct CUgraphNode_st *const *tips, unsigned count);

/* References of graphs to user objects: copies of a graph hold them as well, and drop them when they end. */

void sim_graph_objects_copied(const struct CUgraph_st *from, const struct CUgraph_st *to);
void sim_graph_objects_gone(const struct CUgraph_st *graph);

#endif
