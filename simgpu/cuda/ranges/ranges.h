/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_RANGES_H
#define SIM_RANGES_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/base/process.h"

/*
 * Device addresses of this process, and the bytes behind them.
 *
 * One sparse memfd is mapped once; a device address is an address in it, so copies are plain memcpy and another process
 * can map the same bytes for IPC. Space is allocated in 2 MiB pages; allocations up to 1 MiB share pages by size class,
 * as in the real driver's sub-allocator. A page that was never written takes no memory.
 */

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

/* This process's use of a device's memory, as the node counts it. */

/* false = the device is full, or the cgroup's limit is reached. */
bool sim_charge(struct sim_device *device, uint64_t bytes);
void sim_uncharge(struct sim_device *device, uint64_t bytes);
/* The same for memory charged as managed memory. */
void sim_uncharge_managed(struct sim_device *device, uint64_t bytes);
/* Charge; if that fails, have unused memory released and try again. With the memory lock held. */
bool sim_charge_hard(struct sim_device *device, uint64_t bytes);
/* The same for managed memory, which no cgroup limit counts. */
bool sim_charge_managed(struct sim_device *device, uint64_t bytes);
/* Register the callback that releases unused memory when a device is full. With the memory lock held. */
void sim_charge_on_full(void (*give_back)(struct sim_device *device));

/* Ranges that are charged to a device, and the allocation at an address. With the memory lock held. */

/* The allocation that contains an address: the unit that a caller sees, not a page. */
struct sim_block {
	struct sim_range *range;
	uint64_t base;
	uint64_t bytes;
	int device;
	bool accessible; /* device code and copies may access it */
};

/* A charged range; NULL = out of memory. `context` NULL = it belongs to the process. */
struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged);
/* The same for `taken` bytes in whole pages, or in pages shared with other small ranges of the context. */
struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken);
void sim_range_drop(struct sim_range *range);
/* Small memory is allocated in sizes of 512 bytes times a power of two: the index of that power. */
unsigned sim_size_class(uint64_t bytes);

/* Memory in a file of its own, whose descriptor is passed to other processes. */

/* This process's ordinal of the GPU to which a shared file of this kind (the first part of its name) belongs. */
CUresult sim_memfd_device(int fd, const char *kind, int *ret_device);

#endif
