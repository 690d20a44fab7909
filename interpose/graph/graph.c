/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executable graphs: the memory of their nodes, and the calls that change them.
 *
 * Allocation nodes take no memory when they are made or instantiated; the device takes physical memory when the graph
 * is uploaded or first launched, keeps it for the next launch, shares it among graphs that cannot run at one time, and
 * gives it back by cuDeviceGraphMemTrim alone. So an executable is noted with the memory it may need (graph_need.c); an
 * upload or launch that may map it is charged so much before, and settled by the device's own figure after (pool.c). A
 * launch in the same place as the last one maps nothing new, and is only settled. When the need does not fit, the
 * device's unused graph memory is trimmed; then the stream is synchronised, since its graphs may be using the rest;
 * then the launch fails with out of memory.
 */
#include "interpose/compute/door.h"
#include "interpose/compute/rules/cost.h"
#include "interpose/driver/driver.h"
#include "interpose/graph/graph_need.h"
#include "interpose/memory/pool.h"
#include "interpose/memory/ptrmap.h"
#include "interpose/tenant/capture.h"
#include "interpose/tenant/guest.h"

/* The charge in advance of one upload or launch. */
struct graph_growth {
	bool any; /* else the other fields are not filled in */
	CUgraphExec exec;
	uint32_t place;
	struct pool *pool[GRAPH_ORDINALS];
	uint64_t bytes[GRAPH_ORDINALS];
};

static uint32_t noted; /* executables with memory so far; 0: the hooks here cost nothing */

static uint64_t key_of(CUgraphExec exec, int ordinal)
{
	return (uint64_t)(uintptr_t)exec ^ (uint64_t)ordinal << 56; /* user addresses have 47 bits, or 56 */
}

/* The place where a graph is mapped: its stream, and the number of trims so far. Never 0. */
static uint32_t place_of(CUstream stream, bool per_thread)
{
	uint64_t tag = (uint64_t)(uintptr_t)(stream || !per_thread ? stream : CU_STREAM_PER_THREAD);

	tag = (tag ^ (uint64_t)pool_graph_trims() << 48) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(tag >> 32) | 1;
}

static void forget(CUgraphExec exec)
{
	struct ptrmap_entry entry;

	for (int i = 0; i < GRAPH_ORDINALS && __atomic_load_n(&noted, __ATOMIC_RELAXED); i++)
		ptrmap_take(PTRMAP_GRAPH, key_of(exec, i), &entry);
}

static bool note(CUgraphExec exec, const uint64_t bytes[], uint32_t place)
{
	for (int i = 0; i < GRAPH_ORDINALS; i++) {
		struct ptrmap_entry entry = { .key = key_of(exec, i),
			                      .bytes = bytes[i],
			                      .owner = place,
			                      .kind = PTRMAP_GRAPH,
			                      .device = (int8_t)guest_device_of_ordinal(i) };

		if (bytes[i] && !ptrmap_put(&entry))
			return false;
	}
	__atomic_fetch_add(&noted, 1, __ATOMIC_RELAXED);
	return true;
}

/* --- before and after a call that maps ---------------------------------------------------------------------------- */

static void give_up(struct graph_growth *g, int count)
{
	for (int i = 0; i < count; i++)
		if (g->pool[i])
			pool_grow_end(g->pool[i], g->bytes[i]);
	g->any = false;
}

/* `again`: the stream has been synchronised. */
static CUresult take(struct graph_growth *g, int ordinal, int device, CUstream stream, bool per_thread)
{
	CUresult (*wait)(CUstream) = per_thread ? driver.cuStreamSynchronize_ptsz : driver.cuStreamSynchronize;
	struct pool *p = device >= 0 ? pool_of_graphs(device, ordinal) : NULL;
	CUresult r = p ? pool_grow_begin(p, g->bytes[ordinal]) : CUDA_ERROR_OUT_OF_MEMORY;

	if (r != CUDA_SUCCESS && p && g->bytes[ordinal] <= guest_memory_limit(device) && wait &&
	    wait(stream) == CUDA_SUCCESS)
		r = pool_grow_begin(p, g->bytes[ordinal]);
	g->pool[ordinal] = r == CUDA_SUCCESS ? p : NULL;
	return r;
}

/* `bytes` NULL: as noted for the executable. */
static CUresult begin(struct graph_growth *g, CUgraphExec exec, const uint64_t bytes[], CUstream stream,
                      bool per_thread)
{
	struct ptrmap_entry entry = { 0 };

	*g = (struct graph_growth){ .exec = exec, .place = place_of(stream, per_thread) };
	for (int i = 0; i < GRAPH_ORDINALS; i++) {
		bool mapped = false;
		int device = guest_device_of_ordinal(i);
		CUresult r;

		if (bytes) {
			g->bytes[i] = bytes[i];
		} else if (ptrmap_get(PTRMAP_GRAPH, key_of(exec, i), &entry)) {
			g->bytes[i] = entry.bytes;
			mapped = entry.owner == g->place;
		}
		if (!g->bytes[i])
			continue;
		g->any = true;
		if (mapped)
			g->bytes[i] = 0;
		r = take(g, i, device, stream, per_thread);
		if (r != CUDA_SUCCESS) {
			give_up(g, i);
			return r;
		}
	}
	g->place = place_of(stream, per_thread); /* making room may have been a trim, which changes the place */
	return CUDA_SUCCESS;
}

static void end(struct graph_growth *g, CUresult result)
{
	struct ptrmap_entry entry;

	for (int i = 0; i < GRAPH_ORDINALS; i++) {
		if (!g->pool[i])
			continue;
		if (result == CUDA_SUCCESS && g->exec && ptrmap_take(PTRMAP_GRAPH, key_of(g->exec, i), &entry)) {
			entry.owner = g->place;
			ptrmap_put(&entry);
		}
		pool_grow_end(g->pool[i], g->bytes[i]);
	}
}

/* CUDA_ERROR_OUT_OF_MEMORY: the need does not fit, and nothing is charged. After success, call graph_memory_end(). */
static CUresult graph_memory_begin(struct graph_growth *g, CUgraphExec exec, CUstream stream, bool per_thread)
{
	CUresult r = CUDA_SUCCESS;

	g->any = false;
	if (__builtin_expect(!__atomic_load_n(&noted, __ATOMIC_RELAXED), 1) || !guest_enter())
		return CUDA_SUCCESS;
	if (!capture_records(stream, per_thread))
		r = begin(g, exec, NULL, stream, per_thread);
	guest_leave();
	return r;
}

static void graph_memory_end(struct graph_growth *g, CUresult result)
{
	if (__builtin_expect(!g->any, 1) || !guest_enter())
		return;
	end(g, result);
	guest_leave();
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	CUresult r;

	if (!driver.cuDeviceGraphMemTrim)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuDeviceGraphMemTrim(dev);
	r = pool_trim_graphs(dev);
	if (guest_device_of_ordinal(dev) >= 0)
		pool_refresh(guest_device_of_ordinal(dev));
	guest_leave();
	return r;
}

static CUresult upload(CUgraphExec exec, CUstream stream, bool per_thread, CUresult (*real)(CUgraphExec, CUstream))
{
	struct graph_growth g;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	r = graph_memory_begin(&g, exec, stream, per_thread);
	if (r != CUDA_SUCCESS)
		return r;
	r = real(exec, stream);
	graph_memory_end(&g, r);
	return r;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	return upload(exec, stream, false, driver.cuGraphUpload);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return upload(exec, stream, true, driver.cuGraphUpload_ptsz);
}

/* --- instantiation: the memory it will need ----------------------------------------------------------------------- */

/* The executable exists: note what it may take, or destroy it. */
static CUresult instantiated(CUgraphExec *exec, CUgraph graph, CUresult r)
{
	uint64_t bytes[GRAPH_ORDINALS];

	if (r != CUDA_SUCCESS || !exec || !guest_enter())
		return r;
	if (graph_need(graph, bytes) && !note(*exec, bytes, 0)) {
		forget(*exec);
		if (driver.cuGraphExecDestroy)
			driver.cuGraphExecDestroy(*exec);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
	if (!driver.cuGraphInstantiate)
		return CUDA_ERROR_NOT_FOUND;
	return instantiated(exec, graph, driver.cuGraphInstantiate(exec, graph, error_node, log, log_bytes));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
	if (!driver.cuGraphInstantiate_v2)
		return CUDA_ERROR_NOT_FOUND;
	return instantiated(exec, graph, driver.cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	if (!driver.cuGraphInstantiateWithFlags)
		return CUDA_ERROR_NOT_FOUND;
	return instantiated(exec, graph, driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

/* With CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, instantiating is an upload too. */
static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread,
                            CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *))
{
	uint64_t bytes[GRAPH_ORDINALS];
	struct graph_growth g;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!exec || !params || !(params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) || !guest_enter())
		return instantiated(exec, graph, real(exec, graph, params));
	if (!graph_need(graph, bytes)) {
		r = real(exec, graph, params);
	} else if ((r = begin(&g, NULL, bytes, params->hUploadStream, per_thread)) != CUDA_SUCCESS) {
		params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
		params->hErrNode_out = NULL;
	} else {
		r = real(exec, graph, params);
		end(&g, r);
		if (r == CUDA_SUCCESS && !note(*exec, bytes, g.place)) {
			forget(*exec);
			if (driver.cuGraphExecDestroy)
				driver.cuGraphExecDestroy(*exec);
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	guest_leave();
	return r;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return with_params(exec, graph, params, false, driver.cuGraphInstantiateWithParams);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return with_params(exec, graph, params, true, driver.cuGraphInstantiateWithParams_ptsz);
}

/* --- launch: one key per executable, re-timed when it changes ----------------------------------------------------- */

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread, CUresult (*real)(CUgraphExec, CUstream))
{
	struct throttle_ticket ticket;
	struct graph_growth growth;
	CUresult result;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	result = graph_memory_begin(&growth, exec, stream, per_thread);
	if (result != CUDA_SUCCESS)
		return result;
	result = throttle_before(&ticket, exec, NULL, per_thread ? own_stream(stream) : stream);
	if (result == CUDA_SUCCESS) {
		result = real(exec, stream);
		throttle_after(THROTTLE_LAUNCH, &ticket, result);
	}
	graph_memory_end(&growth, result);
	return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, false, driver.cuGraphLaunch);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch(exec, stream, true, driver.cuGraphLaunch_ptsz);
}

/* --- calls that change an executable: its launches are timed again ------------------------------------------------ */

/* The key of a graph depends on the device on which it is launched; changes are rare, so all of its keys are
 * re-timed. */
static CUresult changed(CUgraphExec exec, CUresult result)
{
	for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
		cost_relearn(cost_key(exec, NULL, device));
	return result;
}

/* The executable takes over another graph's parameters, memory included. */
static CUresult updated(CUgraphExec exec, CUgraph graph, CUresult result)
{
	if (result == CUDA_SUCCESS && __atomic_load_n(&noted, __ATOMIC_RELAXED)) {
		forget(exec);
		instantiated(&exec, graph, result);
	}
	return changed(exec, result);
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *result)
{
	if (!driver.cuGraphExecUpdate)
		return CUDA_ERROR_NOT_FOUND;
	return updated(exec, graph, driver.cuGraphExecUpdate(exec, graph, error_node, result));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
	if (!driver.cuGraphExecUpdate_v2)
		return CUDA_ERROR_NOT_FOUND;
	return updated(exec, graph, driver.cuGraphExecUpdate_v2(exec, graph, info));
}

/* A call that sets a node's parameters: the same wrapper for all kinds of nodes. */
#define EXEC_CHANGE(symbol, params, arguments)                                                                         \
	CUresult symbol params                                                                                         \
	{                                                                                                              \
		if (!driver.symbol)                                                                                    \
			return CUDA_ERROR_NOT_FOUND;                                                                   \
		return changed(exec, driver.symbol arguments);                                                         \
	}

EXEC_CHANGE(cuGraphExecKernelNodeSetParams,
            (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params), (exec, node, params))
EXEC_CHANGE(cuGraphExecKernelNodeSetParams_v2,
            (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params), (exec, node, params))
EXEC_CHANGE(cuGraphExecMemcpyNodeSetParams,
            (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context),
            (exec, node, params, context))
EXEC_CHANGE(cuGraphExecMemsetNodeSetParams,
            (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context),
            (exec, node, params, context))
EXEC_CHANGE(cuGraphExecHostNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params),
            (exec, node, params))
EXEC_CHANGE(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph child),
            (exec, node, child))
EXEC_CHANGE(cuGraphExecBatchMemOpNodeSetParams,
            (CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params), (exec, node, params))
EXEC_CHANGE(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params),
            (exec, node, params))
EXEC_CHANGE(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned int enabled), (exec, node, enabled))

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	if (!driver.cuGraphExecDestroy)
		return CUDA_ERROR_NOT_FOUND;
	forget(exec); /* before the driver may reuse the handle for a new one */
	return changed(exec, driver.cuGraphExecDestroy(exec));
}
