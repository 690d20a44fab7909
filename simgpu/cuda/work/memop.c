/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that wait for values in memory, and write values. The host, another stream or another process may write a
 * value, so a stream whose value is not there yet is held (hold.h); a stream writes one when the work before it has
 * ended.
 */
#include "simgpu/cuda/work/memop.h"

#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/streams/streams.h"

#define MOST_OPS 255 /* "must be less than 256" */

static bool wide(CUstreamBatchMemOpType operation)
{
	return operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool satisfied(const CUstreamBatchMemOpParams *op)
{
	unsigned how = op->waitValue.flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH;
	uint64_t wanted = op->waitValue.value64, is, mask = UINT64_MAX, sign = UINT64_C(1) << 63;

	if (wide(op->operation)) {
		is = __atomic_load_n((const uint64_t *)(uintptr_t)op->waitValue.address, __ATOMIC_ACQUIRE);
	} else {
		mask = UINT32_MAX;
		sign = UINT64_C(1) << 31;
		wanted = op->waitValue.value;
		is = __atomic_load_n((const uint32_t *)(uintptr_t)op->waitValue.address, __ATOMIC_ACQUIRE);
	}
	switch (how) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return is == wanted;
	case CU_STREAM_WAIT_VALUE_AND:
		return (is & wanted) != 0;
	case CU_STREAM_WAIT_VALUE_NOR:
		return (~(is | wanted) & mask) != 0;
	default: /* at least, with wrap-around */
		return ((is - wanted) & sign) == 0;
	}
}

static bool ready(struct CUstream_st *stream, const void *argument)
{
	return sim_ready_idle(stream, NULL) && satisfied(argument);
}

static void write_value(struct CUstream_st *stream, void *argument)
{
	const CUstreamBatchMemOpParams *op = argument;

	(void)stream;
	if (wide(op->operation))
		__atomic_store_n((uint64_t *)(uintptr_t)op->writeValue.address, op->writeValue.value64,
		                 __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)(uintptr_t)op->writeValue.address, op->writeValue.value, __ATOMIC_RELEASE);
}

/* Memory that a device can access, of the device or the host, but not managed memory. */
static bool reachable(CUdeviceptr address, uint64_t bytes)
{
	struct sim_block block;

	if (address % bytes)
		return false;
	sim_memory_lock();
	bool found = sim_block_at(address, &block) ? block.range->kind != SIM_RANGE_MANAGED && block.accessible &&
	                                                     sim_range_covers(address, bytes)
	                                           : sim_host_covers(address, bytes);

	sim_memory_unlock();
	return found;
}

static CUresult check(const CUstreamBatchMemOpParams *op)
{
	switch (op->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		if ((op->waitValue.flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > CU_STREAM_WAIT_VALUE_NOR)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		if (op->writeValue.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
		return op->flushRemoteWrites.flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	case CU_STREAM_MEM_OP_BARRIER:
		return op->memoryBarrier.flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return reachable(op->waitValue.address, wide(op->operation) ? 8 : 4) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult put(struct CUstream_st *stream, const CUstreamBatchMemOpParams *op)
{
	bool idle = !sim_held(stream) && sim_ready_idle(stream, NULL);

	switch (op->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
		return idle && satisfied(op) ? CUDA_SUCCESS : sim_hold(stream, ready, NULL, op, sizeof(*op), NULL);
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		if (!idle)
			return sim_hold(stream, sim_ready_idle, write_value, op, sizeof(*op), NULL);
		write_value(stream, (void *)(uintptr_t)op);
		return CUDA_SUCCESS;
	default:
		return CUDA_SUCCESS; /* memory is always coherent here */
	}
}

CUresult sim_memops_put(struct CUstream_st *stream, const CUstreamBatchMemOpParams *ops, unsigned count)
{
	CUresult r = CUDA_SUCCESS;

	for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++)
		r = put(stream, &ops[i]);
	return r;
}

static CUresult node_of(unsigned count, const CUstreamBatchMemOpParams *ops, unsigned flags,
                        struct sim_node_params *ret)
{
	CUresult r = (count && !ops) || count > MOST_OPS || flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

	for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++)
		r = check(&ops[i]);
	*ret = (struct sim_node_params){ .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
		                         .argument = (void *)(uintptr_t)ops,
		                         .argument_bytes = count * sizeof(*ops) };
	return r;
}

SIM_API CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
	SIM_STREAM(s, stream);
	struct sim_node_params node;
	CUresult r = node_of(count, ops, flags, &node);

	if (r != CUDA_SUCCESS)
		return r;
	switch (sim_capture_or_run(s, &node, &r)) {
	case SIM_CAPTURED:
		return CUDA_SUCCESS;
	case SIM_CAPTURE_ERROR:
		return r;
	default:
		return sim_memops_put(s, ops, count);
	}
}

/* --- in graphs ---------------------------------------------------------------------------------------------------- */

SIM_API CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	SIM_CALL();
	struct sim_node_params own;

	if (!node || !params || !SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = node_of(params->count, params->paramArray, params->flags, &own);

	if (r != CUDA_SUCCESS)
		return r;
	*node = sim_graph_add(graph, &own, dependencies, count);
	return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || node->params.type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP || !params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){ .ctx = sim_current(),
		                                   .count = (unsigned)(node->params.argument_bytes /
		                                                       sizeof(CUstreamBatchMemOpParams)),
		                                   .paramArray = node->params.argument };
	return CUDA_SUCCESS;
}

/* --- single operations, and the flavours -------------------------------------------------------------------------- */

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define ONE(symbol, number, member, field, type)                                                                       \
	SIM_API CUresult symbol##_v2(CUstream stream, CUdeviceptr address, type value, unsigned flags)                 \
	{                                                                                                              \
		CUstreamBatchMemOpParams op = { .operation = number };                                                 \
                                                                                                                       \
		op.member.address = address;                                                                           \
		op.member.field = value;                                                                               \
		op.member.flags = flags;                                                                               \
		return cuStreamBatchMemOp_v2(stream, 1, &op, 0);                                                       \
	}                                                                                                              \
	SIM_API CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned flags)                      \
	{                                                                                                              \
		return symbol##_v2(stream, address, value, flags);                                                     \
	}                                                                                                              \
	SIM_API CUresult symbol##_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags)               \
	{                                                                                                              \
		return symbol##_v2(OWN(stream), address, value, flags);                                                \
	}                                                                                                              \
	SIM_API CUresult symbol##_v2_ptsz(CUstream stream, CUdeviceptr address, type value, unsigned flags)            \
	{                                                                                                              \
		return symbol##_v2(OWN(stream), address, value, flags);                                                \
	}

ONE(cuStreamWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32, waitValue, value, cuuint32_t)
ONE(cuStreamWaitValue64, CU_STREAM_MEM_OP_WAIT_VALUE_64, waitValue, value64, cuuint64_t)
ONE(cuStreamWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32, writeValue, value, cuuint32_t)
ONE(cuStreamWriteValue64, CU_STREAM_MEM_OP_WRITE_VALUE_64, writeValue, value64, cuuint64_t)

SIM_API CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
	return cuStreamBatchMemOp_v2(stream, count, ops, flags);
}

SIM_API CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
	return cuStreamBatchMemOp_v2(OWN(stream), count, ops, flags);
}

SIM_API CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops,
                                            unsigned flags)
{
	return cuStreamBatchMemOp_v2(OWN(stream), count, ops, flags);
}
