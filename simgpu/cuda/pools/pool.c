/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools: chunks and blocks.
 *
 * A pool takes device memory in chunks of 32 MiB, cuts blocks from them and keeps freed blocks until a synchronisation
 * finds them above the release threshold; the charge is its reserved memory. A block can be reused from the call that
 * frees it, because a process's work is queued in the order of its calls. A chunk is released only when the device has
 * passed its last free.
 */
#include "simgpu/cuda/pools/pools.h"

#include <stdlib.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/ranges/ranges.h"

#define BLOCK_STEP 512

static struct CUmemPoolHandle_st default_pool[SIM_DEVICES];
static struct CUmemPoolHandle_st *current_pool[SIM_DEVICES]; /* NULL = the default pool */
static struct CUmemPoolHandle_st *pools;                     /* created pools. All under the memory lock */

void sim_pool_begin(struct CUmemPoolHandle_st *pool, int device)
{
	pool->tag = SIM_TAG_POOL;
	pool->device = device;
	pool->file.fd = -1;
	for (int i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

struct CUmemPoolHandle_st *sim_pool_default(int device)
{
	if (!default_pool[device].tag)
		sim_pool_begin(&default_pool[device], device);
	return &default_pool[device];
}

bool sim_pool_is_default(const struct CUmemPoolHandle_st *pool)
{
	return pool >= default_pool && pool < default_pool + SIM_DEVICES;
}

struct CUmemPoolHandle_st *sim_pool_current(int device)
{
	return current_pool[device] ? current_pool[device] : sim_pool_default(device);
}

void sim_pool_use(int device, struct CUmemPoolHandle_st *pool)
{
	current_pool[device] = pool;
}

bool sim_pool_alive(const struct CUmemPoolHandle_st *pool)
{
	if (sim_pool_is_default(pool))
		return pool->tag != 0;
	const struct CUmemPoolHandle_st *p = pools;

	while (p && p != pool)
		p = p->next;
	return p && !p->destroyed;
}

/* --- chunks and blocks -------------------------------------------------------------------------------------------- */

static void chunk_drop(struct pool_chunk *chunk)
{
	struct CUmemPoolHandle_st *pool = chunk->pool;

	for (struct pool_chunk **at = &pool->chunks; *at; at = &(*at)->next) {
		if (*at == chunk) {
			*at = chunk->next;
			break;
		}
	}
	pool->reserved_bytes -= chunk->range->bytes;
	sim_pool_file_remove(&pool->file, chunk->range);
	sim_range_drop(chunk->range);
	free(chunk->first); /* idle: a single free block */
	free(chunk);
}

static bool chunk_idle(const struct pool_chunk *chunk)
{
	return chunk->used_bytes == 0 && (!chunk->last_context || sim_done(chunk->last_context, chunk->last_sequence));
}

void sim_pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep_bytes)
{
	if (pool->file.fd >= 0 && !pool->destroyed)
		return; /* as with drivers: memory that other processes may have mapped is not released */
	for (struct pool_chunk *c = pool->chunks, *next; c && pool->reserved_bytes > keep_bytes; c = next) {
		next = c->next;
		if (chunk_idle(c))
			chunk_drop(c);
	}
}

/* Visits every pool of a device, the default one first; a destroyed pool ends with its last chunk. */
static void trim_device(int device, bool all)
{
	if (default_pool[device].tag)
		sim_pool_trim(&default_pool[device], all ? 0 : default_pool[device].threshold_bytes);
	for (struct CUmemPoolHandle_st **at = &pools, *p; (p = *at);) {
		if (p->device == device)
			sim_pool_trim(p, all || p->destroyed ? 0 : p->threshold_bytes);
		if (p->destroyed && !p->chunks && !p->imports) {
			*at = p->next;
			p->tag = 0;
			sim_pool_file_close(&p->file);
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

static void give_back(struct sim_device *device)
{
	for (int d = 0; d < SIM_DEVICES; d++)
		if (sim_device_get(d) == device)
			trim_device(d, true);
}

void sim_pools_trim(struct CUctx_st *context)
{
	/* There is nearly always no work, and a synchronisation should not wait for a lock to find that out. */
	if (!__atomic_load_n(&pools, __ATOMIC_RELAXED) && !default_pool[context->device].chunks)
		return;
	sim_memory_lock();
	trim_device(context->device, false);
	sim_memory_unlock();
}

static struct pool_chunk *chunk_make(struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
	uint64_t reserved = (bytes + SIM_CHUNK_BYTES - 1) / SIM_CHUNK_BYTES * SIM_CHUNK_BYTES;
	struct pool_chunk *c = calloc(1, sizeof(*c));
	struct pool_block *b = calloc(1, sizeof(*b));

	if (c && b && (!pool->max_bytes || reserved <= pool->max_bytes - pool->reserved_bytes))
		c->range = sim_range_charged(pool->device, NULL, SIM_RANGE_POOL, reserved, pool->host ? 0 : reserved);
	if (c && c->range) {
		c->pool = pool;
		c->range->owner = c;
		if (!sim_pool_file_add(&pool->file, c->range, &c->file_offset)) {
			sim_range_drop(c->range);
			c->range = NULL;
		}
	}
	if (!c || !c->range) {
		free(c);
		free(b);
		return NULL;
	}
	*b = (struct pool_block){ .base = c->range->base, .bytes = reserved };
	c->first = b;
	sim_charge_on_full(give_back);
	c->next = pool->chunks;
	pool->chunks = c;
	pool->reserved_bytes += reserved;
	if (pool->reserved_bytes > pool->reserved_high_bytes)
		pool->reserved_high_bytes = pool->reserved_bytes;
	return c;
}

static uint64_t chunk_take(struct pool_chunk *c, uint64_t bytes, struct CUctx_st *context)
{
	struct pool_block *b = c->first;

	if (c->range->bytes - c->used_bytes < bytes)
		return 0;
	while (b && (b->context || b->bytes < bytes))
		b = b->next;
	if (!b)
		return 0;
	if (b->bytes > bytes) {
		struct pool_block *rest = calloc(1, sizeof(*rest));

		if (!rest)
			return 0;
		*rest = (struct pool_block){ .base = b->base + bytes, .bytes = b->bytes - bytes, .next = b->next };
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

static struct pool_block *block_of(const struct pool_chunk *c, uint64_t address)
{
	struct pool_block *b = c->first;

	while (b && address - b->base >= b->bytes)
		b = b->next;
	return b && b->context ? b : NULL;
}

static void block_mark_free(struct pool_chunk *c, struct pool_block *block)
{
	block->context = NULL;
	c->used_bytes -= block->bytes;
	c->pool->used_bytes -= block->bytes;
}

static void chunk_join(struct pool_chunk *c)
{
	for (struct pool_block *b = c->first; b; b = b->next) {
		while (!b->context && b->next && !b->next->context) {
			struct pool_block *joined = b->next;

			b->bytes += joined->bytes;
			b->next = joined->next;
			free(joined);
		}
	}
}

uint64_t sim_pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct CUctx_st *context)
{
	uint64_t address = 0;

	if (bytes > UINT64_MAX - SIM_CHUNK_BYTES)
		return 0;
	bytes = (bytes + BLOCK_STEP - 1) / BLOCK_STEP * BLOCK_STEP;
	for (struct pool_chunk *c = pool->chunks; c && !address; c = c->next)
		address = chunk_take(c, bytes, context);
	if (!address) {
		struct pool_chunk *c = chunk_make(pool, bytes);

		address = c ? chunk_take(c, bytes, context) : 0;
	}
	return address;
}

bool sim_pool_give(uint64_t address, struct CUctx_st *context)
{
	struct sim_range *r = sim_range_at(address);
	struct pool_chunk *c = r && r->kind == SIM_RANGE_POOL ? r->owner : NULL;
	struct pool_block *b = c ? block_of(c, address) : NULL;

	if (!b || b->base != address)
		return false;
	c->last_context = context ? context : b->context;
	c->last_sequence = sim_submitted(c->last_context);
	block_mark_free(c, b);
	chunk_join(c);
	return true;
}

bool sim_pool_block(const struct sim_range *chunk, uint64_t address, uint64_t *ret_base, uint64_t *ret_bytes)
{
	const struct pool_block *b = block_of(chunk->owner, address);

	if (!b)
		return false;
	*ret_base = b->base;
	*ret_bytes = b->bytes;
	return true;
}

struct CUmemPoolHandle_st *sim_pool_of(const struct sim_range *chunk)
{
	return ((struct pool_chunk *)chunk->owner)->pool;
}

static void context_gone(struct CUmemPoolHandle_st *pool, const struct CUctx_st *context)
{
	for (struct pool_chunk *c = pool->chunks; c; c = c->next) {
		for (struct pool_block *b = c->first; b; b = b->next)
			if (b->context == context)
				block_mark_free(c, b);
		chunk_join(c);
		if (c->last_context == context)
			c->last_context = NULL; /* its work is done, and the queue may get another owner */
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
