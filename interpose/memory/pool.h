/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: charged by the bytes that a pool has reserved, because the GPU has lost those. See pool.c. */
#ifndef SLUICE_POOL_H
#define SLUICE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "nativecommon/cuda_abi.h"
#include "interpose/memory/ptrmap.h"

#define POOL_DEVICE_NONE (-2) /* no charge: the memory is the host's, or another process pays for it */

struct pool;

/* Called first in each process; false: no memory that fork wipes. */
bool pool_prepare(void);

/* The ledger of a pool, made on first use; NULL when there is no room for one more. */
struct pool *pool_of(CUmemoryPool handle, int device);
/* The ledger of a known pool; NULL: unknown. */
struct pool *pool_find(CUmemoryPool handle);
/* The pool that stands for the memory a device has reserved for graphs; NULL: not a device of a grant, or no room for
 * it. */
struct pool *pool_of_graphs(int device, CUdevice ordinal);
/* Region device, -1 = a GPU outside of the grant, or POOL_DEVICE_NONE. */
int pool_device(const struct pool *p);

/* Claim `bytes` of the pool and charge the growth that they may cause: *ret_held. */
CUresult pool_claim(struct pool *p, uint64_t bytes, uint64_t *ret_held);
/* The driver has returned `r`: the charge becomes what the pool has now. If that exceeds the limit the allocation is
 * undone. Returns the result for the application. */
CUresult pool_settle(struct pool *p, uint64_t held, CUresult r, const CUdeviceptr *dptr, uint64_t bytes,
                     CUstream stream);
/* Before a call that may make such a pool grow by `bytes`, and after it. */
CUresult pool_grow_begin(struct pool *p, uint64_t bytes);
void pool_grow_end(struct pool *p, uint64_t bytes);
/* A stream-ordered pointer was freed by any of the calls that can. */
void pool_freed(const struct ptrmap_entry *entry);
/* Before the driver destroys a pool (its handle may be reused right after), and after its result. NULL: an unknown
 * pool, no call needed. */
struct pool *pool_destroy_begin(CUmemoryPool handle);
void pool_destroy_end(struct pool *p, bool destroyed);

/* Let the device free the memory that no graph uses; every graph is mapped again by its next launch. */
CUresult pool_trim_graphs(CUdevice ordinal);
/* The number of such trims. */
uint32_t pool_graph_trims(void);
/* The application has waited for the device: memory freed before may be released now. */
void pool_synchronised(void);
/* Update the charge of our pools on a device to the driver's figures. */
void pool_refresh(int device);

#endif
