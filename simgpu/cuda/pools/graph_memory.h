/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of graph nodes; see graph_memory.c. */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "simgpu/cuda/graphs/graph.h"

/* An address for a new node; memory freed within a graph keeps its address. All of these take the memory lock. */
CUresult sim_graph_memory_make(struct CUctx_st *context, uint64_t bytes, CUdeviceptr *ret_address);
CUresult sim_graph_memory_alloc(CUdeviceptr address);
CUresult sim_graph_memory_free(CUdeviceptr address);

/*
 * Make sure that the device has reserved as much as the graph's nodes need at one time. `launching`: memory left
 * allocated by the last launch is freed (AUTO_FREE_ON_LAUNCH) or an error. Takes the memory lock.
 */
CUresult sim_graph_memory_map(const struct CUgraph_st *graph, unsigned long long flags, bool launching);

#endif
