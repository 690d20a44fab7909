/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: a private copy each. A launch is one operation, as long as all of its nodes together. */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/pools/pools.h"
#include "simgpu/cuda/streams/streams.h"
#include "simgpu/cuda/work/graph_nodes.h"
#include "simgpu/cuda/work/memop.h"

struct CUgraphExec_st {
	uint32_t tag;
	struct CUgraph_st *graph; /* a private copy */
	unsigned long long flags;
};

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	SIM_CALL();
	if (!exec || !SIM_HANDLE(graph, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUgraphExec_st *e = calloc(1, sizeof(*e));

	if (!e || !(e->graph = sim_graph_copy(graph))) {
		free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	e->tag = SIM_TAG_EXEC;
	e->flags = flags;
	*exec = e;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes)
{
	if (node)
		*node = NULL;
	if (log && bytes)
		*log = 0;
	return cuGraphInstantiateWithFlags(exec, graph, 0);
}

SIM_API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t bytes)
{
	return cuGraphInstantiate_v2(exec, graph, node, log, bytes);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);

SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult r = cuGraphInstantiateWithFlags(exec, graph, params ? params->flags : 0);

	if (r == CUDA_SUCCESS && params && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
		r = cuGraphUpload(*exec, params->hUploadStream);
		if (r != CUDA_SUCCESS)
			cuGraphExecDestroy(*exec);
	}
	if (params)
		params->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
	return r;
}

SIM_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	SIM_CALL();
	if (!SIM_HANDLE(exec, SIM_TAG_EXEC))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_graph_free(exec->graph);
	exec->tag = 0;
	free(exec);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	SIM_CALL();
	if (!SIM_HANDLE(exec, SIM_TAG_EXEC) || !SIM_HANDLE(graph, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	if (info)
		memset(info, 0, sizeof(*info));
	if (exec->graph->count != graph->count) {
		if (info)
			info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	struct CUgraph_st *fresh = sim_graph_copy(graph);

	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_graph_free(exec->graph);
	exec->graph = fresh;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_CALL();
	struct sim_node_params p;

	if (!SIM_HANDLE(exec, SIM_TAG_EXEC) || !SIM_HANDLE(node, SIM_TAG_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sim_kernel_params(params, &p);
	/* The n-th node of the graph is the n-th of its executable copy. */
	struct CUgraphNode_st *own = exec->graph->first;

	for (struct CUgraphNode_st *n = node->graph->first; n && n != node && own; n = n->next)
		own = own->next;
	if (r == CUDA_SUCCESS && own)
		own->params = p;
	return r == CUDA_SUCCESS && !own ? CUDA_ERROR_INVALID_VALUE : r;
}

SIM_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	SIM_CALL();
	(void)stream;
	if (!SIM_HANDLE(exec, SIM_TAG_EXEC))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_graph_memory_map(exec->graph, exec->flags, false);
}

static uint64_t duration(const struct CUgraph_st *graph)
{
	uint64_t sum = 0;

	for (const struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		uint64_t ns = n->child ? duration(n->child) : n->params.duration_ns;

		sum = ns > SIM_FOREVER - sum ? SIM_FOREVER : sum + ns;
	}
	return sum;
}

static void effects(const struct CUgraph_st *graph)
{
	for (const struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		if (n->child)
			effects(n->child);
		if (n->params.effect)
			n->params.effect(n->params.argument);
	}
}

static bool has_memops(const struct CUgraph_st *graph)
{
	for (const struct CUgraphNode_st *n = graph->first; n; n = n->next)
		if (n->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP || (n->child && has_memops(n->child)))
			return true;
	return false;
}

/* A node queued for a held stream, followed by its argument, because the executable may be destroyed before it runs. */
struct kept {
	uint64_t duration_ns;
	void (*effect)(void *argument);
	_Alignas(16) unsigned char argument[256];
};

static void run_kept(struct CUstream_st *stream, void *argument)
{
	struct kept *k = argument;

	if (k->duration_ns)
		stream->last = sim_submit(stream->context, SIM_OP_WORK, k->duration_ns, 0);
	if (k->effect)
		k->effect(k->argument);
}

/* Node by node, in order: some wait for values in memory, or all of them for a held stream. */
static CUresult put_nodes(struct CUstream_st *s, const struct CUgraph_st *graph)
{
	CUresult r = CUDA_SUCCESS;

	for (const struct CUgraphNode_st *n = graph->first; n && r == CUDA_SUCCESS; n = n->next) {
		const struct sim_node_params *p = &n->params;
		struct kept k = { .duration_ns = n->child ? 0 : p->duration_ns, .effect = p->effect };

		if (n->child)
			r = put_nodes(s, n->child);
		if (p->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
			r = sim_memops_put(s, p->argument,
			                   (unsigned)(p->argument_bytes / sizeof(CUstreamBatchMemOpParams)));
			continue;
		}
		if (p->argument_bytes > sizeof(k.argument))
			return CUDA_ERROR_NOT_SUPPORTED;
		if (p->argument_bytes)
			memcpy(k.argument, p->argument, p->argument_bytes);
		if (r == CUDA_SUCCESS && (k.duration_ns || k.effect))
			r = sim_hold(s, p->type == CU_GRAPH_NODE_TYPE_HOST ? sim_ready_idle : NULL, run_kept, &k,
			             sizeof(k), NULL);
	}
	return r;
}

SIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	struct CUstream_st *s = sim_stream(context, stream);

	if (!SIM_HANDLE(exec, SIM_TAG_EXEC) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->session)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult r = sim_graph_memory_map(exec->graph, exec->flags, true);

	if (r != CUDA_SUCCESS)
		return r;
	if (sim_held(s) || has_memops(exec->graph))
		return put_nodes(s, exec->graph);
	effects(exec->graph);
	s->last = sim_submit(s->context, SIM_OP_WORK, duration(exec->graph), 0);
	return CUDA_SUCCESS;
}
