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

enum sim_range_kind { SIM_RANGE_PLAIN, SIM_RANGE_SLAB, SIM_RANGE_MANAGED, SIM_RANGE_POOL, SIM_RANGE_RESERVED, SIM_RANGE_IMPORT, SIM_RANGE_ARRAY };

/* A run of pages with one meaning. */
struct sim_range {
	uint64_t base;
	uint64_t pages;
	uint64_t bytes;   /* asked for */
	uint64_t charged; /* of the device's memory */
	enum sim_range_kind kind;
	int device;
	struct CUctx_st *context;
	void *owner; /* pool, import … */
	bool touched;
	bool removed;
	/* slabs */
	uint32_t object_bytes;
	uint32_t used;
	uint32_t first_free; /* where to look first */
	uint64_t bitmap[64]; /* 4,096 objects of 512 B */
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
/* Are these bytes all device memory of ours (or a reserved range)? */
bool sim_range_covers(uint64_t address, uint64_t bytes);

#endif
