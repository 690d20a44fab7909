/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of copies and fills: each describes its request, and transfer.c executes it. */
#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/work/transfer.h"

static struct sim_copy_end at_host(const void *address)
{
	return (struct sim_copy_end){ .type = CU_MEMORYTYPE_HOST, .host = (void *)(uintptr_t)address };
}

static struct sim_copy_end at_device(CUdeviceptr address)
{
	return (struct sim_copy_end){ .type = CU_MEMORYTYPE_DEVICE, .device = address };
}

static struct sim_copy_end at_either(CUdeviceptr address)
{
	return (struct sim_copy_end){ .type = CU_MEMORYTYPE_UNIFIED, .device = address };
}

static struct sim_copy_end at_array(CUarray array, size_t offset)
{
	return (struct sim_copy_end){ .type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset };
}

static struct sim_copy linear(struct sim_copy_end to, struct sim_copy_end from, size_t bytes)
{
	return (struct sim_copy){ .to = to, .from = from, .width = bytes, .height = 1, .depth = 1, .linear = true };
}

static struct sim_copy peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                            size_t bytes)
{
	struct sim_copy r = linear(at_device(to), at_device(from), bytes);

	r.to.context = to_context;
	r.from.context = from_context;
	if (!to_context || !from_context)
		r.error = CUDA_ERROR_INVALID_CONTEXT;
	return r;
}

static struct sim_copy plane(const CUDA_MEMCPY2D *c)
{
	if (!c)
		return (struct sim_copy){ .error = CUDA_ERROR_INVALID_VALUE };
	return (struct sim_copy){
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
static struct sim_copy box(const void *copy, bool between_peers)
{
	struct sim_copy r = { 0 };

	if (!copy) {
		r.error = CUDA_ERROR_INVALID_VALUE;
		return r;
	}
	memcpy(&r, copy, sizeof(CUDA_MEMCPY3D_PEER));
	if (!between_peers)
		r.from.context = r.to.context = NULL; /* reserved words in the plain form */
	else if (!r.from.context || !r.to.context)
		r.error = CUDA_ERROR_INVALID_CONTEXT;
	return r;
}

static struct sim_copy fill(CUdeviceptr to, size_t pitch, uint32_t element, uint32_t value, size_t columns, size_t rows)
{
	struct sim_copy r = { .to = at_device(to), .height = rows, .depth = 1, .element = element, .value = value };

	r.to.pitch = pitch;
	if (__builtin_mul_overflow(columns, element, &r.width) || to % element || pitch % element)
		r.error = CUDA_ERROR_INVALID_VALUE;
	return r;
}

/* Unit of the lengths in one copy of a batch: bytes between pointers, else elements of the array that takes part. */
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

static struct sim_copy_end operand(const CUmemcpy3DOperand *o, const CUextent3D *extent, size_t element,
                                   CUresult *ret_error)
{
	struct sim_copy_end e = { 0 };

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

static struct sim_copy boxed(const CUDA_MEMCPY3D_BATCH_OP *op)
{
	struct sim_copy r = { .height = op->extent.height, .depth = op->extent.depth };
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

/* --- entry points ------------------------------------------------------------------------------------------------- */

/* One line per entry point, as a table. */
/* clang-format off */
#define SYNC(name, wanted, ...)                                                                                        \
	SIM_API CUresult name(__VA_ARGS__)                                                                             \
	{                                                                                                              \
		SIM_CALL_CONTEXT(context);                                                                             \
		struct sim_copy r = wanted;                                                                             \
		return sim_copy_run(context, &r, NULL, true);                                                                   \
	}
#define ASYNC(name, wanted, ...)                                                                                       \
	SIM_API CUresult name(__VA_ARGS__, CUstream stream)                                                            \
	{                                                                                                              \
		SIM_CALL_CONTEXT(context);                                                                             \
		struct sim_copy r = wanted;                                                                             \
		return sim_copy_run(context, &r, stream, false);                                                                \
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
/* The first API version, with 32-bit addresses: no allocation has one, so these can only return errors. */
SYNC(cuMemcpyHtoD, linear(at_device(to), at_host(from), n), CUdeviceptr_v1 to, const void *from, unsigned n)
SYNC(cuMemcpyDtoH, linear(at_host(to), at_device(from), n), void *to, CUdeviceptr_v1 from, unsigned n)
/* clang-format on */

/* Not on the legacy stream, which would wait for other work in between. */
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
		struct sim_copy r = boxed(&list[i]);

		result = sim_copy_run(context, &r, stream, false);
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

/* One copy with the attributes of a batch; here the legacy stream is allowed. */
SIM_API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	if (!op || flags)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_copy r = boxed(op);

	return sim_copy_run(context, &r, stream, false);
}

SIM_API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                             CUmemcpyAttributes *attributes, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	if (!attributes || attributes->srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
	    attributes->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
	    attributes->flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
		return CUDA_ERROR_INVALID_VALUE;
	struct sim_copy r = linear(at_either(to), at_either(from), bytes);

	return sim_copy_run(context, &r, stream, false);
}

SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_MEMCPY3D *copy, CUcontext context)
{
	SIM_CALL();
	struct sim_copy r = box(copy, false);
	struct sim_copy_plan p;

	if (!node || !SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if (!SIM_HANDLE(context, SIM_TAG_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	CUresult result = sim_copy_plan(context, &r, &p);

	if (result != CUDA_SUCCESS || p.bytes == 0)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	*node = sim_graph_add(graph, &p.node, dependencies, count);
	return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
