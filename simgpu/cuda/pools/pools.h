/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_POOLS_H
#define SIM_POOLS_H

#include "simgpu/cuda/base/object.h"
#include "simgpu/cuda/base/process.h"
#include "simgpu/cuda/graphs/graphs.h"
#include "simgpu/cuda/ranges/ranges.h"

/* The file that holds the bytes of a shareable pool. Under the memory lock. */

struct sim_pool_file {
	int fd;         /* own descriptor or the exporter's; -1: none */
	uint64_t ino;   /* inode of that file */
	uint64_t bytes; /* bytes in use: chunks are added at its end */
};

/* Creates the file for a pool of that GPU; false: errno has the reason. */
bool sim_pool_file_open(struct sim_pool_file *file, unsigned gpu_index);
void sim_pool_file_close(struct sim_pool_file *file);
/* Moves a chunk's bytes into its pool's file, at *ret_offset, and back out of it. */
bool sim_pool_file_add(struct sim_pool_file *file, const struct sim_range *chunk, uint64_t *ret_offset);
void sim_pool_file_remove(const struct sim_pool_file *file, struct sim_range *chunk);

#define SIM_POOL_MEMFD "sim-pool-" /* followed by the GPU's number, which an importer cannot find out otherwise */

/* Internals of memory pools: chunks of device memory and the blocks in them. All under the memory lock. */

/* In the order of addresses; adjacent free blocks are merged. */
struct pool_block {
	uint64_t base, bytes;
	struct CUctx_st *context; /* NULL = free */
	struct pool_block *next;
};

struct pool_chunk {
	struct CUmemPoolHandle_st *pool;
	struct sim_range *range;
	struct pool_block *first;
	uint64_t used_bytes;
	struct CUctx_st *last_context; /* context of the last free */
	uint64_t last_sequence;
	uint64_t file_offset; /* offset in the file of a shareable pool */
	struct pool_chunk *next;
};

struct CUmemPoolHandle_st {
	uint32_t tag;
	int device;
	bool host;      /* memory of the host: no device is charged */
	bool destroyed; /* destroyed by its owner while blocks are still in use */
	int reuse[3];   /* the three reuse policies: stored only */
	uint64_t threshold_bytes, max_bytes;
	uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes;
	CUmemAccess_flags access[SIM_DEVICES];
	struct pool_chunk *chunks;
	struct sim_pool_file file;
	/* share.c */
	bool imported; /* another process's pool: no memory can be allocated from it */
	struct pool_import *imports;
	struct CUmemPoolHandle_st *next;
};

#define SIM_CHUNK_BYTES (UINT64_C(32) << 20)

/* Set up a pool with default attributes; sim_pool_list() adds it to the list of pools. */
void sim_pool_begin(struct CUmemPoolHandle_st *pool, int device);
void sim_pool_list(struct CUmemPoolHandle_st *pool);
bool sim_pool_alive(const struct CUmemPoolHandle_st *pool);
/* The pools of a device: its permanent one, and the one from which allocations come (NULL: the permanent one). */
struct CUmemPoolHandle_st *sim_pool_default(int device);
bool sim_pool_is_default(const struct CUmemPoolHandle_st *pool);
struct CUmemPoolHandle_st *sim_pool_current(int device);
void sim_pool_use(int device, struct CUmemPoolHandle_st *pool);

/* Allocates a block for the context; 0 = out of memory. */
uint64_t sim_pool_take(struct CUmemPoolHandle_st *pool, uint64_t bytes, struct CUctx_st *context);
/* Frees a block, which may be used until the queued work of `context` (NULL: its owner) is done. false: not a
 * block. */
bool sim_pool_give(uint64_t address, struct CUctx_st *context);
/* The block at an address in a chunk, and the pool of a chunk. */
bool sim_pool_block(const struct sim_range *chunk, uint64_t address, uint64_t *ret_base, uint64_t *ret_bytes);
struct CUmemPoolHandle_st *sim_pool_of(const struct sim_range *chunk);

/* Returns idle chunks to the device until no more than that many bytes are kept. */
void sim_pool_trim(struct CUmemPoolHandle_st *pool, uint64_t keep_bytes);
/* Shrinks every pool of the device to its threshold; a destroyed pool without blocks and imports is freed. */
void sim_pools_settle(int device);
void sim_pools_context_gone(struct CUctx_st *context);
/* Takes the lock. After a synchronisation of the context: pools release memory above their threshold. */
void sim_pools_trim(struct CUctx_st *context);

/* Imported memory of other processes' pools. Under the memory lock. */

/* Release it; false: not imported memory. */
bool sim_pool_import_free(uint64_t address);

/* Stream-ordered allocation. */

/* Takes the lock: a pointer from a pool or a graph may be freed by cuMemFree too. false: not such a pointer. */
bool sim_pool_free(uint64_t address);

/* Memory of graph nodes; see graph_memory.c. */

/* An address for a new node; memory freed within a graph keeps its address. All of these take the memory lock. */
CUresult sim_graph_memory_make(struct CUctx_st *context, uint64_t bytes, CUdeviceptr *ret_address);
CUresult sim_graph_memory_alloc(CUdeviceptr address);
CUresult sim_graph_memory_free(CUdeviceptr address);

/*
 * Make sure that the device has reserved as much as the graph's nodes need at one time. `launching`: memory left
 * allocated by the last launch is freed (AUTO_FREE_ON_LAUNCH) or an error. Takes the memory lock.
 */
CUresult sim_graph_memory_map(const struct CUgraph_st *graph, unsigned long long flags, bool launching);

#endif
