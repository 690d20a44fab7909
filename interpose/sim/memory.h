/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory inside one process: an arena per device whose addresses are the device pointers.
 *
 * An arena is a sparse memfd, twice as large as the device so that fragmentation of addresses never decides. What the
 * device counts, in units of 2 MiB, is kept apart in the node; bytes get real memory when they are first touched.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "interpose/sim/heap.h"
#include "interpose/sim/objects.h"

#define CHUNK_BYTES (2ull << 20)       /* the driver's large page */
#define UNIT_BYTES 512ull              /* granularity below it */
#define SMALL_BYTES (1ull << 20)       /* up to here allocations share chunks */
#define POOL_SEGMENT_BYTES (32ull << 20) /* a pool grows by that */
#define UNITS_PER_CHUNK ((uint32_t)(CHUNK_BYTES / UNIT_BYTES))

enum memory_kind {
	MEMORY_NONE,
	MEMORY_SEGMENT, /* chunks that a heap of smaller allocations owns */
	MEMORY_LINEAR,
	MEMORY_MANAGED,
	MEMORY_POOL,
	MEMORY_ARRAY,
	MEMORY_GLOBAL,   /* a module's variable */
	MEMORY_PHYSICAL, /* cuMemCreate's, reachable through mappings only */
	MEMORY_GRAPH,
	MEMORY_HOST, /* below: not in an arena */
	MEMORY_MAPPED,
	MEMORY_IMPORTED,
};

struct arena {
	char *base;
	uint64_t bytes;
	int fd;
	unsigned device;
	unsigned ordinal;
	uint32_t next_id;
	pthread_mutex_t lock;
	struct heap_space chunks;
	struct heap_space units;
	struct heap large;
	struct heap small;
	uint8_t *touched; /* per chunk: may have real memory */
};

struct pool {
	struct object object;
	struct arena *arena;
	unsigned index;
	bool is_default;
	struct heap heap;
	uint32_t *segment; /* first chunks */
	unsigned segments, room;
	unsigned whole; /* segments without an allocation */
	uint64_t reserved, reserved_high, used, used_high;
	uint64_t threshold, max_bytes;
	CUmemPoolProps props;
};

/* What an address belongs to. */
struct allocation {
	enum memory_kind kind;
	uint64_t base;
	uint64_t bytes;
	struct arena *arena; /* NULL: host memory */
	struct context *ctx; /* NULL: the device's own, as pools are */
	struct pool *pool;
	uint32_t id;
};

/* The device's arena, made on first use; NULL without memory. */
struct arena *arena_of(unsigned ordinal);

/* 0 if there is no room or no memory left on the device. `bytes` > 0. */
CUdeviceptr memory_alloc(struct context *ctx, uint64_t bytes, enum memory_kind kind);

/* Free what starts at `base`; false if nothing of a kind in `kinds` (bits) does. */
bool memory_free(CUdeviceptr base, uint32_t kinds);

/* The allocation around an address; false if there is none. */
bool memory_find(CUdeviceptr address, struct allocation *ret);

/* Is [address, address + bytes) inside one allocation (or all host memory)? */
bool memory_range_valid(CUdeviceptr address, uint64_t bytes);

/* Real memory is about to be written in the range. */
void memory_touch(CUdeviceptr address, uint64_t bytes);

/* Everything a context still holds. */
void memory_free_context(struct context *ctx);

/* Whole chunks of an arena, counted or not; HEAP_NIL without room. Called without the lock. */
uint32_t arena_take(struct arena *a, uint64_t bytes, enum memory_kind kind, bool counted);
void arena_give(struct arena *a, uint32_t chunk, bool counted);

/* --- pool.c ------------------------------------------------------------------------------------------------------ */

struct pool *pool_of_segment(unsigned index);
struct pool *pool_default(unsigned ordinal);
/* `kind` is MEMORY_POOL or MEMORY_GRAPH. 0 without memory. */
CUdeviceptr pool_alloc(struct pool *p, uint64_t bytes);
bool pool_free(CUdeviceptr base);
/* A moment at which the driver gives memory above the threshold back. */
void pools_at_sync(struct context *ctx);
void pools_forget(unsigned ordinal);
bool pools_in_use(void);

/* --- vmm.c, ipc.c, host.c: addresses outside the arenas --------------------------------------------------------- */

bool vmm_find(CUdeviceptr address, struct allocation *ret);
bool ipc_find(CUdeviceptr address, struct allocation *ret);
bool host_find(CUdeviceptr address, struct allocation *ret);

#endif
