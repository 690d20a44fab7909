/* SPDX-License-Identifier: Apache-2.0 */
/* cuGraphAddNode: one call for all kinds of nodes, each added as by its own call. */
#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/graphs/graphs.h"

CUresult cuGraphAddKernelNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
CUresult cuGraphAddEmptyNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t);
CUresult cuGraphAddHostNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_HOST_NODE_PARAMS *);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *);
CUresult cuGraphAddChildGraphNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS_v3 *p)
{
	CUDA_KERNEL_NODE_PARAMS own = {
		.func = p->func,
		.gridDimX = p->gridDimX,
		.gridDimY = p->gridDimY,
		.gridDimZ = p->gridDimZ,
		.blockDimX = p->blockDimX,
		.blockDimY = p->blockDimY,
		.blockDimZ = p->blockDimZ,
		.sharedMemBytes = p->sharedMemBytes,
		.kernelParams = p->kernelParams,
		.extra = p->extra,
	};

	return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &own);
}

static CUresult add_memory(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS_v2 *p)
{
	CUDA_MEM_ALLOC_NODE_PARAMS own = { .poolProps = p->poolProps, .bytesize = p->bytesize };
	CUresult r = cuGraphAddMemAllocNode(node, graph, dependencies, count, &own);

	if (r == CUDA_SUCCESS)
		p->dptr = own.dptr;
	return r;
}

SIM_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUgraphNodeParams *params)
{
	SIM_CALL();
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return add_kernel(node, graph, dependencies, count, &params->kernel);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return cuGraphAddEmptyNode(node, graph, dependencies, count);
	case CU_GRAPH_NODE_TYPE_HOST:
		return cuGraphAddHostNode(
			node, graph, dependencies, count,
			&(CUDA_HOST_NODE_PARAMS){ .fn = params->host.fn, .userData = params->host.userData });
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return cuGraphAddChildGraphNode(node, graph, dependencies, count, params->graph.graph);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return add_memory(node, graph, dependencies, count, &params->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return cuGraphAddMemFreeNode(node, graph, dependencies, count, params->free.dptr);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return cuGraphAddBatchMemOpNode(
			node, graph, dependencies, count,
			&(CUDA_BATCH_MEM_OP_NODE_PARAMS){ .ctx = params->memOp.ctx,
		                                          .count = params->memOp.count,
		                                          .paramArray = params->memOp.paramArray,
		                                          .flags = params->memOp.flags });
	default:
		return CUDA_ERROR_NOT_SUPPORTED; /* here the other kinds have only their own calls */
	}
}

SIM_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	(void)edges; /* every edge waits for the whole node */
	return cuGraphAddNode(node, graph, dependencies, count, params);
}

SIM_API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
	return cuGraphAddNode_v2(node, graph, dependencies, edges, count, params);
}

SIM_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || node->params.type != CU_GRAPH_NODE_TYPE_GRAPH || !graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = node->child;
	return CUDA_SUCCESS;
}
