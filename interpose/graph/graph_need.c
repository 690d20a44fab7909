/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a launch of a graph will take: its allocation nodes, less what may be reused. Memory freed by a node
 * may be reused by every allocation that comes after it in all orders, that is, that depends on it; drivers promise
 * that reuse for any sizes, because they map physical memory page by page. Where the graph cannot be read that far (too
 * large, edges that the driver does not report), the sum of all allocations is used: never less than the truth.
 */
#include "interpose/graph/graph_need.h"

#include <stdlib.h>

#include "interpose/driver/driver.h"
#include "nativecommon/footprint.h"
#include "interpose/driver/location.h"

#define PAGE_BYTES (UINT64_C(2) << 20)
#define MOST_STEPS UINT64_C(50000000) /* about 0.1 s, once per instantiation */
#define DEEPEST 16                    /* nesting of child graphs */

struct memory_node {
	uint32_t node; /* its place in the list of nodes */
	bool is_free;
	int8_t ordinal;
	CUdeviceptr address;
	uint64_t bytes; /* for a free node: bytes still to be reused */
};

struct reading {
	size_t nodes, edges, memory;
	CUgraphNode *node;
	struct memory_node *at;
	/* predecessors of node i are before[first[i]] up to before[first[i + 1]] */
	uint32_t *first, *before;
	uint32_t *order;           /* places in an order that respects the edges */
	uint32_t *visited, *queue; /* per search */
};

struct place {
	CUgraphNode node;
	uint32_t at;
};

static int by_handle(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct place *)a)->node, y = (uintptr_t)((const struct place *)b)->node;

	return x < y ? -1 : x > y;
}

static uint32_t place_of(const struct place *places, size_t count, CUgraphNode node)
{
	struct place wanted = { .node = node }, *found = bsearch(&wanted, places, count, sizeof(wanted), by_handle);

	return found ? found->at : UINT32_MAX;
}

static CUresult edges_of(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	CUgraphEdgeData *data;
	CUresult r = driver.cuGraphGetEdges ? driver.cuGraphGetEdges(graph, from, to, count) : CUDA_ERROR_NOT_FOUND;

	if (r == CUDA_SUCCESS || !driver.cuGraphGetEdges_v2)
		return r;
	/* only the second form reports edges with properties */
	data = from ? calloc(*count + 1, sizeof(*data)) : NULL;
	r = driver.cuGraphGetEdges_v2(graph, from, to, data, count);
	free(data);
	return r;
}

/* Reads the predecessors of each node, and computes an order. */
static bool read_edges(CUgraph graph, struct reading *g)
{
	CUgraphNode *from = NULL, *to = NULL;
	struct place *places = NULL;
	uint32_t *ends = NULL, *left = NULL, done = 0;
	bool whole = false;

	if (edges_of(graph, NULL, NULL, &g->edges) != CUDA_SUCCESS)
		return false;
	from = calloc(g->edges + 1, sizeof(CUgraphNode));
	to = calloc(g->edges + 1, sizeof(CUgraphNode));
	places = calloc(g->nodes, sizeof(*places));
	ends = calloc(2 * g->edges + 1, sizeof(*ends));
	left = calloc(g->nodes + 1, sizeof(*left));
	g->first = calloc(g->nodes + 2, sizeof(*g->first));
	g->before = calloc(g->edges + 1, sizeof(*g->before));
	g->order = calloc(g->nodes, sizeof(*g->order));
	g->visited = calloc(g->nodes, sizeof(*g->visited));
	g->queue = calloc(g->nodes, sizeof(*g->queue));
	if (!from || !to || !places || !ends || !left || !g->first || !g->before || !g->order || !g->visited ||
	    !g->queue || edges_of(graph, from, to, &g->edges) != CUDA_SUCCESS)
		goto out;
	for (size_t i = 0; i < g->nodes; i++)
		places[i] = (struct place){ g->node[i], (uint32_t)i };
	qsort(places, g->nodes, sizeof(*places), by_handle);
	for (size_t i = 0; i < g->edges; i++) {
		uint32_t a = place_of(places, g->nodes, from[i]), b = place_of(places, g->nodes, to[i]);

		if (a == UINT32_MAX || b == UINT32_MAX)
			goto out;
		ends[2 * i] = a;
		ends[2 * i + 1] = b;
		g->first[b + 1]++;
	}
	for (size_t i = 0; i < g->nodes; i++)
		g->first[i + 1] += g->first[i];
	for (size_t i = 0; i < g->edges; i++)
		g->before[g->first[ends[2 * i + 1]] + left[ends[2 * i + 1]]++] = ends[2 * i];
	/* order by the length of the longest path to a node: as many rounds as the graph is deep */
	for (size_t round = 0; done < g->nodes && round < g->nodes; round++) {
		uint32_t before = done;

		for (uint32_t i = 0; i < g->nodes; i++) {
			bool ready = g->visited[i] == 0;

			for (uint32_t k = g->first[i]; ready && k < g->first[i + 1]; k++)
				ready = g->visited[g->before[k]] != 0;
			if (ready) {
				g->visited[i] = 1;
				g->order[done++] = i;
			}
		}
		if (done == before || (uint64_t)round * (g->nodes + g->edges) > MOST_STEPS)
			goto out;
	}
	whole = done == g->nodes;
out:
	free(from);
	free(to);
	free(places);
	free(ends);
	free(left);
	return whole;
}

/* Mark with `stamp` all nodes on which node `at` depends. */
static void mark_before(struct reading *g, uint32_t at, uint32_t stamp)
{
	uint32_t head = 0, tail = 0;

	g->queue[tail++] = at;
	g->visited[at] = stamp;
	while (head < tail) {
		uint32_t n = g->queue[head++];

		for (uint32_t k = g->first[n]; k < g->first[n + 1]; k++) {
			if (g->visited[g->before[k]] != stamp) {
				g->visited[g->before[k]] = stamp;
				g->queue[tail++] = g->before[k];
			}
		}
	}
}

static void with_reuse(struct reading *g, uint64_t bytes[])
{
	struct memory_node **of_node = calloc(g->nodes, sizeof(*of_node));
	uint32_t stamp = 1; /* the value after read_edges() */

	for (size_t i = 0; of_node && i < g->memory; i++) {
		of_node[g->at[i].node] = &g->at[i];
		for (size_t k = 0; g->at[i].is_free && k < g->memory; k++)
			if (!g->at[k].is_free && g->at[k].address == g->at[i].address) {
				g->at[i].bytes = g->at[k].bytes;
				g->at[i].ordinal = g->at[k].ordinal;
			}
	}
	for (size_t i = 0; i < g->nodes; i++) {
		struct memory_node *m = of_node ? of_node[g->order[i]] : NULL;
		uint64_t want = m ? m->bytes : 0;

		if (!m || m->is_free)
			continue;
		mark_before(g, m->node, ++stamp);
		for (size_t k = 0; want && k < g->memory; k++) {
			struct memory_node *freed = &g->at[k];
			uint64_t reused;

			if (!freed->is_free || freed->ordinal != m->ordinal || g->visited[freed->node] != stamp)
				continue;
			reused = freed->bytes < want ? freed->bytes : want;
			freed->bytes -= reused;
			want -= reused;
		}
		bytes[m->ordinal] += want;
	}
	if (!of_node)
		for (size_t i = 0; i < g->memory; i++)
			if (!g->at[i].is_free)
				bytes[g->at[i].ordinal] += g->at[i].bytes;
	free(of_node);
}

static bool add_need(CUgraph graph, uint64_t bytes[], int depth);

/* The bodies of a conditional node, which by cuda.h may hold no memory nodes (12.9 to 13.5 say so). If a driver allows
 * them without reporting them (before CUDA 13.2), their memory is settled after the run. */
static bool bodies(CUgraphNode node, uint64_t bytes[], int depth)
{
	CUgraphNodeParams params = { .type = CU_GRAPH_NODE_TYPE_CONDITIONAL };
	bool any = false;

	if (!driver.cuGraphNodeGetParams || driver.cuGraphNodeGetParams(node, &params) != CUDA_SUCCESS ||
	    !params.conditional.phGraph_out)
		return false;
	for (unsigned i = 0; i < params.conditional.size; i++)
		any = add_need(params.conditional.phGraph_out[i], bytes, depth) || any;
	return any;
}

/* Add one node to the list if it allocates or frees memory, and the needs of graphs nested in it. */
static bool look_at(struct reading *g, uint32_t i, uint64_t bytes[], int depth)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc = { 0 };
	struct memory_node *m = &g->at[g->memory];
	CUgraphNodeType type;
	CUgraph child;

	if (driver.cuGraphNodeGetType(g->node[i], &type) != CUDA_SUCCESS)
		return false;
	if (type == CU_GRAPH_NODE_TYPE_GRAPH)
		return driver.cuGraphChildGraphNodeGetGraph &&
		       driver.cuGraphChildGraphNodeGetGraph(g->node[i], &child) == CUDA_SUCCESS &&
		       add_need(child, bytes, depth);
	if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		return bodies(g->node[i], bytes, depth);
	*m = (struct memory_node){ .node = i };
	if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && driver.cuGraphMemFreeNodeGetParams) {
		m->is_free = driver.cuGraphMemFreeNodeGetParams(g->node[i], &m->address) == CUDA_SUCCESS;
		g->memory += m->is_free;
		return false;
	}
	if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !driver.cuGraphMemAllocNodeGetParams ||
	    driver.cuGraphMemAllocNodeGetParams(g->node[i], &alloc) != CUDA_SUCCESS)
		return false;
	m->ordinal = (int8_t)location_ordinal(&alloc.poolProps.location);
	if (m->ordinal < 0 || m->ordinal >= GRAPH_ORDINALS)
		return false; /* memory of the host */
	m->address = alloc.dptr;
	m->bytes = footprint_up(alloc.bytesize, PAGE_BYTES);
	g->memory++;
	return true;
}

static bool add_need(CUgraph graph, uint64_t bytes[], int depth)
{
	struct reading g = { 0 };
	size_t allocations = 0;
	bool any = false;

	if (depth >= DEEPEST || !driver.cuGraphGetNodes || !driver.cuGraphNodeGetType ||
	    driver.cuGraphGetNodes(graph, NULL, &g.nodes) != CUDA_SUCCESS || g.nodes == 0 || g.nodes > UINT32_MAX / 4)
		return false;
	g.node = calloc(g.nodes, sizeof(*g.node));
	g.at = calloc(g.nodes, sizeof(*g.at));
	if (!g.node || !g.at || driver.cuGraphGetNodes(graph, g.node, &g.nodes) != CUDA_SUCCESS)
		goto out;
	for (uint32_t i = 0; i < g.nodes; i++)
		any = look_at(&g, i, bytes, depth + 1) || any;
	for (size_t i = 0; i < g.memory; i++)
		allocations += !g.at[i].is_free;
	if (allocations && allocations < g.memory && allocations * g.nodes < MOST_STEPS && read_edges(graph, &g) &&
	    allocations * (g.nodes + g.edges) < MOST_STEPS) {
		with_reuse(&g, bytes);
	} else {
		for (size_t i = 0; i < g.memory; i++)
			if (!g.at[i].is_free)
				bytes[g.at[i].ordinal] += g.at[i].bytes;
	}
out:
	free(g.node);
	free(g.at);
	free(g.first);
	free(g.before);
	free(g.order);
	free(g.visited);
	free(g.queue);
	return any;
}

bool graph_need(CUgraph graph, uint64_t ret_bytes[GRAPH_ORDINALS])
{
	for (int i = 0; i < GRAPH_ORDINALS; i++)
		ret_bytes[i] = 0;
	return graph && add_need(graph, ret_bytes, 0);
}
