/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools and stream-ordered allocation.
 *
 * A pool takes device memory in chunks of 32 MiB, cuts blocks from them and keeps what is freed until a synchronisation
 * finds it above the release threshold; it is charged with what it has reserved. A block is free for everybody at the
 * call that frees it: a process's work is queued in the order of its calls. A chunk goes back only when the device is
 * past its last free. Blocks, chunks, pools and what is asked of them are one structure, hence one long file.
 */
#include "interpose/sim/pool.h"

#include <stdlib.h>
#include <string.h>

#include "interpose/sim/hold.h"

#define CHUNK_BYTES (UINT64_C(32) << 20)
#define BLOCK_STEP 512

static struct CUmemPoolHandle_st default_pool[SIM_DEVICES];
static struct CUmemPoolHandle_st *current_pool[SIM_DEVICES]; /* NULL = the default one */
static struct CUmemPoolHandle_st *pools;                     /* created ones. All under memory's lock */

void sim_pool_begin(struct CUmemPoolHandle_st *pool, int device)
{
	pool->tag = SIM_TAG_POOL;
	pool->device = device;
	pool->fd = -1;
	for (int i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static struct CUmemPoolHandle_st *default_of(int device)
{
	if (!default_pool[device].tag)
		sim_pool_begin(&default_pool[device], device);
	return &default_pool[device];
}

bool sim_pool_alive(const struct CUmemPoolHandle_st *pool)
{
	if (pool >= default_pool && pool < default_pool + SIM_DEVICES)
		return pool->tag != 0;
	const struct CUmemPoolHandle_st *p = pools;

	while (p && p != pool)
		p = p->next;
	return p && !p->destroyed;
}

/* --- chunks and blocks -------------------------------------------------------------------------------------------- */

static void chunk_drop(struct chunk *chunk)
{
	struct CUmemPoolHandle_st *pool = chunk->pool;

	for (struct chunk **at = &pool->chunks; *at; at = &(*at)->next) {
		if (*at == chunk) {
			*at = chunk->next;
			break;
		}
	}
	pool->reserved_bytes -= chunk->range->bytes;
	sim_pool_file_remove(chunk);
	sim_range_drop(chunk->range);
	free(chunk->first); /* idle: one free block */
	free(chunk);
}

static bool chunk_idle(const struct chunk *chunk)
{
	return chunk->used_bytes == 0 && (!chunk->last_context || sim_done(chunk->last_context, chunk->last_sequence));
}

static void pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep_bytes)
{
	if (pool->fd >= 0 && !pool->destroyed)
		return; /* as drivers have it: what others may have mapped is not given back */
	for (struct chunk *c = pool->chunks, *next; c && pool->reserved_bytes > keep_bytes; c = next) {
		next = c->next;
		if (chunk_idle(c))
			chunk_drop(c);
	}
}

/* Every pool of a device, the default one first; one destroyed meanwhile goes when its last chunk has gone. */
static void trim_device(int device, bool all)
{
	if (default_pool[device].tag)
		pool_trim(&default_pool[device], all ? 0 : default_pool[device].threshold_bytes);
	for (struct CUmemPoolHandle_st **at = &pools, *p; (p = *at);) {
		if (p->device == device)
			pool_trim(p, all || p->destroyed ? 0 : p->threshold_bytes);
		if (p->destroyed && !p->chunks && !p->imports) {
			*at = p->next;
			p->tag = 0;
			sim_pool_file_close(p);
			free(p);
		} else {
			at = &p->next;
		}
	}
}

void sim_pools_settle(int device)
{
	trim_device(device, false);
}

void sim_pool_list(struct CUmemPoolHandle_st *pool)
{
	pool->next = pools;
	__atomic_store_n(&pools, pool, __ATOMIC_RELAXED);
}

void sim_pools_give_back(struct sim_device *device)
{
	for (int d = 0; d < SIM_DEVICES; d++)
		if (sim_device_get(d) == device)
			trim_device(d, true);
}

void sim_pools_trim(struct CUctx_st *context)
{
	/* Nearly always there is nothing to do, and a synchronisation should not wait for a lock to find out. */
	if (!__atomic_load_n(&pools, __ATOMIC_RELAXED) && !default_pool[context->device].chunks)
		return;
	sim_memory_lock();
	trim_device(context->device, false);
	sim_memory_unlock();
}

static struct chunk *chunk_make(struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	uint64_t reserved = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	struct chunk *c = calloc(1, sizeof(*c));
	struct block *b = calloc(1, sizeof(*b));

	if (c && b && (!pool->max_bytes || reserved <= pool->max_bytes - pool->reserved_bytes))
		c->range = sim_range_charged(pool->device, NULL, SIM_RANGE_POOL, reserved, pool->host ? 0 : reserved);
	if (c && c->range) {
		c->pool = pool;
		c->range->owner = c;
		if (!sim_pool_file_add(c)) {
			sim_range_drop(c->range);
			c->range = NULL;
		}
	}
	if (!c || !c->range) {
		free(c);
		free(b);
		return NULL;
	}
	*b = (struct block){ .base = c->range->base, .bytes = reserved };
	c->first = b;
	c->next = pool->chunks;
	pool->chunks = c;
	pool->reserved_bytes += reserved;
	if (pool->reserved_bytes > pool->reserved_high_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return c;
}

static uint64_t chunk_take(struct chunk *c, uint64_t bytes, struct CUctx_st *context)
{
	struct block *b = c->first;

	if (c->range->bytes - c->used_bytes < bytes)
		return 0;
	while (b && (b->context || b->bytes < bytes))
		b = b->next;
	if (!b)
		return 0;
	if (b->bytes > bytes) {
		struct block *rest = calloc(1, sizeof(*rest));

		if (!rest)
			return 0;
		*rest = (struct block){ .base = b->base + bytes, .bytes = b->bytes - bytes, .next = b->next };
		b->bytes = bytes;
		b->next = rest;
	}
	b->context = context;
	c->used_bytes += bytes;
	c->pool->used_bytes += bytes;
	if (c->pool->used_bytes > c->pool->used_high_bytes)
		c->pool->used_high_bytes = c->pool->used_bytes;
	return b->base;
}

static struct block *block_of(const struct chunk *c, uint64_t address)
{
	struct block *b = c->first;

	while (b && address - b->base >= b->bytes)
		b = b->next;
	return b && b->context ? b : NULL;
}

static void block_mark_free(struct chunk *c, struct block *block)
{
	block->context = NULL;
	c->used_bytes -= block->bytes;
	c->pool->used_bytes -= block->bytes;
}

static void chunk_join(struct chunk *c)
{
	for (struct block *b = c->first; b; b = b->next) {
		while (!b->context && b->next && !b->next->context) {
			struct block *joined = b->next;

			b->bytes += joined->bytes;
			b->next = joined->next;
			free(joined);
		}
	}
}

static uint64_t pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct CUctx_st *context)
{
	uint64_t address = 0;

	if (bytes > UINT64_MAX - CHUNK_BYTES)
		return 0;
	bytes = (bytes + BLOCK_STEP - 1) / BLOCK_STEP * BLOCK_STEP;
	for (struct chunk *c = pool->chunks; c && !address; c = c->next)
		address = chunk_take(c, bytes, context);
	if (!address) {
		struct chunk *c = chunk_make(pool, bytes);

		address = c ? chunk_take(c, bytes, context) : 0;
	}
	return address;
}

bool sim_pool_block(const struct sim_range *chunk, uint64_t address, uint64_t *ret_base, uint64_t *ret_bytes)
{
	const struct block *b = block_of(chunk->owner, address);

	if (!b)
		return false;
	*ret_base = b->base;
	*ret_bytes = b->bytes;
	return true;
}

struct CUmemPoolHandle_st *sim_pool_of(const struct sim_range *chunk)
{
	return ((struct chunk *)chunk->owner)->pool;
}

/* With the lock held: give a block back. `sequence`: what the device must have done before its chunk may go. */
static bool release(uint64_t address, struct CUctx_st *context, uint64_t sequence)
{
	struct sim_range *r = sim_range_at(address);
	struct chunk *c = r && r->kind == SIM_RANGE_POOL ? r->owner : NULL;
	struct block *b = c ? block_of(c, address) : NULL;

	if (!b || b->base != address)
		return false;
	c->last_context = context ? context : b->context;
	c->last_sequence = sequence;
	block_mark_free(c, b);
	chunk_join(c);
	return true;
}

static uint64_t queued(struct CUctx_st *context)
{
	return __atomic_load_n(&context->gpu->ring[context->index].head, __ATOMIC_ACQUIRE);
}

bool sim_pool_free(uint64_t address)
{
	sim_memory_lock();
	struct sim_range *r = sim_range_at(address);
	bool ours = r && (r->kind == SIM_RANGE_POOL || r->kind == SIM_RANGE_GRAPH);
	bool graph = ours && r->kind == SIM_RANGE_GRAPH;
	struct block *b = ours && !graph ? block_of(r->owner, address) : NULL;
	bool freed = b ? release(address, b->context, queued(b->context)) : sim_pool_import_free(address);

	sim_memory_unlock();
	return graph ? sim_graph_memory_free(address) == CUDA_SUCCESS : freed;
}

static void context_gone(struct CUmemPoolHandle_st *pool, const struct CUctx_st *context)
{
	for (struct chunk *c = pool->chunks; c; c = c->next) {
		for (struct block *b = c->first; b; b = b->next)
			if (b->context == context)
				block_mark_free(c, b);
		chunk_join(c);
		if (c->last_context == context)
			c->last_context = NULL; /* its work is done, and its queue will be somebody else's */
	}
}

void sim_pools_context_gone(struct CUctx_st *context)
{
	for (int d = 0; d < SIM_DEVICES; d++)
		if (default_pool[d].tag)
			context_gone(&default_pool[d], context);
	for (struct CUmemPoolHandle_st *p = pools; p; p = p->next)
		context_gone(p, context);
	trim_device(context->device, true);
}

/* --- stream-ordered allocation ------------------------------------------------------------------------------------- */

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
	if (any_pool) {
		int d = stream->context->device;

		pool = current_pool[d] ? current_pool[d] : default_of(d);
	}
	if (!pool || !sim_pool_alive(pool) || pool->imported) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else {
		uint64_t at = pool_take(pool, bytes, stream->context);

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
	return release(address, context, queued(context)) || sim_pool_import_free(address);
}

/* Until a held stream gets there the memory is in use. */
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

/* --- pools as objects ---------------------------------------------------------------------------------------------- */

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_CALL();
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	*pool = default_of(device);
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
	SIM_CALL();
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	*pool = current_pool[device] ? current_pool[device] : default_of(device);
	sim_memory_unlock();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_memory_lock();
	if (pool && sim_pool_alive(pool) && pool->device == device && !pool->imported) {
		current_pool[device] = pool;
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

/* Device memory, a part of a device's (the low byte of its number is the device), managed memory, which is taken to be on a
 * device at once, as everywhere here, or the host's. */
static bool place(const CUmemLocation *location, CUmemAllocationType type, int *ret_device, bool *ret_host)
{
	bool part = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;

	*ret_host = false;
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return false;
	if (part || location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
		*ret_device = part ? location->id & 0xff : location->id;
		return sim_device_get(*ret_device) != NULL;
	}
	*ret_host = type == CU_MEM_ALLOCATION_TYPE_PINNED;
	*ret_device = sim_current() ? sim_current()->device : 0;
	return type == CU_MEM_ALLOCATION_TYPE_MANAGED || location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	SIM_CALL();
	int device = 0;
	bool host = false;

	if (!pool || !props || !place(&props->location, props->allocType, &device, &host))
		return CUDA_ERROR_INVALID_VALUE;
	/* as MEMPOOL_SUPPORTED_HANDLE_TYPES says; only memory of a device is shared */
	if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (props->handleTypes && host))
		return CUDA_ERROR_NOT_SUPPORTED;
	struct CUmemPoolHandle_st *p = calloc(1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_pool_begin(p, device);
	p->host = host;
	p->max_bytes = (props->maxSize + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
	if (props->handleTypes && !sim_pool_file_open(p)) {
		free(p);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_memory_lock();
	sim_pool_list(p);
	sim_memory_unlock();
	*pool = p;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	sim_memory_lock();
	if (pool && sim_pool_alive(pool) && !(pool >= default_pool && pool < default_pool + SIM_DEVICES)) {
		int device = pool->device;

		if (current_pool[device] == pool)
			current_pool[device] = NULL;
		pool->destroyed = true;
		trim_device(device, false); /* blocks still out keep it until they are freed */
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
	SIM_CALL();
	sim_memory_lock();
	bool valid = pool && sim_pool_alive(pool);

	if (valid)
		pool_trim(pool, keep_bytes);
	sim_memory_unlock();
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The 64-bit attributes. */
static uint64_t *counter(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->reserved_high_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->used_high_bytes;
	default:
		return NULL;
	}
}

static CUresult attribute_set(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute, const void *value)
{
	if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	    attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return CUDA_SUCCESS;
	}
	cuuint64_t wanted = 0;

	memcpy(&wanted, value, sizeof(wanted));
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold_bytes = wanted;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* a high-water mark can only be begun anew */
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (wanted)
			return CUDA_ERROR_INVALID_VALUE;
		*counter(pool, attribute) =
			attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->used_bytes : pool->reserved_bytes;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult attribute_get(struct CUmemPoolHandle_st *pool, CUmemPool_attribute attribute, void *value)
{
	const uint64_t *found = counter(pool, attribute);

	if (found) {
		memcpy(value, found, sizeof(*found));
		return CUDA_SUCCESS;
	}
	if (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
	    attribute > CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_CALL();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	CUresult r = pool && sim_pool_alive(pool) ? attribute_set(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;

	sim_memory_unlock();
	return r;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
	SIM_CALL();
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	CUresult r = pool && sim_pool_alive(pool) ? attribute_get(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;

	sim_memory_unlock();
	return r;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *list, size_t count)
{
	SIM_CALL();
	CUresult result = CUDA_SUCCESS;

	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (!pool || !sim_pool_alive(pool))
		result = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++) {
		const CUmemAccessDesc *a = &list[i];

		if (a->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_get(a->location.id))
			result = CUDA_ERROR_INVALID_DEVICE;
		else if (a->location.id == pool->device && a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			result = CUDA_ERROR_INVALID_DEVICE; /* its own device's access cannot be taken away */
		else
			pool->access[a->location.id] = a->flags;
	}
	sim_memory_unlock();
	return result;
}

SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	SIM_CALL();
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_get(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	sim_memory_lock();
	if (pool && sim_pool_alive(pool)) {
		*flags = pool->access[location->id];
		result = CUDA_SUCCESS;
	}
	sim_memory_unlock();
	return result;
}
