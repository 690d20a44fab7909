/* SPDX-License-Identifier: Apache-2.0 */
/* Building, instantiating and launching graphs. A launch is one operation as long as all its nodes together. */
#include "interpose/sim/graph.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/sim/arena.h"

struct CUgraphExec_st {
	uint32_t tag;
	struct CUgraph_st *graph; /* a private copy */
};

struct CUgraph_st *sim_graph_make(void)
{
	struct CUgraph_st *g = calloc(1, sizeof(*g));

	if (g)
		g->tag = SIM_TAG_GRAPH;
	return g;
}

static void node_free(struct CUgraphNode_st *n)
{
	if (n->child)
		sim_graph_free(n->child);
	free(n->params.argument);
	free(n->dependency);
	n->tag = 0;
	free(n);
}

void sim_graph_free(struct CUgraph_st *graph)
{
	for (struct CUgraphNode_st *n = graph->first, *next; n; n = next) {
		next = n->next;
		node_free(n);
	}
	graph->tag = 0;
	free(graph);
}

static bool depend(struct CUgraphNode_st *n, struct CUgraphNode_st *on)
{
	for (size_t i = 0; i < n->dependencies; i++)
		if (n->dependency[i] == on)
			return true;
	struct CUgraphNode_st **grown = realloc(n->dependency, (n->dependencies + 1) * sizeof(*grown));

	if (!grown)
		return false;
	n->dependency = grown;
	n->dependency[n->dependencies++] = on;
	return true;
}

struct CUgraphNode_st *sim_graph_add(struct CUgraph_st *graph, const struct sim_node_params *params,
                                     struct CUgraphNode_st *const *dependencies, size_t count)
{
	struct CUgraphNode_st *n = calloc(1, sizeof(*n));

	if (!n)
		return NULL;
	n->tag = SIM_TAG_NODE;
	n->graph = graph;
	n->params = *params;
	n->params.argument = NULL;
	if (params->argument_bytes) {
		n->params.argument = malloc(params->argument_bytes);
		if (!n->params.argument) {
			free(n);
			return NULL;
		}
		memcpy(n->params.argument, params->argument, params->argument_bytes);
	}
	for (size_t i = 0; i < count; i++) {
		if (!depend(n, dependencies[i])) {
			node_free(n);
			return NULL;
		}
	}
	if (graph->last)
		graph->last->next = n;
	else
		graph->first = n;
	graph->last = n;
	graph->count++;
	return n;
}

bool sim_graph_reaches(struct CUgraph_st *graph, struct CUgraphNode_st *const *tips, unsigned tip_count,
                       struct CUgraphNode_st *const *others, unsigned other_count)
{
	struct CUgraphNode_st **all = calloc(graph->count + 1, sizeof(*all));
	size_t count = 0;
	bool reached = all != NULL;

	for (struct CUgraphNode_st *n = graph->first; all && n; n = n->next) {
		n->mark = 0;
		all[count++] = n;
	}
	for (unsigned i = 0; i < tip_count; i++)
		tips[i]->mark = 1;
	while (count-- > 0) /* backwards: a node comes after all it depends on */
		if (all[count]->mark)
			for (size_t i = 0; i < all[count]->dependencies; i++)
				all[count]->dependency[i]->mark = 1;
	for (unsigned i = 0; i < other_count; i++)
		reached = reached && others[i]->mark;
	free(all);
	return reached;
}

static void forget(struct CUgraphNode_st *n, const struct CUgraphNode_st *on)
{
	for (size_t i = 0; i < n->dependencies; i++)
		if (n->dependency[i] == on)
			n->dependency[i--] = n->dependency[--n->dependencies];
}

static struct CUgraph_st *copy(struct CUgraph_st *graph)
{
	struct CUgraph_st *g = sim_graph_make();
	struct CUgraphNode_st **made = calloc(graph->count + 1, sizeof(*made));
	uint32_t count = 0;
	bool whole = g && made;

	for (struct CUgraphNode_st *n = graph->first; whole && n; n = n->next) {
		n->mark = count;
		made[count] = sim_graph_add(g, &n->params, NULL, 0);
		whole = made[count] && (!n->child || (made[count]->child = copy(n->child)));
		count++;
	}
	for (struct CUgraphNode_st *n = graph->first; whole && n; n = n->next)
		for (size_t i = 0; whole && i < n->dependencies; i++)
			whole = depend(made[n->mark], made[n->dependency[i]->mark]);
	free(made);
	if (!whole && g) {
		sim_graph_free(g);
		g = NULL;
	}
	return g;
}

SIM_API CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
	SIM_CALL();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = sim_graph_make();
	return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphDestroy(CUgraph graph)
{
	SIM_CALL();
	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_graph_free(graph);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
	SIM_CALL();
	if (!clone || !SIM_HANDLE(graph, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	*clone = copy(graph);
	return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                    const struct sim_node_params *params)
{
	if (!node || !SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	*node = sim_graph_add(graph, params, dependencies, count);
	return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult kernel_params(const CUDA_KERNEL_NODE_PARAMS *p, struct sim_node_params *ret)
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
	CUresult r = kernel_params(params, &p);

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
	return kernel_params(params, &node->params);
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

	if (r == CUDA_SUCCESS && !((*node)->child = copy(child)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return r;
}

SIM_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	SIM_CALL();
	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && (!from || !to)))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!SIM_HANDLE(from[i], SIM_TAG_NODE) || !SIM_HANDLE(to[i], SIM_TAG_NODE) || from[i]->graph != graph ||
		    to[i]->graph != graph || from[i] == to[i])
			return CUDA_ERROR_INVALID_VALUE;
		if (!depend(to[i], from[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	SIM_CALL();
	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || (count && (!from || !to)))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		forget(to[i], from[i]);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphDestroyNode(CUgraphNode node)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUgraph_st *graph = node->graph;
	struct CUgraphNode_st *before = NULL;

	for (struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		forget(n, node);
		if (n->next == node)
			before = n;
	}
	if (before)
		before->next = node->next;
	else
		graph->first = node->next;
	if (graph->last == node)
		graph->last = before;
	graph->count--;
	node_free(node);
	return CUDA_SUCCESS;
}

/* The protocol of all these lists: with no array the count, with one at most *count entries. */
static void list_add(CUgraphNode *list, size_t room, size_t *at, CUgraphNode node)
{
	if (list && *at < room)
		list[*at] = node;
	(*at)++;
}

static void list_end(const CUgraphNode *list, size_t *count, size_t found)
{
	*count = list && *count < found ? *count : found;
}

SIM_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *list, size_t *count)
{
	SIM_CALL();
	size_t found = 0;

	if (!SIM_HANDLE(node, SIM_TAG_NODE) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < node->dependencies; i++)
		list_add(list, *count, &found, node->dependency[i]);
	list_end(list, count, found);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *list, size_t *count)
{
	SIM_CALL();
	size_t found = 0;

	if (!SIM_HANDLE(node, SIM_TAG_NODE) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct CUgraphNode_st *n = node->graph->first; n; n = n->next)
		for (size_t i = 0; i < n->dependencies; i++)
			if (n->dependency[i] == node)
				list_add(list, *count, &found, n);
	list_end(list, count, found);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *list, size_t *count)
{
	SIM_CALL();
	size_t found = 0;

	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct CUgraphNode_st *n = graph->first; n; n = n->next)
		if (n->dependencies == 0)
			list_add(list, *count, &found, n);
	list_end(list, count, found);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	SIM_CALL();
	size_t found = 0, room;

	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || !count || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	room = *count;
	for (struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		for (size_t i = 0; i < n->dependencies; i++) {
			size_t same = found;

			list_add(from, room, &found, n->dependency[i]);
			list_add(to, room, &same, n);
		}
	}
	list_end(from, count, found);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *list, size_t *count)
{
	SIM_CALL();
	size_t found = 0;

	if (!SIM_HANDLE(graph, SIM_TAG_GRAPH) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct CUgraphNode_st *n = graph->first; n; n = n->next)
		list_add(list, *count, &found, n);
	list_end(list, count, found);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->params.type;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	SIM_CALL();
	(void)flags;
	if (!exec || !SIM_HANDLE(graph, SIM_TAG_GRAPH))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUgraphExec_st *e = calloc(1, sizeof(*e));

	if (!e || !(e->graph = copy(graph))) {
		free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	e->tag = SIM_TAG_EXEC;
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

SIM_API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult r = cuGraphInstantiateWithFlags(exec, graph, params ? params->flags : 0);

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
	struct CUgraph_st *fresh = copy(graph);

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
	CUresult r = kernel_params(params, &p);
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
	return SIM_HANDLE(exec, SIM_TAG_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

SIM_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	struct CUstream_st *s = sim_stream(context, stream);

	if (!SIM_HANDLE(exec, SIM_TAG_EXEC) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->session)
		return CUDA_ERROR_NOT_SUPPORTED;
	effects(exec->graph);
	s->last = sim_submit(s->context, SIM_OP_WORK, duration(exec->graph), 0);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_CALL();
	(void)attribute;
	if (!sim_device_get(device) || !value)
		return CUDA_ERROR_INVALID_VALUE;
	*(cuuint64_t *)value = 0; /* graphs of the simulator hold no memory of their own */
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	SIM_CALL();
	return sim_device_get(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
