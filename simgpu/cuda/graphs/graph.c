/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as structures: nodes, edges, copies. */
#include "simgpu/cuda/graphs/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"

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
	sim_graph_objects_gone(graph);
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
	while (count-- > 0) /* backwards: a node comes after all nodes on which it depends */
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

struct CUgraph_st *sim_graph_copy(struct CUgraph_st *graph)
{
	struct CUgraph_st *g = sim_graph_make();
	struct CUgraphNode_st **made = calloc(graph->count + 1, sizeof(*made));
	uint32_t count = 0;
	bool whole = g && made;

	for (struct CUgraphNode_st *n = graph->first; whole && n; n = n->next) {
		n->mark = count;
		made[count] = sim_graph_add(g, &n->params, NULL, 0);
		whole = made[count] && (!n->child || (made[count]->child = sim_graph_copy(n->child)));
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
	if (g)
		sim_graph_objects_copied(graph, g);
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
	*clone = sim_graph_copy(graph);
	return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

/* The calling convention of all these lists: without an array they return the count, with one at most *count
 * entries. */
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
