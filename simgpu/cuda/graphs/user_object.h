/* SPDX-License-Identifier: Apache-2.0 */
/* References of graphs to user objects: copies of a graph hold them as well, and drop them when they end. */
#ifndef SIM_USER_OBJECT_H
#define SIM_USER_OBJECT_H

#include "simgpu/cuda/base/object.h"

void sim_graph_objects_copied(const struct CUgraph_st *from, const struct CUgraph_st *to);
void sim_graph_objects_gone(const struct CUgraph_st *graph);

#endif
