/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses of this process, and the bytes behind them.
 *
 * One sparse memfd is mapped once; a device address is an address in it, so copies are plain memcpy and another process
 * can map the same bytes for IPC. Space is allocated in 2 MiB pages; allocations up to 1 MiB share pages by size class,
 * as in the real driver's sub-allocator. A page that was never written takes no memory.
 */
#ifndef SIM_ARENA_H
#define SIM_ARENA_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "simgpu/cuda/base/object.h"

#define SIM_PAGE (UINT64_C(2) << 20)

enum sim_range_kind {
	SIM_RANGE_PLAIN,
	SIM_RANGE_SLAB,
	SIM_RANGE_MANAGED,
	SIM_RANGE_POOL,     /* a chunk of a memory pool */
	SIM_RANGE_RESERVED, /* addresses only; memory/vmm.c owns the mappings there */
	SIM_RANGE_IMPORT,   /* another process's memory */
	SIM_RANGE_ARRAY,    /* has bytes but no address visible to a caller */
	SIM_RANGE_BACKING,  /* likewise: memory of memory/physical.c, visible where it is mapped */
	SIM_RANGE_GRAPH,    /* memory of a graph's allocation node: charged between that node and its free node */
};

/* A run of pages with one use. */
struct sim_range {
	uint64_t base;
	uint64_t pages;
	uint64_t bytes;   /* requested size */
	uint64_t charged; /* charge to the device, whole pages */
	uint64_t shared;  /* or its part of pages that small ranges of its context share */
	enum sim_range_kind kind;
	int device;
	struct CUctx_st *context;
	void *owner; /* chunk, reservation, import … */
	bool touched;
	uint64_t skip; /* offset of an import's first byte */
	bool removed;
	/* slabs */
	uint32_t object_bytes;
	uint32_t used;
	uint32_t first_free;               /* where the search for a free object begins */
	uint64_t bitmap[64];               /* 4,096 objects of 512 B */
	struct sim_range *next, *previous; /* list of the size class, while some object is free; list of free runs */
};

/* Allocates a run of pages; NULL = no address space left. Charges nothing. */
struct sim_range *sim_range_make(uint64_t bytes, uint64_t alignment);
void sim_range_free(struct sim_range *range);
/* The range that contains an address, NULL = none. */
struct sim_range *sim_range_at(uint64_t address);
/* Iterates over all ranges; start with *cursor = 0. NULL at the end. The one returned may be freed. */
struct sim_range *sim_range_after(uint64_t *cursor);
void *sim_host_address(uint64_t device_address);
uint64_t sim_arena_offset(uint64_t device_address);
/* Map the bytes of a file at these addresses instead of the arena's own, and back. Whole pages. */
bool sim_range_alias(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
void sim_range_unalias(uint64_t address, uint64_t bytes);
int sim_arena_fd(void);

/* One lock for the arena and all memory records. It is taken before a GPU's mutex. */
extern pthread_mutex_t sim_memory_mutex;

static inline void sim_memory_lock(void)
{
	pthread_mutex_lock(&sim_memory_mutex);
}

static inline void sim_memory_unlock(void)
{
	pthread_mutex_unlock(&sim_memory_mutex);
}

#endif
