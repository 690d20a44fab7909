/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of graph nodes, and their effect when the graph is launched. */
#include "simgpu/cuda/work/graph_nodes.h"

#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/modules/modules.h"
#include "simgpu/cuda/pools/pools.h"

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    const struct sim_node_params *params)
{
	if (!node || !SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	*node = sim_graph_add(graph, params, dependencies, count);
	return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_kernel_params(const CUDA_KERNEL_NODE_PARAMS *p, struct sim_node_params *ret)
{
	struct CUctx_st *context = sim_current();

	if (!p || !SIM_HANDLE(p->func, SIM_TAG_FUNCTION) || !context)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (struct sim_node_params){
		.type = CU_GRAPH_NODE_TYPE_KERNEL,
		.kernel = *p,
		.duration_ns =
			sim_kernel_ns(p->func, sim_model_of(context), (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
		                      (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ, p->kernelParams),
	};
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_CALL();
	struct sim_node_params p;
	CUresult r = sim_kernel_params(params, &p);

	return r == CUDA_SUCCESS ? add(node, graph, dependencies, count, &p) : r;
}

SIM_API CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS wide = { 0 };

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&wide, params, sizeof(*params));
	return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &wide);
}

SIM_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || node->params.type != CU_GRAPH_NODE_TYPE_KERNEL || !params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = node->params.kernel;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_kernel_params(params, &node->params);
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	SIM_CALL();
	return add(node, graph, dependencies, count, &(struct sim_node_params){ .type = CU_GRAPH_NODE_TYPE_EMPTY });
}

static void call_host(void *argument)
{
	CUDA_HOST_NODE_PARAMS *p = argument;

	p->fn(p->userData);
}

SIM_API CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                    const CUDA_HOST_NODE_PARAMS *params)
{
	SIM_CALL();
	if (!params || !params->fn)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_HOST_NODE_PARAMS own = *params;

	return add(node, graph, dependencies, count,
	           &(struct sim_node_params){ .type = CU_GRAPH_NODE_TYPE_HOST,
	                                      .effect = call_host,
	                                      .argument = &own,
	                                      .argument_bytes = sizeof(own) });
}

static void fill(void *argument)
{
	CUDA_MEMSET_NODE_PARAMS *p = argument;

	for (size_t y = 0; y < p->height; y++)
		for (size_t x = 0; x < p->width; x++)
			memcpy((uint8_t *)(uintptr_t)p->dst + y * p->pitch + x * p->elementSize, &p->value,
			       p->elementSize);
}

SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	SIM_CALL();
	if (!context || context->tag != SIM_TAG_CONTEXT)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!params || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_MEMSET_NODE_PARAMS own = *params;

	return add(node, graph, dependencies, count,
	           &(struct sim_node_params){ .type = CU_GRAPH_NODE_TYPE_MEMSET,
	                                      .duration_ns =
	                                              sim_copy_ns(context, own.width * own.elementSize * own.height),
	                                      .effect = fill,
	                                      .argument = &own,
	                                      .argument_bytes = sizeof(own) });
}

static void take_memory(void *argument)
{
	sim_graph_memory_alloc(*(CUdeviceptr *)argument);
}

static void give_memory(void *argument)
{
	sim_graph_memory_free(*(CUdeviceptr *)argument);
}

static CUresult add_memory(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                           CUgraphNodeType type, CUdeviceptr address)
{
	return add(
		node, graph, dependencies, count,
		&(struct sim_node_params){ .type = type,
	                                   .effect = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? take_memory : give_memory,
	                                   .argument = &address,
	                                   .argument_bytes = sizeof(address) });
}

SIM_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	SIM_CALL_CONTEXT(context);
	if (!params || params->bytesize == 0 || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sim_graph_memory_make(context, params->bytesize, &params->dptr);

	return r == CUDA_SUCCESS
	               ? add_memory(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params->dptr)
	               : r;
}

SIM_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                       CUdeviceptr address)
{
	SIM_CALL();
	if (!address)
		return CUDA_ERROR_INVALID_VALUE;
	return add_memory(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE, address);
}

SIM_API CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                          size_t count, CUgraph child)
{
	SIM_CALL();
	if (!SIM_HANDLE(child, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r =
		add(node, graph, dependencies, count, &(struct sim_node_params){ .type = CU_GRAPH_NODE_TYPE_GRAPH });

	if (r == CUDA_SUCCESS && !((*node)->child = sim_graph_copy(child)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return r;
}
