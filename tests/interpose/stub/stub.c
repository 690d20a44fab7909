/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver small enough to understand at once: allocations are numbers in a table, work is not done, time does not
 * pass.
 *
 * It stands for "a driver that is not our simulator". It keeps the truth (bytes in use per device, highest ever) so
 * that tests can compare, lets them inject the next failure, and counts calls by name so that they can check which
 * calls reached it. Tests call the stub_* functions; STUB_* in the environment is for tests that cannot.
 */
#include "tests/interpose/stub/stub.h"

struct gpu gpu[DEVICES];

struct object objects[OBJECTS];
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
bool initialised;
int stalling, stalled;
static int fail_next; /* CUresult of the next allocating call */
__thread struct object *stack[16];
__thread int depth;
static int hint = 1;
uint64_t launches, capturing;

int devices(void)
{
	const char *n = getenv("STUB_DEVICES");

	return n ? atoi(n) : 1;
}

API uint64_t stub_used(int dev)
{
	return __atomic_load_n(&gpu[dev].used, __ATOMIC_SEQ_CST);
}
API uint64_t stub_peak(int dev)
{
	return __atomic_load_n(&gpu[dev].peak, __ATOMIC_SEQ_CST);
}
API void stub_forget_peak(int dev)
{
	__atomic_store_n(&gpu[dev].peak, 0, __ATOMIC_SEQ_CST);
}
API void stub_set_total(int dev, uint64_t bytes)
{
	gpu[dev].total = bytes;
}
API void stub_fail_next(int result)
{
	fail_next = result;
}
API uint64_t stub_launches(void)
{
	return launches;
}
API void stub_capture(int on)
{
	capturing = (uint64_t)on;
}

/* While on, plain allocations that have taken their memory do not return to the caller. */
API void stub_stall(int on)
{
	__atomic_store_n(&stalling, on, __ATOMIC_SEQ_CST);
}
/* The number of allocations that are held up now. */
API int stub_stalled(void)
{
	return __atomic_load_n(&stalled, __ATOMIC_SEQ_CST);
}
/* While on, no memory is allocated or freed, so the memory in use stays constant. */
API void stub_freeze(int on)
{
	if (on)
		pthread_mutex_lock(&lock);
	else
		pthread_mutex_unlock(&lock);
}

/* --- the table of all live allocations ---------------------------------------------------------------------------- */

bool take(int dev, uint64_t bytes, enum kind kind)
{
	if (gpu[dev].used + bytes > gpu[dev].total || gpu[dev].used + bytes < bytes)
		return false;
	gpu[dev].used += bytes;
	if (kind == CONTEXT)
		gpu[dev].contexts += bytes;
	if (gpu[dev].used - gpu[dev].contexts > gpu[dev].peak)
		gpu[dev].peak = gpu[dev].used - gpu[dev].contexts;
	return true;
}

struct object *make(enum kind kind, int dev, uint64_t bytes)
{
	for (int tries = 0; tries < OBJECTS; tries++) {
		struct object *o = &objects[hint];

		hint = hint + 1 < OBJECTS ? hint + 1 : 1;
		if (o->kind != FREE)
			continue;
		*o = (struct object){ .kind = kind, .dev = dev, .bytes = bytes, .references = 1 };
		return o;
	}
	return NULL;
}

uint64_t address_of(const struct object *o)
{
	return UINT64_C(0x700000000000) + (uint64_t)(o - objects) * 0x10000;
}

struct object *object_at(uint64_t address, enum kind kind)
{
	uint64_t i = (address - UINT64_C(0x700000000000)) / 0x10000;

	if (address < UINT64_C(0x700000000000) || i >= OBJECTS || objects[i].kind != kind ||
	    address_of(&objects[i]) != address)
		return NULL;
	return &objects[i];
}

struct object *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

CUresult begin(void)
{
	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Allocate under the lock; 0 on failure. */
CUresult allocate(enum kind kind, int dev, uint64_t bytes, uint64_t owner, struct object **ret)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	struct object *o;

	pthread_mutex_lock(&lock);
	if (fail_next) {
		r = (CUresult)fail_next;
		fail_next = 0;
	} else if (take(dev, bytes, kind)) {
		o = make(kind, dev, bytes);
		if (o) {
			o->owner = owner;
			*ret = o;
			r = CUDA_SUCCESS;
		} else {
			gpu[dev].used -= bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

void discard(struct object *o)
{
	gpu[o->dev].used -= o->bytes;
	if (o->kind == CONTEXT)
		gpu[o->dev].contexts -= o->bytes;
	o->kind = FREE;
}
