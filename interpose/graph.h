/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: the memory their nodes take, charged before an upload or launch; see graph.c. */
#ifndef SLUICE_GRAPH_H
#define SLUICE_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/graph_need.h"

struct pool;

/* What is charged ahead of one upload or launch. */
struct graph_growth {
	bool any; /* else nothing else is filled in */
	CUgraphExec exec;
	uint32_t place;
	struct pool *pool[GRAPH_ORDINALS];
	uint64_t bytes[GRAPH_ORDINALS];
};

/* CUDA_ERROR_OUT_OF_MEMORY: it does not fit, and nothing is charged. After success, graph_memory_end(). */
CUresult graph_memory_begin(struct graph_growth *g, CUgraphExec exec, CUstream stream, bool per_thread);
void graph_memory_end(struct graph_growth *g, CUresult result);
/* Let the device take back what no graph is using; every graph is mapped anew by its next launch. */
CUresult graph_memory_trim(CUdevice ordinal);

#endif
