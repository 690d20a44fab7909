/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered allocation: from a pool at the call, and under capture as nodes of the graph. */
#include "simgpu/cuda/pools/pools.h"

#include <string.h>

#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/streams/streams.h"

bool sim_pool_free(uint64_t address)
{
	sim_memory_lock();
	const struct sim_range *r = sim_range_at(address);
	bool graph = r && r->kind == SIM_RANGE_GRAPH;
	bool freed = r && ((r->kind == SIM_RANGE_POOL && sim_pool_give(address, NULL)) ||
	                   (r->kind == SIM_RANGE_IMPORT && sim_pool_import_free(address)));

	sim_memory_unlock();
	return graph ? sim_graph_memory_free(address) == CUDA_SUCCESS : freed;
}

static void graph_alloc_effect(void *argument)
{
	sim_graph_memory_alloc(*(CUdeviceptr *)argument);
}

static void graph_free_effect(void *argument)
{
	sim_graph_memory_free(*(CUdeviceptr *)argument);
}

static CUresult capture(struct CUstream_st *stream, CUgraphNodeType type, void (*effect)(void *), CUdeviceptr address)
{
	struct sim_node_params node = {
		.type = type, .effect = effect, .argument = &address, .argument_bytes = sizeof(address)
	};
	CUresult error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

	return sim_capture_or_run(stream, &node, &error) == SIM_CAPTURED ? CUDA_SUCCESS : error;
}

static CUresult alloc_async(struct CUctx_st *context, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                            bool any_pool, CUstream handle)
{
	struct CUstream_st *stream = sim_stream(context, handle);

	if (!address || bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->session) {
		CUdeviceptr made;
		CUresult r = sim_graph_memory_make(stream->context, bytes, &made);

		if (r == CUDA_SUCCESS)
			r = capture(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, graph_alloc_effect, made);
		if (r == CUDA_SUCCESS)
			*address = made;
		return r;
	}
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	sim_memory_lock();
	if (any_pool)
		pool = sim_pool_current(stream->context->device);
	if (!pool || !sim_pool_alive(pool) || pool->imported) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		uint64_t at = sim_pool_take(pool, bytes, stream->context);

		if (at) {
			*address = at;
			result = CUDA_SUCCESS;
		}
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return alloc_async(context, address, bytes, NULL, true, stream);
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return alloc_async(context, address, bytes, pool, false, stream);
}

static bool free_now(struct CUctx_st *context, CUdeviceptr address)
{
	return sim_pool_give(address, context) || sim_pool_import_free(address);
}

/* The memory is in use until a held stream has reached this point. */
static void free_held(struct CUstream_st *stream, void *argument)
{
	CUdeviceptr address;

	memcpy(&address, argument, sizeof(address));
	sim_memory_lock();
	free_now(stream->context, address);
	sim_memory_unlock();
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
	SIM_CALL_CONTEXT(context);
	struct CUstream_st *stream = sim_stream(context, handle);

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_memory_lock();
	const struct sim_range *r = sim_range_at(address);
	bool graph = r && r->kind == SIM_RANGE_GRAPH;
	bool held = sim_held(stream), ours = false, freed = false;
	uint64_t base, bytes;

	if (!graph && !stream->session && !held)
		freed = free_now(stream->context, address);
	else if (held && r)
		ours = (r->kind == SIM_RANGE_POOL && sim_pool_block(r, address, &base, &bytes) && base == address) ||
		       (r->kind == SIM_RANGE_IMPORT && r->owner && address == r->base + r->skip);

	sim_memory_unlock();
	if (graph && stream->session)
		return capture(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, graph_free_effect, address);
	if (graph)
		return sim_graph_memory_free(address);
	if (ours && !stream->session)
		return sim_hold(stream, NULL, free_held, &address, sizeof(address), NULL);
	return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
