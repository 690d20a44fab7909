/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of graph nodes of the simulated driver; see graph_memory.c. */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "interpose/sim/graph.h"

/*
 * Make sure that the device has reserved what the graph's nodes need at one time. `launching`: memory still out of the
 * last launch is freed (AUTO_FREE_ON_LAUNCH) or an error. Takes the memory lock.
 */
CUresult sim_graph_memory_map(const struct CUgraph_st *graph, unsigned long long flags, bool launching);

#endif
