/* SPDX-License-Identifier: Apache-2.0 */
/* The stub driver inside: what its files share. See stub.c. */
#ifndef SLUICE_STUB_H
#define SLUICE_STUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interpose/driver/cuda_abi.h"

#define API __attribute__((visibility("default")))
#define DEVICES 3
#define OBJECTS 200000
#define GRANULE (UINT64_C(2) << 20) /* VMM and pool growth */
#define CONTEXT_BYTES (UINT64_C(16) << 20)

enum kind { FREE, MEMORY, ASYNC, ARRAY, MIPMAP, PHYSICAL, POOL, CONTEXT };

struct object {
	enum kind kind;
	int dev;
	uint64_t bytes;
	uint64_t owner; /* context of memory and arrays, pool of async memory */
	int references; /* physical: handles + mappings */
	bool dead;      /* physical: no handle any more; pool: destroyed */
	uint64_t used;  /* pool */
};

struct gpu {
	uint64_t total, used;
	uint64_t contexts; /* the part of `used` that no allocation asked for */
	uint64_t peak;     /* of the other part */
	uint64_t
		idle_ns; /* CLOCK_MONOTONIC when the last kernel will be done: one at a time, in the order of launches */
	uint64_t busy_ns; /* of all kernels so far */
	struct object *primary;
	int primary_count;
	struct object *default_pool;
	struct object *pool;
};

extern struct gpu gpu[DEVICES];
extern struct object objects[OBJECTS];
extern pthread_mutex_t lock; /* of all of these */
extern bool initialised;
extern int stalling, stalled;
extern __thread struct object *stack[16];
extern __thread int depth;
extern uint64_t launches, capturing;

bool take(int dev, uint64_t bytes, enum kind kind);
struct object *make(enum kind kind, int dev, uint64_t bytes);
uint64_t address_of(const struct object *o);
struct object *object_at(uint64_t address, enum kind kind);
struct object *current(void);
CUresult begin(void);
CUresult allocate(enum kind kind, int dev, uint64_t bytes, uint64_t owner, struct object **ret);
void discard(struct object *o);
int devices(void);
CUresult give_back(uint64_t address, enum kind kind, CUresult wrong);

API uint64_t stub_used(int dev);
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev);
API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev);

#endif
