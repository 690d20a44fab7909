/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: charged by what a pool has reserved, because that is what the GPU has lost. See pool.c. */
#ifndef SLUICE_POOL_H
#define SLUICE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/driver/cuda_abi.h"
#include "interpose/memory/ptrmap.h"

#define POOL_DEVICE_NONE (-2) /* nothing to charge: the memory is the host's, or another process pays for it */

struct pool;

/* Before anything else, in each process; false: no memory that fork wipes. */
bool pool_prepare(void);

/* The ledger of a pool, made on first sight; NULL when there is no room for one more. */
struct pool *pool_of(CUmemoryPool handle, int device);
/* The ledger of a pool that has been seen, NULL: it has not. */
struct pool *pool_find(CUmemoryPool handle);
/* The pool that stands for what a device has reserved for graphs; NULL: not a device of a grant, or no room for it. */
struct pool *pool_of_graphs(int device, CUdevice ordinal);
/* Region device, -1 = a GPU that is not of the grant, POOL_DEVICE_NONE. */
int pool_device(const struct pool *p);

/* Claim `bytes` of the pool and charge what it may have to grow by for them: *ret_held. */
CUresult pool_claim(struct pool *p, uint64_t bytes, uint64_t *ret_held);
/* The driver has answered `r`: the charge becomes what the pool has now. If that is over the limit the allocation is undone.
 * Returns what the application is to hear. */
CUresult pool_settle(struct pool *p, uint64_t held, CUresult r, const CUdeviceptr *dptr, uint64_t bytes,
                     CUstream stream);
/* A call is about to be made after which such a pool may have grown by `bytes`; then it was made. */
CUresult pool_grow_begin(struct pool *p, uint64_t bytes);
void pool_grow_end(struct pool *p, uint64_t bytes);
/* A stream-ordered pointer was freed through whatever call. */
void pool_freed(const struct ptrmap_entry *entry);
/* Before the driver is asked to destroy a pool (its handle may be used anew right after), and when it has answered. NULL: not
 * known, nothing to end. */
struct pool *pool_destroy_begin(CUmemoryPool handle);
void pool_destroy_end(struct pool *p, bool destroyed);

/* Let the device take back what no graph is using; every graph is mapped anew by its next launch. */
CUresult pool_trim_graphs(CUdevice ordinal);
/* How often that was done. */
uint32_t pool_graph_trims(void);
/* The application has waited for the device: what it freed before may be gone now. */
void pool_synchronised(void);
/* Bring the charge of our pools on a device up to date with what the driver says. */
void pool_refresh(int device);

#endif
