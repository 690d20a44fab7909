/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of graph nodes. Addresses are assigned when a node is made. Physical memory comes when an executable graph is
 * uploaded or launched, from the memory that the device has reserved for this process's graphs: the reservation grows
 * to the largest need of the nodes at one time, stays after the memory is freed, and returns to the device by
 * cuDeviceGraphMemTrim alone.
 */
#include "simgpu/cuda/pools/pools.h"

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/ranges/ranges.h"

#define DEVICES 64

/* The counters of this process, with the memory lock held. */
static struct {
	uint64_t reserved, reserved_high;
	uint64_t used, used_high; /* between an allocation node and its free */
} pool[DEVICES];

CUresult sim_graph_memory_make(struct CUctx_st *context, uint64_t bytes, CUdeviceptr *ret_address)
{
	sim_memory_lock();
	struct sim_range *r = sim_range_make(bytes, SIM_PAGE);

	if (r) {
		r->kind = SIM_RANGE_GRAPH;
		r->bytes = bytes;
		r->device = context->device;
		r->context = context;
		*ret_address = r->base;
	}
	sim_memory_unlock();
	return r ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct sim_range *range_of(CUdeviceptr address)
{
	struct sim_range *r = sim_range_at(address);

	return r && r->kind == SIM_RANGE_GRAPH && r->base == address ? r : NULL;
}

static bool grow(int device, uint64_t needed)
{
	uint64_t more = needed > pool[device].reserved ? needed - pool[device].reserved : 0;

	if (more && !sim_charge_hard(sim_device_get(device), more))
		return false;
	pool[device].reserved += more;
	if (pool[device].reserved > pool[device].reserved_high)
		pool[device].reserved_high = pool[device].reserved;
	return true;
}

static void put(struct sim_range *r)
{
	pool[r->device].used -= r->charged;
	r->charged = 0;
}

CUresult sim_graph_memory_alloc(CUdeviceptr address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	struct sim_range *r = range_of(address);

	if (r && r->charged == 0) {
		uint64_t bytes = r->pages * SIM_PAGE;

		result = grow(r->device, pool[r->device].used + bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		if (result == CUDA_SUCCESS) {
			r->charged = bytes;
			pool[r->device].used += bytes;
			if (pool[r->device].used > pool[r->device].used_high)
				pool[r->device].used_high = pool[r->device].used;
		}
	}
	sim_memory_unlock();
	return result;
}

CUresult sim_graph_memory_free(CUdeviceptr address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	struct sim_range *r = range_of(address);

	if (r && r->charged) {
		put(r);
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

static CUdeviceptr address_of(const struct CUgraphNode_st *n)
{
	return *(const CUdeviceptr *)n->params.argument;
}

/* Memory left allocated by an earlier launch: an error, or freed now with AUTO_FREE_ON_LAUNCH. */
static bool none_out(const struct CUgraph_st *graph, bool auto_free)
{
	bool none = true;

	for (const struct CUgraphNode_st *n = graph->first; n && none; n = n->next) {
		if (n->child)
			none = none_out(n->child, auto_free);
		if (n->params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			continue;
		struct sim_range *r = range_of(address_of(n));

		if (r && r->charged && auto_free)
			put(r);
		none = none && (!r || !r->charged);
	}
	return none;
}

/* Memory in use while the nodes run one after another, on top of the memory in use already, and its maximum. */
static void sweep(const struct CUgraph_st *graph, int64_t in_use[], int64_t most[])
{
	for (const struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		if (n->child)
			sweep(n->child, in_use, most);
		if (n->params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && n->params.type != CU_GRAPH_NODE_TYPE_MEM_FREE)
			continue;
		struct sim_range *r = range_of(address_of(n));

		if (!r)
			continue;
		int64_t bytes = (int64_t)(r->pages * SIM_PAGE);

		in_use[r->device] += n->params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? bytes : -bytes;
		if (in_use[r->device] > most[r->device])
			most[r->device] = in_use[r->device];
	}
}

CUresult sim_graph_memory_map(const struct CUgraph_st *graph, unsigned long long flags, bool launching)
{
	int64_t in_use[DEVICES] = { 0 }, most[DEVICES] = { 0 };
	CUresult result = CUDA_SUCCESS;

	sim_memory_lock();
	if (launching && !none_out(graph, flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		sweep(graph, in_use, most);
	for (int d = 0; d < DEVICES && result == CUDA_SUCCESS; d++)
		if (most[d] > 0 && !grow(d, pool[d].used + (uint64_t)most[d]))
			result = CUDA_ERROR_OUT_OF_MEMORY;
	sim_memory_unlock();
	return result;
}

/* --- the device's side -------------------------------------------------------------------------------------------- */

SIM_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	*(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT       ? pool[device].used
	                       : attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH        ? pool[device].used_high
	                       : attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? pool[device].reserved
	                                                                             : pool[device].reserved_high;
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

/* Only the high-water marks can be set, and only to zero: they restart from the current use. */
SIM_API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || *(cuuint64_t *)value != 0 ||
	    (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH && attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		pool[device].used_high = pool[device].used;
	else
		pool[device].reserved_high = pool[device].reserved;
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	sim_uncharge(sim_device_get(device), pool[device].reserved - pool[device].used);
	pool[device].reserved = pool[device].used;
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

/* --- contents of a node ------------------------------------------------------------------------------------------- */

SIM_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || node->params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !params)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	struct sim_range *r = range_of(address_of(node));

	*params = (CUDA_MEM_ALLOC_NODE_PARAMS){
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		               .location = { CU_MEM_LOCATION_TYPE_DEVICE, r ? r->device : 0 } },
		.bytesize = r ? r->bytes : 0,
		.dptr = address_of(node),
	};
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
	SIM_CALL();
	if (!SIM_HANDLE(node, SIM_TAG_NODE) || node->params.type != CU_GRAPH_NODE_TYPE_MEM_FREE || !address)
		return CUDA_ERROR_INVALID_VALUE;
	*address = address_of(node);
	return CUDA_SUCCESS;
}
