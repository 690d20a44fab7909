/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. Every door describes what it wants as a request, one function checks it and makes a transfer, one
 * runs or captures that.
 *
 * Device time is taken on the timeline; the bytes move at the call, or, of a copy the caller waits for, at its end. All
 * work of a process is queued in the order of its calls and kernels write nothing, so nobody can tell the difference.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/sim/arena.h"
#include "interpose/sim/graph.h"
#include "interpose/sim/hold.h"

#define LINK_BYTES_PER_NS 25 /* 25 GB/s: what a PCIe 4.0 x16 slot gives, to the host and between GPUs */

/* One end of a copy, laid out as in the API's structures for three dimensions. */
struct end {
	size_t x, y, z, lod;
	CUmemorytype type;
	void *host;
	CUdeviceptr device;
	CUarray array;
	CUcontext context;
	size_t pitch, height;
};

struct request {
	struct end from, to;
	size_t width, height, depth; /* bytes, rows, slices */
	/* what follows is ours */
	uint32_t element, value; /* a fill; element 0 = a copy */
	bool linear;             /* .x counts bytes through a whole array, rows included */
	CUresult error;
};

_Static_assert(sizeof(struct end) == offsetof(CUDA_MEMCPY3D_PEER, dstXInBytes), "one end is as in the API");
_Static_assert(offsetof(struct request, element) == sizeof(CUDA_MEMCPY3D_PEER), "so are both and the extent");
_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER), "a plain copy has no contexts in that place");

/* A checked request: nothing but addresses. */
struct transfer {
	uint8_t *to;
	const uint8_t *from; /* NULL = a fill */
	size_t to_pitch, to_slice, from_pitch, from_slice;
	size_t width, height, depth;
	uint32_t element, value;
};

enum place { HOST, DEVICE };

struct side {
	uint8_t *at;
	size_t pitch, slice;
	enum place place;
	bool pageable;             /* host memory that the driver knows nothing of */
	const struct sim_gpu *gpu; /* of device memory */
};

/* --- doing it ----------------------------------------------------------------------------------------------------- */

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
	const struct transfer *t = argument;

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

/* From the first byte to the last; false = more than there is. */
static bool span_of(const struct request *r, size_t pitch, size_t slice, size_t *ret_bytes)
{
	size_t rows, slices;

	return !__builtin_mul_overflow(r->height - 1, pitch, &rows) &&
	       !__builtin_mul_overflow(r->depth - 1, slice, &slices) && !__builtin_add_overflow(rows, slices, &rows) &&
	       !__builtin_add_overflow(rows, r->width, ret_bytes);
}

static CUresult resolve_array(const struct request *r, const struct end *e, struct side *ret)
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

/* Check one end. With memory's lock held. */
static CUresult resolve(const struct request *r, const struct end *e, struct side *ret)
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
	/* 0 = rows, and slices, without gaps */
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

static uint64_t transfer_ns(const struct CUctx_st *context, const struct request *r, const struct side *from,
                            const struct side *to)
{
	uint64_t bytes = r->width * r->height * r->depth;

	if (r->element)
		return sim_copy_ns(context, bytes);
	if (from->place == DEVICE && to->place == DEVICE && from->gpu == to->gpu)
		return sim_copy_ns(context, bytes) * 2; /* read and written */
	return bytes / LINK_BYTES_PER_NS;
}

static CUresult capture_result(struct CUstream_st *stream, const struct sim_node_params *node, bool *ret_run)
{
	CUresult error = CUDA_SUCCESS;
	enum sim_capture captured = sim_capture_or_run(stream, node, &error);

	*ret_run = captured == SIM_RUN;
	return captured == SIM_CAPTURE_ERROR ? error : CUDA_SUCCESS;
}

/* Check a request and make of it what a graph node or a stream needs. Nothing to move is no error: bytes says 0. */
struct plan {
	struct transfer transfer;
	struct sim_node_params node; /* its argument is the transfer */
	uint64_t bytes;
	bool host; /* an end of it is host memory */
	bool from_pageable, to_pageable;
};

static CUresult plan(const struct CUctx_st *context, const struct request *r, struct plan *ret)
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
	ret->transfer = (struct transfer){ .to = to.at,
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

/* --- on a held stream (hold.h) --------------------------------------------------------------------------------------- */

struct kept {
	struct transfer transfer;
	uint64_t duration_ns;
	void *staged; /* the source's bytes, taken at the call; NULL = they are where they were */
};

static void run_kept(struct CUstream_st *stream, void *argument)
{
	struct kept *k = argument;

	stream->last = sim_submit(stream->context, SIM_OP_WORK, k->duration_ns, 0);
	move(&k->transfer);
	free(k->staged);
}

/* What comes from pageable memory is read at the call, as drivers do, for the caller may use that memory again. */
static CUresult keep(struct CUstream_st *stream, const struct plan *p)
{
	struct kept k = { .transfer = p->transfer, .duration_ns = p->node.duration_ns };

	if (p->from_pageable) {
		struct transfer in = p->transfer;

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

/* Do it on a stream. `wait`: it is a call that returns when a host buffer may be used again. */
static CUresult run(struct CUctx_st *context, const struct request *r, CUstream handle, bool wait)
{
	struct CUstream_st *stream = sim_stream(context, handle);
	struct plan p;
	bool go;

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult result = plan(stream->context, r, &p);

	if (result != CUDA_SUCCESS || p.bytes == 0)
		return result;
	result = capture_result(stream, &p.node, &go);
	if (!go)
		return result;
	if (wait && sim_capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (sim_held(stream)) {
		/* what ends in pageable memory has to be there when the call returns */
		if (!p.to_pageable && !(wait && p.host))
			return keep(stream, &p);
		result = sim_hold_wait(stream->context, stream);
		if (result != CUDA_SUCCESS)
			return result;
		wait = true;
	}
	stream->last = sim_submit(stream->context, SIM_OP_WORK, p.node.duration_ns, 0);
	/* Within the device a caller is not made to wait, synchronous or not. */
	if (wait && p.host)
		result = sim_wait(stream->context, stream->last);
	if (result == CUDA_SUCCESS)
		move(&p.transfer);
	return result;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static struct end at_host(const void *address)
{
	return (struct end){ .type = CU_MEMORYTYPE_HOST, .host = (void *)(uintptr_t)address };
}

static struct end at_device(CUdeviceptr address)
{
	return (struct end){ .type = CU_MEMORYTYPE_DEVICE, .device = address };
}

static struct end at_either(CUdeviceptr address)
{
	return (struct end){ .type = CU_MEMORYTYPE_UNIFIED, .device = address };
}

static struct end at_array(CUarray array, size_t offset)
{
	return (struct end){ .type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset };
}

static struct request linear(struct end to, struct end from, size_t bytes)
{
	return (struct request){ .to = to, .from = from, .width = bytes, .height = 1, .depth = 1, .linear = true };
}

static struct request peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
	struct request r = linear(at_device(to), at_device(from), bytes);

	r.to.context = to_context;
	r.from.context = from_context;
	if (!to_context || !from_context)
		r.error = CUDA_ERROR_INVALID_CONTEXT;
	return r;
}

static struct request plane(const CUDA_MEMCPY2D *c)
{
	if (!c)
		return (struct request){ .error = CUDA_ERROR_INVALID_VALUE };
	return (struct request){
		.from = { .x = c->srcXInBytes,
		          .y = c->srcY,
		          .type = c->srcMemoryType,
		          .host = (void *)(uintptr_t)c->srcHost,
		          .device = c->srcDevice,
		          .array = c->srcArray,
		          .pitch = c->srcPitch },
		.to = { .x = c->dstXInBytes,
		        .y = c->dstY,
		        .type = c->dstMemoryType,
		        .host = c->dstHost,
		        .device = c->dstDevice,
		        .array = c->dstArray,
		        .pitch = c->dstPitch },
		.width = c->WidthInBytes,
		.height = c->Height,
		.depth = 1,
	};
}

/* CUDA_MEMCPY3D or its peer form. */
static struct request box(const void *copy, bool between_peers)
{
	struct request r = { 0 };

	if (!copy) {
		r.error = CUDA_ERROR_INVALID_VALUE;
		return r;
	}
	memcpy(&r, copy, sizeof(CUDA_MEMCPY3D_PEER));
	if (!between_peers)
		r.from.context = r.to.context = NULL; /* reserved words there */
	else if (!r.from.context || !r.to.context)
		r.error = CUDA_ERROR_INVALID_CONTEXT;
	return r;
}

static struct request fill(CUdeviceptr to, size_t pitch, uint32_t element, uint32_t value, size_t columns, size_t rows)
{
	struct request r = { .to = at_device(to), .height = rows, .depth = 1, .element = element, .value = value };

	r.to.pitch = pitch;
	if (__builtin_mul_overflow(columns, element, &r.width) || to % element || pitch % element)
		r.error = CUDA_ERROR_INVALID_VALUE;
	return r;
}

/* One of a batch. Between pointers lengths are bytes; where an array takes part they are in its elements. */
static size_t element_of(const CUmemcpy3DOperand *o, size_t element, CUresult *ret_error)
{
	struct sim_array_view v;

	if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return element;
	sim_memory_lock();
	bool found = sim_array_view(o->op.array.array, &v);

	sim_memory_unlock();
	if (!found)
		*ret_error = CUDA_ERROR_INVALID_HANDLE;
	else if (element && element != v.element_bytes)
		*ret_error = CUDA_ERROR_INVALID_VALUE;
	return found ? v.element_bytes : element;
}

static struct end operand(const CUmemcpy3DOperand *o, const CUextent3D *extent, size_t element, CUresult *ret_error)
{
	struct end e = { 0 };

	switch (o->type) {
	case CU_MEMCPY_OPERAND_TYPE_ARRAY:
		e.type = CU_MEMORYTYPE_ARRAY;
		e.array = o->op.array.array;
		e.y = o->op.array.offset.y;
		e.z = o->op.array.offset.z;
		if (__builtin_mul_overflow(o->op.array.offset.x, element, &e.x))
			*ret_error = CUDA_ERROR_INVALID_VALUE;
		return e;
	case CU_MEMCPY_OPERAND_TYPE_POINTER:
		e = at_either(o->op.ptr.ptr);
		e.height = o->op.ptr.layerHeight;
		if ((o->op.ptr.rowLength && o->op.ptr.rowLength < extent->width) ||
		    (e.height && e.height < extent->height) ||
		    __builtin_mul_overflow(o->op.ptr.rowLength, element, &e.pitch))
			*ret_error = CUDA_ERROR_INVALID_VALUE;
		return e;
	default:
		*ret_error = CUDA_ERROR_INVALID_VALUE;
		return e;
	}
}

static struct request boxed(const CUDA_MEMCPY3D_BATCH_OP *op)
{
	struct request r = { .height = op->extent.height, .depth = op->extent.depth };
	size_t element = element_of(&op->src, 0, &r.error);

	element = element_of(&op->dst, element, &r.error);
	element = element ? element : 1;
	if (!op->extent.width || !op->extent.height || !op->extent.depth ||
	    __builtin_mul_overflow(op->extent.width, element, &r.width) ||
	    op->srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
	    op->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
	    op->flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
		r.error = CUDA_ERROR_INVALID_VALUE;
	r.from = operand(&op->src, &op->extent, element, &r.error);
	r.to = operand(&op->dst, &op->extent, element, &r.error);
	return r;
}

/* --- doors -------------------------------------------------------------------------------------------------------- */

/* One line per door: it reads as the table it is. */
/* clang-format off */
#define SYNC(name, wanted, ...)                                                                                        \
	SIM_API CUresult name(__VA_ARGS__)                                                                             \
	{                                                                                                              \
		SIM_CALL_CONTEXT(context);                                                                             \
		struct request r = wanted;                                                                             \
		return run(context, &r, NULL, true);                                                                   \
	}
#define ASYNC(name, wanted, ...)                                                                                       \
	SIM_API CUresult name(__VA_ARGS__, CUstream stream)                                                            \
	{                                                                                                              \
		SIM_CALL_CONTEXT(context);                                                                             \
		struct request r = wanted;                                                                             \
		return run(context, &r, stream, false);                                                                \
	}
#define BOTH(name, name_async, wanted, ...)                                                                            \
	SYNC(name, wanted, __VA_ARGS__)                                                                                \
	ASYNC(name_async, wanted, __VA_ARGS__)

BOTH(cuMemcpy, cuMemcpyAsync, linear(at_either(to), at_either(from), n), CUdeviceptr to, CUdeviceptr from, size_t n)
BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, linear(at_device(to), at_host(from), n), CUdeviceptr to, const void *from, size_t n)
BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, linear(at_host(to), at_device(from), n), void *to, CUdeviceptr from, size_t n)
BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, linear(at_device(to), at_device(from), n), CUdeviceptr to, CUdeviceptr from, size_t n)
BOTH(cuMemcpyPeer, cuMemcpyPeerAsync, peer(to, to_context, from, from_context, n), CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t n)
BOTH(cuMemcpyHtoA_v2, cuMemcpyHtoAAsync_v2, linear(at_array(to, at), at_host(from), n), CUarray to, size_t at, const void *from, size_t n)
BOTH(cuMemcpyAtoH_v2, cuMemcpyAtoHAsync_v2, linear(at_host(to), at_array(from, at), n), void *to, CUarray from, size_t at, size_t n)
SYNC(cuMemcpyDtoA_v2, linear(at_array(to, at), at_device(from), n), CUarray to, size_t at, CUdeviceptr from, size_t n)
SYNC(cuMemcpyAtoD_v2, linear(at_device(to), at_array(from, at), n), CUdeviceptr to, CUarray from, size_t at, size_t n)
SYNC(cuMemcpyAtoA_v2, linear(at_array(to, to_at), at_array(from, from_at), n), CUarray to, size_t to_at, CUarray from, size_t from_at, size_t n)
BOTH(cuMemcpy2D_v2, cuMemcpy2DAsync_v2, plane(copy), const CUDA_MEMCPY2D *copy)
SYNC(cuMemcpy2DUnaligned_v2, plane(copy), const CUDA_MEMCPY2D *copy)
BOTH(cuMemcpy3D_v2, cuMemcpy3DAsync_v2, box(copy, false), const CUDA_MEMCPY3D *copy)
BOTH(cuMemcpy3DPeer, cuMemcpy3DPeerAsync, box(copy, true), const CUDA_MEMCPY3D_PEER *copy)
BOTH(cuMemsetD8_v2, cuMemsetD8Async, fill(to, 0, 1, value, n, 1), CUdeviceptr to, unsigned char value, size_t n)
BOTH(cuMemsetD16_v2, cuMemsetD16Async, fill(to, 0, 2, value, n, 1), CUdeviceptr to, unsigned short value, size_t n)
BOTH(cuMemsetD32_v2, cuMemsetD32Async, fill(to, 0, 4, value, n, 1), CUdeviceptr to, unsigned value, size_t n)
BOTH(cuMemsetD2D8_v2, cuMemsetD2D8Async, fill(to, pitch, 1, value, w, h), CUdeviceptr to, size_t pitch, unsigned char value, size_t w, size_t h)
BOTH(cuMemsetD2D16_v2, cuMemsetD2D16Async, fill(to, pitch, 2, value, w, h), CUdeviceptr to, size_t pitch, unsigned short value, size_t w, size_t h)
BOTH(cuMemsetD2D32_v2, cuMemsetD2D32Async, fill(to, pitch, 4, value, w, h), CUdeviceptr to, size_t pitch, unsigned value, size_t w, size_t h)
/* The first generation's: no allocation has an address of 32 bits, so only their errors are left. */
SYNC(cuMemcpyHtoD, linear(at_device(to), at_host(from), n), CUdeviceptr_v1 to, const void *from, unsigned n)
SYNC(cuMemcpyDtoH, linear(at_host(to), at_device(from), n), void *to, CUdeviceptr_v1 from, unsigned n)
/* clang-format on */

/* Not on the legacy stream: it could be meant to wait for others in between. */
static bool batch_stream(CUstream stream)
{
	return stream && stream != CU_STREAM_LEGACY;
}

SIM_API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *ret_failed,
                                      unsigned long long flags, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	CUresult result = CUDA_SUCCESS;

	if (ret_failed)
		*ret_failed = SIZE_MAX;
	if (!count || !list || flags || !batch_stream(stream))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		struct request r = boxed(&list[i]);

		result = run(context, &r, stream, false);
		if (result != CUDA_SUCCESS && ret_failed)
			*ret_failed = i;
	}
	return result;
}

SIM_API CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,
                                         CUstream stream)
{
	return cuMemcpy3DBatchAsync(count, list, NULL, flags, stream);
}

/* One copy with the attributes of a batch's; the legacy stream is as good as any for it. */
SIM_API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	if (!op || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct request r = boxed(op);

	return run(context, &r, stream, false);
}

SIM_API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                             CUmemcpyAttributes *attributes, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	if (!attributes || attributes->srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
	    attributes->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
	    attributes->flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
		return CUDA_ERROR_INVALID_VALUE;
	struct request r = linear(at_either(to), at_either(from), bytes);

	return run(context, &r, stream, false);
}

SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_MEMCPY3D *copy, CUcontext context)
{
	SIM_CALL();
	struct request r = box(copy, false);
	struct plan p;

	if (!node || !SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if (!SIM_HANDLE(context, SIM_TAG_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	CUresult result = plan(context, &r, &p);

	if (result != CUDA_SUCCESS || p.bytes == 0)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	*node = sim_graph_add(graph, &p.node, dependencies, count);
	return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- managed memory: it is always on its device here, so a prefetch is time and an advice is nothing --------------- */

static bool location_exists(CUmemLocation location)
{
	switch (location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device_get(location.id) != NULL;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return true;
	default:
		return false;
	}
}

static CUmemLocation location_of(CUdevice device)
{
	if (device == CU_DEVICE_CPU)
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
	return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

static bool managed(CUdeviceptr address, size_t bytes)
{
	struct sim_block block;

	sim_memory_lock();
	bool is = bytes && sim_block_at(address, &block) && block.range->kind == SIM_RANGE_MANAGED &&
	          bytes <= block.base + block.bytes - address;

	sim_memory_unlock();
	return is;
}

static CUresult prefetch(struct CUctx_st *context, CUdeviceptr address, size_t bytes, CUmemLocation to, CUstream handle)
{
	struct CUstream_st *stream = sim_stream(context, handle);

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!location_exists(to))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!managed(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->session)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (sim_held(stream))
		return sim_hold_work(stream, bytes / LINK_BYTES_PER_NS);
	stream->last = sim_submit(stream->context, SIM_OP_WORK, bytes / LINK_BYTES_PER_NS, 0);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return prefetch(context, address, bytes, location_of(to), stream);
}

SIM_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags,
                                       CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(context, address, bytes, to, stream);
}

static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
	    !managed(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	/* Two of the six mean no place and ignore it. */
	if (advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
	    advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION && !location_exists(location))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return advise(address, bytes, advice, location_of(device));
}

SIM_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return advise(address, bytes, advice, location);
}
