/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The charge of stream-ordered memory: a ledger for each pool. The calls themselves are in async.c.
 *
 * A pool grows in steps of its own and keeps freed memory, so sizes of allocations are no measure of it; the charge
 * follows the reserved bytes that the driver reports (RESERVED_MEM_CURRENT):
 *
 *   reserved, as last read                      charged in advance, for growth that may come
 *   |------------- settled ---------------|     |----------- held ------------|
 *   | live_bytes             | unused     |     | pledged           | spare   |
 *   | requested, not freed   | kept       |     | calls under way   |         |
 *   |                                                                         |
 *   |------------------------- charged to the grant --------------------------|
 *
 *   claim    before the driver call: live_bytes += size; what `unused` does not cover is charged, into held and pledged
 *   settle   after it: read reserved; settled grows out of held; the call's pledge ends; spare is returned
 *   leave    the last thread inside sets settled to the value it reads, also downwards, and returns all of held
 *
 * The table's lock is never held over a driver call, so one thread may read `reserved` before another makes the pool
 * grow and act on it after. Therefore a reading moves settled downwards only when no other thread is inside and none
 * has acted since the reading (`version`). A charge may be too high for a moment, never too low.
 *
 * The memory that a device reserves for graphs is one more pool of this table, which grows when graph.c calls
 * pool_grow_begin(); its handle is a small number, unlike any of the driver's.
 */
#include "interpose/memory/pool.h"

#include <sched.h>
#include <stddef.h>

#include "interpose/driver/driver.h"
#include "nativecommon/footprint.h"
#include "interpose/memory/charge.h"
#include "interpose/tenant/guest.h"
#include "interpose/tenant/moves.h"

/* Pools that one process may have at once. Frameworks have one per GPU; beyond it cuMemPoolCreate returns out of
 * memory. */
#define POOL_MAX 256
#define STEP_MIN (UINT64_C(2) << 20) /* the granularity of physical device memory */
#define LEAVE_TRIES 16 /* then the charge stays too high until the next call; a failed try means others made progress */

enum { POOL_UNUSED, POOL_LIVE, POOL_DESTROYED };

struct pool {
	CUmemoryPool handle;
	uint32_t state;
	int32_t device;      /* as pool_device() */
	uint32_t in_flight;  /* threads between entering and leaving */
	uint32_t version;    /* changes when a thread enters, settles or leaves */
	uint64_t settled;    /* reserved bytes that are charged */
	uint64_t live_bytes; /* requested or handed out, and not freed */
	uint64_t step;       /* bytes by which it grows, as observed; 0 = not grown yet */
	uint64_t held;       /* charged in advance, besides `settled` */
	uint64_t pledged;    /* the part of `held` that belongs to calls not settled yet */
};

struct pool_table {
	uint32_t lock;
	uint32_t high;  /* pools used so far lie below this index */
	uint32_t freed; /* memory was freed since the last synchronisation, at which pools may shrink */
	uint32_t trims; /* of graph memory: graphs mapped before a trim may be unmapped now */
	uint32_t padding[12];
	struct pool pool[POOL_MAX];
};

static struct pool_table *pools; /* wiped by fork */

static bool give_back(int device);

bool pool_prepare(void)
{
	charge_on_full(give_back);
	return wiped_memory((void **)&pools, sizeof(*pools)) != NULL;
}

static struct pool_table *table_lock(void)
{
	struct pool_table *t = pools;

	for (unsigned int spins = 0; __atomic_exchange_n(&t->lock, 1, __ATOMIC_ACQUIRE); spins++)
		if (spins > 64)
			sched_yield();
	return t;
}

static void table_unlock(struct pool_table *t)
{
	__atomic_store_n(&t->lock, 0, __ATOMIC_RELEASE);
}

static struct pool *live_pool(struct pool_table *t, CUmemoryPool handle)
{
	for (uint32_t i = 0; i < t->high; i++)
		if (t->pool[i].state == POOL_LIVE && t->pool[i].handle == handle)
			return &t->pool[i];
	return NULL;
}

struct pool *pool_find(CUmemoryPool handle)
{
	struct pool_table *t = table_lock();
	struct pool *p = live_pool(t, handle);

	table_unlock(t);
	return p;
}

struct pool *pool_of(CUmemoryPool handle, int device)
{
	struct pool_table *t = table_lock();
	struct pool *p = live_pool(t, handle);

	for (uint32_t i = 0; !p && i < POOL_MAX; i++)
		if (t->pool[i].state == POOL_UNUSED) {
			p = &t->pool[i];
			*p = (struct pool){ .handle = handle, .state = POOL_UNUSED, .device = device };
			/* pool_refresh() walks the table without the lock, so the record is complete before it becomes
			 * live */
			__atomic_store_n(&p->state, POOL_LIVE, __ATOMIC_RELEASE);
			if (t->high <= i)
				__atomic_store_n(&t->high, i + 1, __ATOMIC_RELEASE);
		}
	table_unlock(t);
	return p;
}

int pool_device(const struct pool *p)
{
	return p->device;
}

/* The CUDA ordinal whose graph memory this is, -1: a pool of the application. */
static int graphs_of(const struct pool *p)
{
	return (uintptr_t)p->handle <= SLUICE_MAX_DEVICES ? (int)(uintptr_t)p->handle - 1 : -1;
}

static uint64_t reserved_bytes(const struct pool *p)
{
	cuuint64_t value = 0;

	if (graphs_of(p) >= 0) {
		if (!driver.cuDeviceGetGraphMemAttribute ||
		    driver.cuDeviceGetGraphMemAttribute(graphs_of(p), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value))
			return __atomic_load_n(&p->settled, __ATOMIC_RELAXED);
		return value;
	}
	if (!driver.cuMemPoolGetAttribute ||
	    driver.cuMemPoolGetAttribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS)
		return __atomic_load_n(&p->settled, __ATOMIC_RELAXED); /* no answer leaves the figure as it is */
	return value;
}

static void enter(struct pool *p)
{
	struct pool_table *t = table_lock();

	p->in_flight++;
	__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE); /* read without the lock */
	table_unlock(t);
}

/* Pools grow in steps (32 MiB on current drivers). With a known step, the charge before the call equals the pool's
 * growth, and the limit is never exceeded, even for a moment; otherwise the first growth shows the step. */
static void learn_step(struct pool *p, uint64_t growth)
{
	uint64_t divisor = growth & -growth;

	if (divisor < STEP_MIN)
		divisor = STEP_MIN;
	if (p->step == 0 || divisor < p->step)
		p->step = divisor;
}

static uint32_t version_of(const struct pool *p)
{
	return __atomic_load_n(&p->version, __ATOMIC_ACQUIRE);
}

/* With the table locked: settled follows the pool upwards. Growth uses up bytes that were charged in advance (`held`).
 * Keep the pledged bytes, or the excess of live claims over `settled` if that is more: those claims counted on unused
 * bytes that another thread's call may have taken. The rest is spare. Returns bytes to give back or, negative, still to
 * be charged. */
static int64_t follow(struct pool *p, uint64_t reserved)
{
	uint64_t growth = reserved > p->settled ? reserved - p->settled : 0;
	uint64_t paid = growth < p->held ? growth : p->held, need = p->pledged, spare;
	uint64_t claimed = footprint_up(__atomic_load_n(&p->live_bytes, __ATOMIC_RELAXED), STEP_MIN);

	if (growth && p->in_flight == 1)
		learn_step(p, growth);
	__atomic_store_n(&p->settled, p->settled + growth, __ATOMIC_RELAXED);
	p->held -= paid;
	if (claimed > p->settled && need < claimed - p->settled)
		need = claimed - p->settled;
	spare = p->held > need ? p->held - need : 0;
	p->held -= spare;
	__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE);
	return (int64_t)(spare - (growth - paid));
}

/* Return the surplus. A deficit is memory that exists already (the pool grew unobserved, or by more than a graph
 * noted), so it is charged, beyond the limit if need be. */
static void charge_by(const struct pool *p, int64_t back)
{
	if (back > 0)
		charge_return(p->device, (uint64_t)back);
	else if (back < 0)
		charge_force(p->device, (uint64_t)-back);
}

static void leave(struct pool *p)
{
	struct pool_table *t;
	uint64_t reserved;
	uint32_t version;
	int64_t back;

	for (int tries = 0;; tries++) {
		version = version_of(p);
		reserved = reserved_bytes(p);
		t = table_lock();
		if (p->in_flight > 1 || version_of(p) == version || tries == LEAVE_TRIES)
			break;
		table_unlock(t); /* another thread acted after the reading and left: the value may be too low by now */
	}
	if (p->in_flight == 1 && version_of(p) == version && reserved < p->settled) {
		back = (int64_t)(p->settled - reserved + p->held);
		__atomic_store_n(&p->settled, reserved, __ATOMIC_RELAXED);
		p->held = 0;
		__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE);
	} else {
		back = follow(p, reserved);
	}
	p->in_flight--;
	table_unlock(t);
	charge_by(p, back);
}

CUresult pool_claim(struct pool *p, uint64_t bytes, uint64_t *ret_held)
{
	struct pool_table *t = table_lock();
	uint64_t live = __atomic_fetch_add(&p->live_bytes, bytes, __ATOMIC_RELAXED);
	uint64_t unused = p->settled > live ? p->settled - live : 0;
	uint64_t step = p->step ? p->step : STEP_MIN, held;
	CUresult r = CUDA_SUCCESS;

	p->in_flight++;
	__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE);
	table_unlock(t);
	held = bytes <= unused ? 0 : footprint_up(bytes - unused, step);
	if (held)
		r = charge_take(p->device, held);
	if (r != CUDA_SUCCESS && step > STEP_MIN) {
		/* the step is a guess: the allocation may fit, and otherwise it is undone */
		held = footprint_up(bytes - unused, STEP_MIN);
		r = charge_take(p->device, held);
	}
	if (r != CUDA_SUCCESS) {
		__atomic_fetch_sub(&p->live_bytes, bytes, __ATOMIC_RELAXED);
		leave(p);
		return r;
	}
	t = table_lock();
	p->held += held;
	p->pledged += held;
	table_unlock(t);
	*ret_held = held;
	return CUDA_SUCCESS;
}

CUresult pool_settle(struct pool *p, uint64_t held, CUresult r, const CUdeviceptr *dptr, uint64_t bytes,
                     CUstream stream)
{
	struct ptrmap_entry entry = { .bytes = bytes, .kind = PTRMAP_ASYNC, .device = (int8_t)p->device };
	uint64_t reserved = reserved_bytes(p);
	struct pool_table *t = table_lock();
	int64_t back;

	p->pledged -= held;
	back = follow(p, reserved);
	table_unlock(t);
	if (back > 0) {
		charge_return(p->device, (uint64_t)back);
	} else if (back < 0 && charge_take(p->device, (uint64_t)-back) != CUDA_SUCCESS) {
		/* Count it all the same, because it exists. Then undo it, waiting for the stream if need be. */
		charge_force(p->device, (uint64_t)-back);
		if (r == CUDA_SUCCESS && driver.cuMemFreeAsync &&
		    driver.cuMemFreeAsync(*dptr, stream) == CUDA_SUCCESS) {
			if (driver.cuStreamSynchronize)
				driver.cuStreamSynchronize(stream);
			if (driver.cuMemPoolTrimTo)
				driver.cuMemPoolTrimTo(p->handle, 0);
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	entry.key = r == CUDA_SUCCESS ? *dptr : 0;
	entry.owner = (uint32_t)(p - pools->pool);
	/* not in the map: its size is missed only when the pool is destroyed before it is freed */
	if (r != CUDA_SUCCESS || !ptrmap_put(&entry))
		__atomic_fetch_sub(&p->live_bytes, bytes, __ATOMIC_RELAXED);
	leave(p);
	return r;
}

struct pool *pool_of_graphs(int device, CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < SLUICE_MAX_DEVICES ? pool_of((CUmemoryPool)(uintptr_t)(ordinal + 1), device)
	                                                    : NULL;
}

/* The charge is taken before it is put into the pool: when refused, it makes the pools release kept memory, this one
 * included, and a pool with a thread inside does not shrink. */
CUresult pool_grow_begin(struct pool *p, uint64_t bytes)
{
	struct pool_table *t;
	CUresult r = bytes ? charge_take(p->device, bytes) : CUDA_SUCCESS;

	if (r != CUDA_SUCCESS)
		return r;
	t = table_lock();
	p->in_flight++;
	p->held += bytes;
	p->pledged += bytes;
	__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE);
	table_unlock(t);
	return CUDA_SUCCESS;
}

void pool_grow_end(struct pool *p, uint64_t bytes)
{
	uint64_t reserved = reserved_bytes(p);
	struct pool_table *t = table_lock();
	int64_t back;

	p->pledged -= bytes;
	back = follow(p, reserved);
	table_unlock(t);
	charge_by(p, back);
	leave(p);
}

/*
 * With the table locked, for a pool that is destroyed. The driver releases it when its last allocation is freed, and
 * until then keeps chunks that are used in part; how large they are cannot be queried any more. So the whole pool stays
 * charged until then. Returns the bytes to give back.
 */
static uint64_t release_if_empty(struct pool *p)
{
	uint64_t gone;

	if (__atomic_load_n(&p->live_bytes, __ATOMIC_RELAXED) != 0)
		return 0;
	gone = p->settled;
	__atomic_store_n(&p->settled, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&p->state, POOL_UNUSED, __ATOMIC_RELEASE);
	return gone;
}

void pool_freed(const struct ptrmap_entry *entry)
{
	struct pool *p = &pools->pool[entry->owner % POOL_MAX];
	struct pool_table *t;
	uint64_t gone = 0;

	__atomic_fetch_sub(&p->live_bytes, entry->bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&pools->freed, 1, __ATOMIC_RELEASE);
	if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) == POOL_LIVE) {
		enter(p);
		leave(p);
		return;
	}
	/* a destroyed pool lives on until its last allocation is freed, but cannot be queried any more */
	t = table_lock();
	if (p->state == POOL_DESTROYED)
		gone = release_if_empty(p);
	table_unlock(t);
	if (gone)
		charge_return(p->device, gone);
}

struct pool *pool_destroy_begin(CUmemoryPool handle)
{
	struct pool_table *t = table_lock();
	struct pool *p = live_pool(t, handle);

	if (p)
		__atomic_store_n(&p->state, POOL_DESTROYED, __ATOMIC_RELEASE);
	table_unlock(t);
	return p;
}

void pool_destroy_end(struct pool *p, bool destroyed)
{
	struct pool_table *t = table_lock();
	int device = p->device;
	uint64_t gone = 0;

	if (destroyed)
		gone = release_if_empty(p);
	else
		__atomic_store_n(&p->state, POOL_LIVE, __ATOMIC_RELEASE);
	table_unlock(t);
	if (gone)
		charge_return(device, gone);
}

uint32_t pool_graph_trims(void)
{
	return __atomic_load_n(&pools->trims, __ATOMIC_ACQUIRE);
}

CUresult pool_trim_graphs(CUdevice ordinal)
{
	__atomic_fetch_add(&pools->trims, 1, __ATOMIC_RELEASE);
	return driver.cuDeviceGraphMemTrim ? driver.cuDeviceGraphMemTrim(ordinal) : CUDA_ERROR_NOT_FOUND;
}

void pool_refresh(int device)
{
	struct pool_table *t = pools;

	for (uint32_t i = 0; i < __atomic_load_n(&t->high, __ATOMIC_ACQUIRE); i++) {
		struct pool *p = &t->pool[i];

		if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != POOL_LIVE || p->device != device)
			continue;
		enter(p);
		leave(p);
	}
}

void pool_synchronised(void)
{
	if (!guest_enter())
		return;
	if (__atomic_load_n(&pools->freed, __ATOMIC_RELAXED) && __atomic_exchange_n(&pools->freed, 0, __ATOMIC_ACQ_REL))
		for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
			pool_refresh(device);
	guest_leave();
}

/* Bytes charged by our pools on a device. */
static uint64_t charged_bytes(int device)
{
	struct pool_table *t = table_lock();
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->high; i++)
		if (t->pool[i].state != POOL_UNUSED && t->pool[i].device == device)
			bytes += t->pool[i].settled + t->pool[i].held;
	table_unlock(t);
	return bytes;
}

/* Make our pools on a device release unused memory; true if any charge was returned. */
static bool give_back(int device)
{
	struct pool_table *t = pools;
	uint64_t before_bytes = charged_bytes(device);

	if (before_bytes == 0)
		return false;
	for (uint32_t i = 0; i < __atomic_load_n(&t->high, __ATOMIC_ACQUIRE); i++) {
		struct pool *p = &t->pool[i];

		if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != POOL_LIVE || p->device != device)
			continue;
		if (graphs_of(p) >= 0)
			pool_trim_graphs(graphs_of(p));
		else if (driver.cuMemPoolTrimTo)
			driver.cuMemPoolTrimTo(p->handle, 0);
	}
	pool_refresh(device);
	return charged_bytes(device) < before_bytes;
}
