/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: charged by what a pool has reserved, because that is what the GPU has lost. See pool.c. */
#ifndef SLUICE_POOL_H
#define SLUICE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "interpose/cuda_abi.h"
#include "interpose/ptrmap.h"

/* Pools one process may have at once. Frameworks have one per GPU; past it cuMemPoolCreate says out of memory. */
#define POOL_MAX 256
#define POOL_DEVICE_NONE (-2) /* nothing to charge: the memory is the host's, or another process pays for it */

struct pool {
	CUmemoryPool handle;
	uint32_t state;
	int32_t device;      /* region device, -1 = a GPU that is not ours */
	uint32_t in_flight;  /* threads between entering and leaving */
	uint32_t version;    /* moves when one enters, settles or leaves */
	uint64_t settled;    /* reserved bytes that are charged */
	uint64_t live_bytes; /* asked for or handed out, and not freed */
	uint64_t step;       /* by which it grows, as far as seen; 0 = not grown yet */
	uint64_t held;       /* charged in advance, besides `settled`, for growth that may come */
	uint64_t pledged;    /* what threads whose call is not settled yet have put into `held` */
};

struct pool_table {
	uint32_t lock;
	uint32_t high;  /* pools used so far lie below this index */
	uint32_t freed; /* since the last synchronisation, at which pools may shrink */
	uint32_t padding[13];
	struct pool pool[POOL_MAX];
};

/* The pool that stands for what a device has reserved for graphs; NULL: not a device of a grant, or no room for it. */
struct pool *pool_of_graphs(int device, CUdevice ordinal);
/* A call is about to be made after which such a pool may have grown by `bytes`; then it was made. */
CUresult pool_grow_begin(struct pool *p, uint64_t bytes);
void pool_grow_end(struct pool *p, uint64_t bytes);
/* Does the stream record a graph instead of running what it is given? */
bool pool_capturing(CUstream stream, bool per_thread);
/* An asynchronous pointer was freed through whatever call. */
void pool_freed(const struct ptrmap_entry *entry);
/* Let our pools on a device return unused memory; true if any charge went. */
bool pool_give_back(int device);
/* The application has waited for the device: what it freed before may be gone now. */
void pool_synchronised(void);
/* Bring the charge of our pools on a device up to date with what the driver says. */
void pool_refresh(int device);
/* Add what our pools have charged to `held`, per device. */
void pool_sum(uint64_t held[]);

#endif
