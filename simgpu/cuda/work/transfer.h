/* SPDX-License-Identifier: Apache-2.0 */
/* A copy or a fill as its entry point describes it, and the transfer made of it. */
#ifndef SIM_TRANSFER_H
#define SIM_TRANSFER_H

#include <stddef.h>

#include "simgpu/cuda/graphs/graphs.h"

#define SIM_LINK_BYTES_PER_NS 25 /* 25 GB/s: the rate of a PCIe 4.0 x16 slot, to the host and between GPUs */

/* One end of a copy, laid out as in the API's structures for three dimensions. */
struct sim_copy_end {
	size_t x, y, z, lod;
	CUmemorytype type;
	void *host;
	CUdeviceptr device;
	CUarray array;
	CUcontext context;
	size_t pitch, height;
};

struct sim_copy {
	struct sim_copy_end from, to;
	size_t width, height, depth; /* bytes, rows, slices */
	/* the following fields are the simulator's */
	uint32_t element, value; /* a fill; element 0 = a copy */
	bool linear;             /* .x counts bytes through a whole array, rows included */
	CUresult error;
};

_Static_assert(sizeof(struct sim_copy_end) == offsetof(CUDA_MEMCPY3D_PEER, dstXInBytes), "one end is as in the API");
_Static_assert(offsetof(struct sim_copy, element) == sizeof(CUDA_MEMCPY3D_PEER), "so are both and the extent");
_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER), "a plain copy has no contexts in that place");

/* A checked request with plain addresses. */
struct sim_transfer {
	uint8_t *to;
	const uint8_t *from; /* NULL = a fill */
	size_t to_pitch, to_slice, from_pitch, from_slice;
	size_t width, height, depth;
	uint32_t element, value;
};

/* Check a request and convert it for a graph node or a stream. A request for 0 bytes is no error: `bytes` is 0. */
struct sim_copy_plan {
	struct sim_transfer transfer;
	struct sim_node_params node; /* its argument is the transfer */
	uint64_t bytes;
	bool host; /* one of its ends is host memory */
	bool from_pageable, to_pageable;
};

/* Check a request and plan it; CUDA_SUCCESS with 0 bytes: no data to move. */
CUresult sim_copy_plan(const struct CUctx_st *context, const struct sim_copy *copy, struct sim_copy_plan *ret);
/* Run it on a stream. `wait`: the call returns only when a host buffer may be reused. */
CUresult sim_copy_run(struct CUctx_st *context, const struct sim_copy *copy, CUstream handle, bool wait);

#endif
