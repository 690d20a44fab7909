/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses of this process, and the bytes behind them.
 *
 * One sparse memfd is mapped once; a device address is an address in it, so copies are plain memcpy and another process
 * can map the same bytes for IPC. Space is given out in 2 MiB pages; allocations up to 1 MiB share pages by size class,
 * as the real driver's sub-allocator does. A page never written to costs nothing.
 */
#ifndef SIM_ARENA_H
#define SIM_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "interpose/sim/object.h"

#define SIM_PAGE (UINT64_C(2) << 20)

enum sim_range_kind {
	SIM_RANGE_PLAIN,
	SIM_RANGE_SLAB,
	SIM_RANGE_MANAGED,
	SIM_RANGE_POOL,     /* a chunk of a memory pool */
	SIM_RANGE_RESERVED, /* addresses only; what is mapped there is vmm.c's */
	SIM_RANGE_IMPORT,   /* another process's memory */
	SIM_RANGE_ARRAY,    /* has bytes but no address that a caller knows */
	SIM_RANGE_BACKING,  /* likewise: memory of vmm.c, seen where it is mapped */
	SIM_RANGE_GRAPH,    /* of a graph's allocation node: charged between that node and its free node */
};

/* A run of pages with one meaning. */
struct sim_range {
	uint64_t base;
	uint64_t pages;
	uint64_t bytes;   /* asked for */
	uint64_t charged; /* of the device's memory, whole pages */
	uint64_t shared;  /* or its part of pages that small ranges of its context share */
	enum sim_range_kind kind;
	int device;
	struct CUctx_st *context;
	void *owner; /* chunk, reservation, import … */
	bool touched;
	uint64_t skip; /* of an import: where its bytes begin */
	bool removed;
	/* slabs */
	uint32_t object_bytes;
	uint32_t used;
	uint32_t first_free;               /* where to look first */
	uint64_t bitmap[64];               /* 4,096 objects of 512 B */
	struct sim_range *next, *previous; /* of the size class, while some object is free; free runs */
};

/* A run of pages; NULL = no address space left. Charges nothing. */
struct sim_range *sim_range_make(uint64_t bytes, uint64_t alignment);
void sim_range_free(struct sim_range *range);
/* The range an address lies in, NULL = not ours. */
struct sim_range *sim_range_at(uint64_t address);
/* Every range in turn; start with *cursor = 0. NULL at the end. The one returned may be freed. */
struct sim_range *sim_range_after(uint64_t *cursor);
void *sim_host_address(uint64_t device_address);
uint64_t sim_arena_offset(uint64_t device_address);
/* Show the bytes of a file at these addresses instead of the arena's own, and back. Whole pages. */
bool sim_range_alias(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
void sim_range_unalias(uint64_t address, uint64_t bytes);
int sim_arena_fd(void);

/* --- memory.c: one lock for all that follows, and for the arena. It is taken before a GPU's mutex. ----------------- */

void sim_memory_lock(void);
void sim_memory_unlock(void);
/* What an address belongs to, as a caller sees it: not a page but the allocation. */
struct sim_block {
	struct sim_range *range;
	uint64_t base;
	uint64_t bytes;
	int device;
	bool accessible; /* device code and copies may touch it */
};
bool sim_block_at(uint64_t address, struct sim_block *ret);
/* May a copy touch all these bytes? Marks the pages as written. */
bool sim_range_covers(uint64_t address, uint64_t bytes);
/* Charge, or have the pools give back what they only keep, and charge then. */
bool sim_charge_hard(struct sim_device *device, uint64_t bytes);
/* A charged range; NULL = no memory. `context` NULL = belongs to the process. */
struct sim_range *sim_range_charged(int device, struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes,
                                    uint64_t charged);
/* The same for `taken` bytes in whole pages, or in pages shared with other small ranges of the context. */
struct sim_range *sim_range_packed(struct CUctx_st *context, enum sim_range_kind kind, uint64_t bytes, uint64_t taken);
void sim_range_drop(struct sim_range *range);
/* host.c: is this host memory that the driver allocated or registered, and what is it? */
bool sim_host_covers(uint64_t address, uint64_t bytes);
CUresult sim_host_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address);

/* The rest of the memory family. With the lock held, except where a name says otherwise. */
bool sim_pool_block(const struct sim_range *chunk, uint64_t address, uint64_t *ret_base, uint64_t *ret_bytes);
struct CUmemPoolHandle_st *sim_pool_of(const struct sim_range *chunk);
void sim_pools_give_back(struct sim_device *device);
void sim_pools_context_gone(struct CUctx_st *context);
/* Takes the lock: a pointer from a pool may be freed by cuMemFree too. */
bool sim_pool_free(uint64_t address);
/* Takes the lock. After a synchronisation of the context: pools return what exceeds their release threshold. */
void sim_pools_trim(struct CUctx_st *context);
bool sim_vmm_block(const struct sim_range *reserved, uint64_t address, struct sim_block *ret);
/* vmm.c: the ordinal here of the GPU that a shared file of this kind (the first part of its name) belongs to. */
CUresult sim_memfd_device(int fd, const char *kind, int *ret_device);
void sim_arrays_context_gone(struct CUctx_st *context);
void sim_imports_context_gone(struct CUctx_st *context);

/* Memory of graph nodes (graph_memory.c). All take the lock. */
CUresult sim_graph_memory_make(struct CUctx_st *context, uint64_t bytes, CUdeviceptr *ret_address);
CUresult sim_graph_memory_alloc(CUdeviceptr address);
CUresult sim_graph_memory_free(CUdeviceptr address);
void sim_graph_memory_gone(CUdeviceptr address);

/* array.c: the bytes of an array, tightly packed; false = no such array, or nothing is mapped to it. */
struct sim_array_view {
	struct sim_range *range;
	uint8_t *bytes;
	uint64_t row_bytes, rows, slices;
	uint32_t element_bytes;
};
bool sim_array_view(CUarray array, struct sim_array_view *ret);

#endif
