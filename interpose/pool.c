/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered allocation (cuMemAllocAsync and friends).
 *
 * A pool grows in steps of its own and keeps freed memory, so sizes of allocations say little; what counts is
 * RESERVED_MEM_CURRENT. Before a call that may grow the pool we charge what it may grow by, after it the charge becomes
 * what the pool really has. The table lock is never held over a driver call, so threads' readings may cross: each claims
 * its part of the pool's unused bytes before the next one counts them, growth is paid from what all those inside have
 * taken in advance, and only a thread that is alone, with a reading nobody has acted after, sets the charge exactly.
 * A charge may therefore be too high for a moment, never too low.
 *
 * Under stream capture these calls build graph nodes and allocate nothing; they pass. What a device reserves for graphs
 * is one more pool of this table, which grows when graph.c says so; its handle is a small number, as none of a driver's.
 *
 * Longer than 500 lines because pools and their charge are one matter.
 */
#include "interpose/pool.h"

#include <sched.h>
#include <stddef.h>

#include "interpose/charge.h"
#include "interpose/driver.h"
#include "interpose/footprint.h"
#include "interpose/graph.h"
#include "interpose/guest_page.h"
#include "interpose/location.h"

#define STEP_MIN (UINT64_C(2) << 20) /* the granularity of physical device memory */
#define LEAVE_TRIES 16 /* then the charge stays too high until the next call; every try means another thread got on */

enum { POOL_UNUSED, POOL_LIVE, POOL_DESTROYED };

static struct pool_table *table_lock(void)
{
	struct pool_table *t = &guest_page->pools;

	for (unsigned int spins = 0; __atomic_exchange_n(&t->lock, 1, __ATOMIC_ACQUIRE); spins++)
		if (spins > 64)
			sched_yield();
	return t;
}

static void table_unlock(struct pool_table *t)
{
	__atomic_store_n(&t->lock, 0, __ATOMIC_RELEASE);
}

/* The record of a pool, made on first sight; NULL when the table is full. */
static struct pool *pool_of(CUmemoryPool handle, int device)
{
	struct pool_table *t = table_lock();
	struct pool *p = NULL;
	uint32_t i;

	for (i = 0; i < t->high; i++)
		if (t->pool[i].state == POOL_LIVE && t->pool[i].handle == handle) {
			p = &t->pool[i];
			break;
		}
	for (i = 0; !p && i < POOL_MAX; i++)
		if (t->pool[i].state == POOL_UNUSED) {
			p = &t->pool[i];
			*p = (struct pool){ .handle = handle, .state = POOL_UNUSED, .device = device };
			/* pool_refresh() walks the table without the lock: the record is whole before it is live */
			__atomic_store_n(&p->state, POOL_LIVE, __ATOMIC_RELEASE);
			if (t->high <= i)
				__atomic_store_n(&t->high, i + 1, __ATOMIC_RELEASE);
		}
	table_unlock(t);
	return p;
}

/* The CUDA ordinal whose graphs' memory this is, -1: a pool of the application. */
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
		return __atomic_load_n(&p->settled, __ATOMIC_RELAXED); /* no answer changes nothing */
	return value;
}

static void enter(struct pool *p)
{
	struct pool_table *t = table_lock();

	p->in_flight++;
	__atomic_fetch_add(&p->version, 1, __ATOMIC_RELEASE); /* read without the lock */
	table_unlock(t);
}

/* Pools grow in steps (32 MiB on current drivers). Knowing the step, the charge before the call is what the pool will
 * take, and nothing is over the limit even for a moment; not knowing it, the first growth tells. */
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

/* With the table locked: the charge follows the pool upwards. Growth is paid out of what those inside have taken in
 * advance. Of that, what is pledged stays, and what the claims need that count on room somebody else's call may have
 * used up; the rest is spare. Returns what goes back or, negative, what is still to be taken. */
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
		table_unlock(t); /* somebody acted after the reading and left: it may be too low by now */
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
	if (back > 0)
		charge_return(p->device, (uint64_t)back);
	else if (back < 0) /* grew behind our back: it is there, so it is charged, limit or not */
		__atomic_fetch_add(&guest_usage(p->device)->charged_bytes, (uint64_t)-back, __ATOMIC_SEQ_CST);
}

/* Claim `bytes` of the pool and charge what it may have to grow by for them. */
static CUresult before(struct pool *p, uint64_t bytes, uint64_t *ret_held)
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
		/* the step is a guess: it may fit after all, and if not it is undone */
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

/* The driver has answered: the charge becomes what the pool has now. If that is over the limit the memory goes back. */
static CUresult after(struct pool *p, uint64_t held, CUresult r, const CUdeviceptr *dptr, uint64_t bytes,
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
		/* Count it all the same: it exists. Then undo it, waiting for the stream if need be. */
		__atomic_fetch_add(&guest_usage(p->device)->charged_bytes, (uint64_t)-back, __ATOMIC_SEQ_CST);
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
	entry.owner = (uint32_t)(p - guest_page->pools.pool);
	/* not in the map, its size is only missed when the pool is destroyed before it is freed */
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

/* The charge is taken before it is put into the pool: refused, it makes the pools give back what they only keep, this one
 * included, and a pool somebody is in does not shrink. */
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
	if (back > 0)
		charge_return(p->device, (uint64_t)back);
	else if (back < 0) /* more than the graph said: it is there, so it is charged, limit or not */
		__atomic_fetch_add(&guest_usage(p->device)->charged_bytes, (uint64_t)-back, __ATOMIC_SEQ_CST);
	leave(p);
}

bool pool_capturing(CUstream stream, bool per_thread)
{
	CUresult (*ask)(CUstream, CUstreamCaptureStatus *) =
		per_thread ? driver.cuStreamIsCapturing_ptsz : driver.cuStreamIsCapturing;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	/* the legacy stream answers with an error while another one captures: nothing will be allocated either */
	return ask && (ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* The device whose pool serves a stream: with one GPU there is no question. */
static CUresult stream_device(CUstream stream, bool per_thread, CUdevice *ret_dev)
{
	CUresult (*ask)(CUstream, CUcontext *) = per_thread ? driver.cuStreamGetCtx_ptsz : driver.cuStreamGetCtx;
	CUcontext own = NULL, context = NULL;
	CUresult r;

	if (guest_self()->device_count > 1 && (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD && ask &&
	    driver.cuCtxPushCurrent_v2 && driver.cuCtxPopCurrent_v2 && driver.cuCtxGetCurrent &&
	    ask(stream, &context) == CUDA_SUCCESS && driver.cuCtxGetCurrent(&own) == CUDA_SUCCESS && context != own &&
	    driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
		r = driver.cuCtxGetDevice(ret_dev);
		driver.cuCtxPopCurrent_v2(&own);
		return r;
	}
	return driver.cuCtxGetDevice ? driver.cuCtxGetDevice(ret_dev) : CUDA_ERROR_NOT_FOUND;
}

/* Which device a pool we did not see being made belongs to: one of the defaults, else the stream's. */
static struct pool *known_pool(CUmemoryPool handle, CUdevice fallback)
{
	struct pool_table *t = table_lock();
	struct pool *p = NULL;
	CUmemoryPool other;

	for (uint32_t i = 0; i < t->high && !p; i++)
		if (t->pool[i].state == POOL_LIVE && t->pool[i].handle == handle)
			p = &t->pool[i];
	table_unlock(t);
	if (p)
		return p;
	for (uint32_t i = 0; driver.cuDeviceGetDefaultMemPool && i < guest_self()->device_count; i++)
		if (driver.cuDeviceGetDefaultMemPool(&other, (CUdevice)i) == CUDA_SUCCESS && other == handle)
			fallback = (CUdevice)i;
	return pool_of(handle, guest_device_of_ordinal(fallback));
}

static CUresult alloc_async(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr *, size_t, CUstream) =
		per_thread ? driver.cuMemAllocAsync_ptsz : driver.cuMemAllocAsync;
	CUmemoryPool handle;
	struct pool *p;
	uint64_t held;
	CUdevice dev;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !guest_enter())
		return real(dptr, bytes, stream);
	if (pool_capturing(stream, per_thread) || !driver.cuDeviceGetMemPool ||
	    stream_device(stream, per_thread, &dev) != CUDA_SUCCESS ||
	    driver.cuDeviceGetMemPool(&handle, dev) != CUDA_SUCCESS) {
		r = real(dptr, bytes, stream); /* fails, or records a node */
	} else {
		p = known_pool(handle, dev);
		r = p && p->device >= 0 ? before(p, bytes, &held) : CUDA_ERROR_OUT_OF_MEMORY;
		if (r == CUDA_SUCCESS)
			r = after(p, held, real(dptr, bytes, stream), dptr, bytes, stream);
	}
	guest_leave();
	return r;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return alloc_async(dptr, bytes, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return alloc_async(dptr, bytes, stream, true);
}

static CUresult alloc_from_pool(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr *, size_t, CUmemoryPool, CUstream) =
		per_thread ? driver.cuMemAllocFromPoolAsync_ptsz : driver.cuMemAllocFromPoolAsync;
	struct pool *p;
	uint64_t held;
	CUdevice dev;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!dptr || bytes == 0 || !handle || !guest_enter())
		return real(dptr, bytes, handle, stream);
	if (pool_capturing(stream, per_thread) || stream_device(stream, per_thread, &dev) != CUDA_SUCCESS) {
		r = real(dptr, bytes, handle, stream);
	} else {
		p = known_pool(handle, dev);
		if (p && p->device == POOL_DEVICE_NONE) {
			r = real(dptr, bytes, handle, stream);
		} else {
			r = p && p->device >= 0 ? before(p, bytes, &held) : CUDA_ERROR_OUT_OF_MEMORY;
			if (r == CUDA_SUCCESS)
				r = after(p, held, real(dptr, bytes, handle, stream), dptr, bytes, stream);
		}
	}
	guest_leave();
	return r;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return alloc_from_pool(dptr, bytes, pool, stream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	return alloc_from_pool(dptr, bytes, pool, stream, true);
}

void pool_freed(const struct ptrmap_entry *entry)
{
	struct pool *p = &guest_page->pools.pool[entry->owner % POOL_MAX];
	uint64_t live = __atomic_sub_fetch(&p->live_bytes, entry->bytes, __ATOMIC_RELAXED), gone = 0;
	struct pool_table *t;

	__atomic_store_n(&guest_page->pools.freed, 1, __ATOMIC_RELEASE);
	if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) == POOL_LIVE) {
		enter(p);
		leave(p);
		return;
	}
	/* a destroyed pool lives on until its last allocation is freed, but cannot be asked any more */
	t = table_lock();
	if (p->state == POOL_DESTROYED && p->settled > live) {
		gone = p->settled - live;
		p->settled = live;
		if (live == 0)
			__atomic_store_n(&p->state, POOL_UNUSED, __ATOMIC_RELEASE);
	}
	table_unlock(t);
	if (gone)
		charge_return(p->device, gone);
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
	CUresult (*real)(CUdeviceptr, CUstream) = per_thread ? driver.cuMemFreeAsync_ptsz : driver.cuMemFreeAsync;
	struct ptrmap_entry entry;
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return real(dptr, stream);
	/* out of the map before the driver may give the address to another thread */
	if (ptrmap_take(PTRMAP_ASYNC, dptr, &entry) || ptrmap_take(PTRMAP_MEMORY, dptr, &entry)) {
		r = real(dptr, stream);
		if (r != CUDA_SUCCESS)
			ptrmap_put(&entry);
		else if (entry.kind == PTRMAP_ASYNC)
			pool_freed(&entry);
		else
			charge_return(entry.device, entry.bytes);
	} else {
		r = real(dptr, stream);
	}
	guest_leave();
	return r;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	return free_async(dptr, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
	return free_async(dptr, stream, true);
}

/* The device that a pool of this kind and place takes memory of. Pages of managed memory may come to any: to that of the
 * thread most likely. */
static int device_of_place(const CUmemLocation *location, CUmemAllocationType type)
{
	int ordinal = location_ordinal(location), device;

	if (ordinal >= 0)
		return guest_device_of_ordinal(ordinal);
	if (type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return POOL_DEVICE_NONE;
	device = guest_current_device();
	return device >= 0 ? device : guest_device_of_ordinal(0);
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props)
{
	CUresult r;

	if (!driver.cuMemPoolCreate)
		return CUDA_ERROR_NOT_FOUND;
	if (!handle || !props || !guest_enter())
		return driver.cuMemPoolCreate(handle, props);
	r = driver.cuMemPoolCreate(handle, props);
	if (r == CUDA_SUCCESS && !pool_of(*handle, device_of_place(&props->location, props->allocType))) {
		if (driver.cuMemPoolDestroy)
			driver.cuMemPoolDestroy(*handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

/* CUDA 13: pools that nobody made, of the host and of managed memory among them. */
static CUresult pool_at(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type,
                        CUresult (*real)(CUmemoryPool *, CUmemLocation *, CUmemAllocationType))
{
	CUresult r;

	if (!real)
		return CUDA_ERROR_NOT_FOUND;
	r = real(handle, location, type);
	if (r != CUDA_SUCCESS || !handle || !location || !guest_enter())
		return r;
	if (!pool_of(*handle, device_of_place(location, type)))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	guest_leave();
	return r;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type)
{
	return pool_at(handle, location, type, driver.cuMemGetDefaultMemPool);
}

CUresult cuMemGetMemPool(CUmemoryPool *handle, CUmemLocation *location, CUmemAllocationType type)
{
	return pool_at(handle, location, type, driver.cuMemGetMemPool);
}

/* Another process's pool. Nothing is allocated from it, and what is mapped of it its exporter pays for; but its figures are
 * of that memory, and a call with it that the driver refuses would have us charge them here. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *handle, void *shareable, CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
	CUresult r;

	if (!driver.cuMemPoolImportFromShareableHandle)
		return CUDA_ERROR_NOT_FOUND;
	r = driver.cuMemPoolImportFromShareableHandle(handle, shareable, type, flags);
	if (r != CUDA_SUCCESS || !handle || !guest_enter())
		return r;
	if (!pool_of(*handle, POOL_DEVICE_NONE)) {
		if (driver.cuMemPoolDestroy)
			driver.cuMemPoolDestroy(*handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	guest_leave();
	return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct pool *p = NULL;
	struct pool_table *t;
	uint64_t gone = 0;
	CUresult r;

	if (!driver.cuMemPoolDestroy)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemPoolDestroy(handle);
	t = table_lock();
	for (uint32_t i = 0; i < t->high && !p; i++)
		if (t->pool[i].state == POOL_LIVE && t->pool[i].handle == handle)
			p = &t->pool[i];
	if (p) /* before the driver may make a new pool under the same handle */
		__atomic_store_n(&p->state, POOL_DESTROYED, __ATOMIC_RELEASE);
	table_unlock(t);
	r = driver.cuMemPoolDestroy(handle);
	if (p) {
		t = table_lock();
		if (r != CUDA_SUCCESS) {
			__atomic_store_n(&p->state, POOL_LIVE, __ATOMIC_RELEASE);
		} else {
			/* what is handed out stays; what it only kept is gone */
			uint64_t live = __atomic_load_n(&p->live_bytes, __ATOMIC_RELAXED);

			if (p->settled > live) {
				gone = p->settled - live;
				p->settled = live;
			}
			if (live == 0)
				__atomic_store_n(&p->state, POOL_UNUSED, __ATOMIC_RELEASE);
		}
		table_unlock(t);
		if (gone)
			charge_return(p->device, gone);
	}
	guest_leave();
	return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	CUresult r;

	if (!driver.cuMemPoolTrimTo)
		return CUDA_ERROR_NOT_FOUND;
	if (!guest_enter())
		return driver.cuMemPoolTrimTo(handle, keep_bytes);
	r = driver.cuMemPoolTrimTo(handle, keep_bytes);
	for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
		pool_refresh(device);
	guest_leave();
	return r;
}

void pool_refresh(int device)
{
	struct pool_table *t = &guest_page->pools;

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
	if (__atomic_load_n(&guest_page->pools.freed, __ATOMIC_RELAXED) &&
	    __atomic_exchange_n(&guest_page->pools.freed, 0, __ATOMIC_ACQ_REL))
		for (int device = 0; device < SLUICE_MAX_DEVICES; device++)
			pool_refresh(device);
	guest_leave();
}

bool pool_give_back(int device)
{
	struct pool_table *t = &guest_page->pools;
	uint64_t before_bytes[SLUICE_MAX_DEVICES] = { 0 }, after_bytes[SLUICE_MAX_DEVICES] = { 0 };

	pool_sum(before_bytes);
	if (before_bytes[device] == 0)
		return false;
	for (uint32_t i = 0; i < __atomic_load_n(&t->high, __ATOMIC_ACQUIRE); i++) {
		struct pool *p = &t->pool[i];

		if (__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) != POOL_LIVE || p->device != device)
			continue;
		if (graphs_of(p) >= 0)
			graph_memory_trim(graphs_of(p));
		else if (driver.cuMemPoolTrimTo)
			driver.cuMemPoolTrimTo(p->handle, 0);
	}
	pool_refresh(device);
	pool_sum(after_bytes);
	return after_bytes[device] < before_bytes[device];
}

void pool_sum(uint64_t held[])
{
	struct pool_table *t = table_lock();

	for (uint32_t i = 0; i < t->high; i++)
		if (t->pool[i].state != POOL_UNUSED && t->pool[i].device >= 0)
			held[t->pool[i].device] += t->pool[i].settled + t->pool[i].held;
	table_unlock(t);
}
