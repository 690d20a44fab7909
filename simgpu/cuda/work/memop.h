/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on values in memory. */
#ifndef SIM_MEMOP_H
#define SIM_MEMOP_H

#include "simgpu/cuda/base/object.h"

/* Put the operations on a stream; those of a graph node in the order of the node. */
CUresult sim_memops_put(struct CUstream_st *stream, const CUstreamBatchMemOpParams *ops, unsigned count);

#endif
