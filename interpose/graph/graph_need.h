/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory that the memory nodes of a graph need at one time; see graph_need.c. */
#ifndef SLUICE_GRAPH_NEED_H
#define SLUICE_GRAPH_NEED_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"

#define GRAPH_ORDINALS 16 /* a grant has no more GPUs */

/* Bytes per CUDA ordinal, including child graphs and bodies of conditional nodes. False: no node takes memory. */
bool graph_need(CUgraph graph, uint64_t ret_bytes[GRAPH_ORDINALS]);

#endif
