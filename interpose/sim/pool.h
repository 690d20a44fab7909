/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools inside: what pool.c and pool_share.c know of each other. All under memory's lock. */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"

/* In the order of addresses, free neighbours joined. */
struct block {
	uint64_t base, bytes;
	struct CUctx_st *context; /* NULL = free */
	struct block *next;
};

struct chunk {
	struct CUmemPoolHandle_st *pool;
	struct sim_range *range;
	struct block *first;
	uint64_t used_bytes;
	struct CUctx_st *last_context; /* of the last free */
	uint64_t last_sequence;
	uint64_t file_offset; /* in the file of a pool that can be shared */
	struct chunk *next;
};

struct CUmemPoolHandle_st {
	uint32_t tag;
	int device;
	bool host;      /* of the host's memory: no device is charged */
	bool destroyed; /* by its owner, while blocks are still out */
	int reuse[3];   /* the three policies: remembered, no more */
	uint64_t threshold_bytes, max_bytes;
	uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes;
	CUmemAccess_flags access[SIM_DEVICES];
	struct chunk *chunks;
	/* pool_share.c */
	int fd; /* the file that holds the bytes of a pool that can be shared, ours or the exporter's; -1: none */
	uint64_t file_ino;   /* of that file */
	uint64_t file_bytes; /* of it in use: chunks are put at its end */
	bool imported;       /* another process's: nothing can be allocated from it */
	struct pool_import *imports;
	struct CUmemPoolHandle_st *next;
};

/* A pool with the defaults of one, on the list of pools or not. */
void sim_pool_begin(struct CUmemPoolHandle_st *pool, int device);
void sim_pool_list(struct CUmemPoolHandle_st *pool);
bool sim_pool_alive(const struct CUmemPoolHandle_st *pool);
/* A destroyed pool whose last block or import has gone goes, too. */
void sim_pools_settle(int device);

/* The file of a pool that can be shared; false: errno says why. */
bool sim_pool_file_open(struct CUmemPoolHandle_st *pool);
void sim_pool_file_close(struct CUmemPoolHandle_st *pool);
/* A chunk's bytes are in its pool's file from now on, and no longer. */
bool sim_pool_file_add(struct chunk *chunk);
void sim_pool_file_remove(struct chunk *chunk);
/* Let go of memory of another process's pool; false: this is none. */
bool sim_pool_import_free(uint64_t address);

#endif
