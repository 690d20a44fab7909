/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills, from an entry point's request to the bytes: a request is checked and becomes a transfer, which is
 * run, queued or captured.
 *
 * Device time is taken on the timeline; the bytes move at the call, or at the end of a copy that the caller waits for.
 * All work of a process is queued in the order of its calls and kernels write nothing, so a program cannot observe the
 * difference.
 */
#include "simgpu/cuda/work/transfer.h"

#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/streams/streams.h"

enum place { HOST, DEVICE };

struct side {
	uint8_t *at;
	size_t pitch, slice;
	enum place place;
	bool pageable;             /* host memory unknown to the driver */
	const struct sim_gpu *gpu; /* GPU of device memory */
};

/* --- execution ---------------------------------------------------------------------------------------------------- */

static void fill_row(uint8_t *to, size_t bytes, uint32_t element, uint32_t value)
{
	if (element == 1) {
		memset(to, (int)value, bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += element)
		memcpy(to + at, &value, element); /* little-endian: the low bytes come first */
}

static void move(void *argument)
{
	const struct sim_transfer *t = argument;

	for (size_t z = 0; z < t->depth; z++) {
		for (size_t y = 0; y < t->height; y++) {
			uint8_t *to = t->to + z * t->to_slice + y * t->to_pitch;

			if (t->from)
				memmove(to, t->from + z * t->from_slice + y * t->from_pitch, t->width);
			else
				fill_row(to, t->width, t->element, t->value);
		}
	}
}

/* Offset from the first byte to the last; false = out of range. */
static bool span_of(const struct sim_copy *r, size_t pitch, size_t slice, size_t *ret_bytes)
{
	size_t rows, slices;

	return !__builtin_mul_overflow(r->height - 1, pitch, &rows) &&
	       !__builtin_mul_overflow(r->depth - 1, slice, &slices) && !__builtin_add_overflow(rows, slices, &rows) &&
	       !__builtin_add_overflow(rows, r->width, ret_bytes);
}

static CUresult resolve_array(const struct sim_copy *r, const struct sim_copy_end *e, struct side *ret)
{
	struct sim_array_view v;

	if (!sim_array_view(e->array, &v))
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t all = v.row_bytes * v.rows * v.slices;

	ret->pitch = v.row_bytes;
	ret->slice = v.row_bytes * v.rows;
	ret->at = v.bytes + e->z * ret->slice + e->y * ret->pitch + e->x;
	ret->place = DEVICE;
	ret->gpu = sim_device_get(v.range->device)->gpu;
	v.range->touched = true;
	if (r->linear)
		return e->x <= all && r->width <= all - e->x ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	bool inside = e->x <= v.row_bytes && r->width <= v.row_bytes - e->x && e->y <= v.rows &&
	              r->height <= v.rows - e->y && e->z <= v.slices && r->depth <= v.slices - e->z;

	return inside && e->x % v.element_bytes == 0 && r->width % v.element_bytes == 0 ? CUDA_SUCCESS
	                                                                                : CUDA_ERROR_INVALID_VALUE;
}

/* Check one end. With the memory lock held. */
static CUresult resolve(const struct sim_copy *r, const struct sim_copy_end *e, struct side *ret)
{
	size_t row, span;
	uint64_t address;

	if (e->lod)
		return CUDA_ERROR_INVALID_VALUE;
	if (e->type == CU_MEMORYTYPE_ARRAY)
		return resolve_array(r, e, ret);
	if (e->type != CU_MEMORYTYPE_HOST && e->type != CU_MEMORYTYPE_DEVICE && e->type != CU_MEMORYTYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_add_overflow(e->x, r->width, &row))
		return CUDA_ERROR_INVALID_VALUE;
	/* 0 = rows and slices without gaps */
	ret->pitch = e->pitch ? e->pitch : row;
	if (ret->pitch < row || (e->height && e->height < e->y + r->height && r->depth > 1))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_mul_overflow(ret->pitch, e->height ? e->height : e->y + r->height, &ret->slice) ||
	    !span_of(r, ret->pitch, ret->slice, &span))
		return CUDA_ERROR_INVALID_VALUE;
	address = e->type == CU_MEMORYTYPE_HOST ? (uintptr_t)e->host : e->device;
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	address += e->z * ret->slice + e->y * ret->pitch + e->x;
	ret->at = (uint8_t *)(uintptr_t)address;

	if (sim_range_at(address)) {
		struct sim_block block;

		if (!sim_block_at(address, &block) || !sim_range_covers(address, span))
			return CUDA_ERROR_INVALID_VALUE;
		ret->place = e->type == CU_MEMORYTYPE_HOST ? HOST : DEVICE;
		ret->pageable = false;
		ret->gpu = sim_device_get(block.device)->gpu;
		return CUDA_SUCCESS;
	}
	ret->place = HOST;
	ret->pageable = !sim_host_covers(address, span);
	if (e->type == CU_MEMORYTYPE_DEVICE && ret->pageable)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static uint64_t transfer_ns(const struct CUctx_st *context, const struct sim_copy *r, const struct side *from,
                            const struct side *to)
{
	uint64_t bytes = r->width * r->height * r->depth;

	if (r->element)
		return sim_copy_ns(context, bytes);
	if (from->place == DEVICE && to->place == DEVICE && from->gpu == to->gpu)
		return sim_copy_ns(context, bytes) * 2; /* read and written */
	return bytes / SIM_LINK_BYTES_PER_NS;
}

static CUresult capture_result(struct CUstream_st *stream, const struct sim_node_params *node, bool *ret_run)
{
	CUresult error = CUDA_SUCCESS;
	enum sim_capture captured = sim_capture_or_run(stream, node, &error);

	*ret_run = captured == SIM_RUN;
	return captured == SIM_CAPTURE_ERROR ? error : CUDA_SUCCESS;
}

CUresult sim_copy_plan(const struct CUctx_st *context, const struct sim_copy *r, struct sim_copy_plan *ret)
{
	struct side from = { 0 }, to = { 0 };
	CUresult result = r->error;

	if (result == CUDA_SUCCESS && (r->from.context || r->to.context) &&
	    (!SIM_HANDLE(r->from.context, SIM_TAG_CONTEXT) || !SIM_HANDLE(r->to.context, SIM_TAG_CONTEXT)))
		result = CUDA_ERROR_INVALID_CONTEXT;
	ret->bytes = 0;
	if (result != CUDA_SUCCESS || r->width == 0 || r->height == 0 || r->depth == 0)
		return result;
	sim_memory_lock();
	result = resolve(r, &r->to, &to);
	if (result == CUDA_SUCCESS && !r->element)
		result = resolve(r, &r->from, &from);
	sim_memory_unlock();
	if (result != CUDA_SUCCESS)
		return result;
	ret->bytes = r->width * r->height * r->depth;
	ret->host = to.place == HOST || (!r->element && from.place == HOST);
	ret->from_pageable = from.pageable;
	ret->to_pageable = to.pageable;
	ret->transfer = (struct sim_transfer){ .to = to.at,
		                               .to_pitch = to.pitch,
		                               .to_slice = to.slice,
		                               .from = from.at,
		                               .from_pitch = from.pitch,
		                               .from_slice = from.slice,
		                               .width = r->width,
		                               .height = r->height,
		                               .depth = r->depth,
		                               .element = r->element,
		                               .value = r->value };
	ret->node =
		(struct sim_node_params){ .type = r->element ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_MEMCPY,
		                          .duration_ns = transfer_ns(context, r, &from, &to),
		                          .effect = move,
		                          .argument = &ret->transfer,
		                          .argument_bytes = sizeof(ret->transfer) };
	return CUDA_SUCCESS;
}

/* Kernels fill and copy within the device; between host and device the copy engine does. */
static enum sim_op_kind engine_of(const struct sim_copy_plan *p)
{
	return p->host ? SIM_OP_COPY : SIM_OP_WORK;
}

/* --- on a held stream (hold.h) ------------------------------------------------------------------------------------ */

struct kept {
	struct sim_transfer transfer;
	uint64_t duration_ns;
	enum sim_op_kind kind;
	void *staged; /* a copy of the source's bytes made at the call; NULL = they stay at the source */
};

static void run_kept(struct CUstream_st *stream, void *argument)
{
	struct kept *k = argument;

	stream->last = sim_submit(stream->context, k->kind, k->duration_ns, 0);
	move(&k->transfer);
	free(k->staged);
}

/* Pageable source memory is read at the call, as drivers do, because the caller may reuse it afterwards. */
static CUresult keep(struct CUstream_st *stream, const struct sim_copy_plan *p)
{
	struct kept k = { .transfer = p->transfer, .duration_ns = p->node.duration_ns, .kind = engine_of(p) };

	if (p->from_pageable) {
		struct sim_transfer in = p->transfer;

		in.to = k.staged = malloc(p->bytes);
		if (!in.to)
			return CUDA_ERROR_OUT_OF_MEMORY;
		in.to_pitch = k.transfer.from_pitch = in.width;
		in.to_slice = k.transfer.from_slice = in.width * in.height;
		k.transfer.from = in.to;
		move(&in);
	}
	CUresult r = sim_hold(stream, NULL, run_kept, &k, sizeof(k), NULL);

	if (r != CUDA_SUCCESS)
		free(k.staged);
	return r;
}

/* Run it on a stream. `wait`: the call returns only when a host buffer may be reused. */
CUresult sim_copy_run(struct CUctx_st *context, const struct sim_copy *r, CUstream handle, bool wait)
{
	struct CUstream_st *stream = sim_stream(context, handle);
	struct sim_copy_plan p;
	bool go;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = sim_copy_plan(stream->context, r, &p);

	if (result != CUDA_SUCCESS || p.bytes == 0)
		return result;
	result = capture_result(stream, &p.node, &go);
	if (!go)
		return result;
	if (wait && sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (sim_held(stream)) {
		/* data for pageable memory must have arrived when the call returns */
		if (!p.to_pageable && !(wait && p.host))
			return keep(stream, &p);
		result = sim_hold_wait(stream->context, stream);
		if (result != CUDA_SUCCESS)
			return result;
		wait = true;
	}
	stream->last = sim_submit(stream->context, engine_of(&p), p.node.duration_ns, 0);
	/* A copy within the device does not block the caller, synchronous or not. */
	if (wait && p.host)
		result = sim_wait(stream->context, stream->last);
	if (result == CUDA_SUCCESS)
		move(&p.transfer);
	return result;
}
