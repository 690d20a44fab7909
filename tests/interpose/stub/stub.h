/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the stub driver, shared by its files. See stub.c. */
#ifndef SLUICE_STUB_H
#define SLUICE_STUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nativecommon/cuda_abi.h"

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
	bool dead;      /* physical: no handle left; pool: destroyed */
	uint64_t used;  /* pool */
};

struct gpu {
	uint64_t total, used;
	uint64_t contexts; /* the part of `used` that belongs to contexts */
	uint64_t peak;     /* peak of the other part */
	uint64_t
		idle_ns; /* CLOCK_MONOTONIC at the end of the last kernel; kernels run one at a time, in launch order */
	uint64_t busy_ns; /* sum over all kernels so far */
	struct object *primary;
	int primary_count;
	struct object *default_pool;
	struct object *pool;
};

extern struct gpu gpu[DEVICES];
extern struct object objects[OBJECTS];
extern pthread_mutex_t lock; /* protects all of these */
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
