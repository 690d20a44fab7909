/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver small enough to see through: allocations are numbers in a table, work is not done, time does not pass.
 *
 * It stands for "a driver that is not our simulator". It keeps the truth (bytes in use per device, highest ever) so
 * that tests can compare, lets them order the next failure, and counts calls by name so that they can see what reached
 * it. stub_* functions are the test's side; STUB_* in the environment is for tests that cannot call them.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "interpose/cuda_abi.h"

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

struct mapping {
	uint64_t address, bytes;
	struct object *physical;
};

static struct {
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
} gpu[DEVICES];

static struct object objects[OBJECTS];
static struct mapping mappings[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static int fail_next; /* CUresult of the next allocating call */
static __thread struct object *stack[16];
static __thread int depth;
static int hint = 1;
static uint64_t launches, capturing;

static int devices(void)
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

/* --- the table ---------------------------------------------------------------------------------------------------- */

static bool take(int dev, uint64_t bytes, enum kind kind)
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

static struct object *make(enum kind kind, int dev, uint64_t bytes)
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

static uint64_t address_of(const struct object *o)
{
	return UINT64_C(0x700000000000) + (uint64_t)(o - objects) * 0x10000;
}

static struct object *object_at(uint64_t address, enum kind kind)
{
	uint64_t i = (address - UINT64_C(0x700000000000)) / 0x10000;

	if (address < UINT64_C(0x700000000000) || i >= OBJECTS || objects[i].kind != kind ||
	    address_of(&objects[i]) != address)
		return NULL;
	return &objects[i];
}

static struct object *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static CUresult begin(void)
{
	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Allocate under the lock; 0 on failure. */
static CUresult allocate(enum kind kind, int dev, uint64_t bytes, uint64_t owner, struct object **ret)
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

static void discard(struct object *o)
{
	gpu[o->dev].used -= o->bytes;
	if (o->kind == CONTEXT)
		gpu[o->dev].contexts -= o->bytes;
	o->kind = FREE;
}

/* --- devices and contexts ------------------------------------------------------------------------------------------ */

API CUresult cuInit(unsigned int flags)
{
	(void)flags;
	for (int i = 0; i < DEVICES; i++)
		if (!gpu[i].total)
			gpu[i].total = UINT64_C(16) << 30;
	initialised = true;
	return CUDA_SUCCESS;
}
API CUresult cuDriverGetVersion(int *version)
{
	const char *said = getenv("STUB_VERSION");

	*version = said ? atoi(said) : 13000;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *count)
{
	*count = devices();
	return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
API CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	*dev = ordinal;
	return ordinal >= 0 && ordinal < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
/* STUB_ORDER: the device numbers in CUDA order, as CUDA_VISIBLE_DEVICES would make them. */
API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	const char *order = getenv("STUB_ORDER");
	int physical = order && dev >= 0 && (size_t)dev < strlen(order) ? order[dev] - '0' : dev;

	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, 0xd0 + physical, sizeof(*uuid));
	return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	*bytes = gpu[dev].total;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	snprintf(name, (size_t)len, "stub %d", dev);
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, CUdevice dev)
{
	struct object *o;
	CUresult r;

	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	r = allocate(CONTEXT, dev, CONTEXT_BYTES, 0, &o);
	if (r == CUDA_SUCCESS)
		*context = (CUcontext)o;
	return r;
}
static void clear_context(struct object *context)
{
	for (int i = 0; i < OBJECTS; i++)
		if ((objects[i].kind == MEMORY || objects[i].kind == ARRAY || objects[i].kind == MIPMAP) &&
		    objects[i].owner == (uint64_t)context)
			discard(&objects[i]);
	discard(context);
}
API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev)
{
	CUresult r = create(context, dev);

	(void)flags;
	if (r == CUDA_SUCCESS)
		stack[depth++] = (struct object *)*context;
	return r;
}
API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return cuCtxCreate_v2(context, flags, dev);
}
API CUresult cuCtxDestroy_v2(CUcontext context)
{
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	if (current() == (struct object *)context)
		depth--;
	clear_context((struct object *)context);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev)
{
	static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
	CUresult r = CUDA_SUCCESS;

	if (dev < 0 || dev >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&retaining);
	if (!gpu[dev].primary) {
		/* making a context takes a while, long enough for another thread to come and wait for it */
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		r = create(context, dev);
		if (r == CUDA_SUCCESS)
			gpu[dev].primary = (struct object *)*context;
	}
	*context = (CUcontext)gpu[dev].primary;
	gpu[dev].primary_count += r == CUDA_SUCCESS;
	pthread_mutex_unlock(&retaining);
	return r;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	pthread_mutex_lock(&lock);
	if (gpu[dev].primary)
		clear_context(gpu[dev].primary);
	gpu[dev].primary = NULL;
	gpu[dev].primary_count = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	if (gpu[dev].primary_count == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	return --gpu[dev].primary_count ? CUDA_SUCCESS : cuDevicePrimaryCtxReset_v2(dev);
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = gpu[dev].primary != NULL;
	return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context)
{
	depth = context ? 1 : 0;
	stack[0] = (struct object *)context;
	return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	stack[depth++] = (struct object *)context;
	return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = (CUcontext)stack[--depth];
	return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)current();
	return CUDA_SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUresult r = begin();

	if (r == CUDA_SUCCESS)
		*dev = current()->dev;
	return r;
}
/* --- memory ---------------------------------------------------------------------------------------------------------- */

/* As drivers do: whole granules above 1 MiB, powers of two below. */
static uint64_t taken(uint64_t bytes)
{
	uint64_t size = 512, granule = 2u << 20;

	if (bytes > granule / 2)
		return bytes > UINT64_MAX - granule ? UINT64_MAX : (bytes + granule - 1) / granule * granule;
	while (size < bytes)
		size *= 2;
	return size;
}

static CUresult plain(enum kind kind, uint64_t bytes, uint64_t *ret)
{
	struct object *o;
	CUresult r = begin();

	if (r == CUDA_SUCCESS && bytes == 0)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = allocate(kind, current()->dev, taken(bytes), (uint64_t)current(), &o);
	if (r == CUDA_SUCCESS)
		*ret = address_of(o);
	return r;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes)
{
	return dptr ? plain(MEMORY, bytes, (uint64_t *)dptr) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	return flags == 1 || flags == 2 ? plain(MEMORY, bytes, (uint64_t *)dptr) : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	if (element != 4 && element != 8 && element != 16)
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 1023) / 1024 * 1024; /* not what the interposer guesses */
	return plain(MEMORY, *pitch * height, (uint64_t *)dptr);
}
API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	return plain(ARRAY, desc->Width * (desc->Height ? desc->Height : 1) * 4 * desc->NumChannels, (uint64_t *)array);
}
API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	return plain(ARRAY,
	             desc->Width * (desc->Height ? desc->Height : 1) * (desc->Depth ? desc->Depth : 1) * 4 *
	                     desc->NumChannels,
	             (uint64_t *)array);
}
API CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
	(void)levels;
	return plain(MIPMAP, desc->Width * (desc->Height ? desc->Height : 1) * 6 * desc->NumChannels,
	             (uint64_t *)array);
}
API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUarray array, CUdevice dev)
{
	struct object *o = object_at((uint64_t)array, ARRAY);

	(void)dev;
	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	*need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = o->bytes, .alignment = 512 };
	return CUDA_SUCCESS;
}
API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray array,
                                                   CUdevice dev)
{
	struct object *o = object_at((uint64_t)array, MIPMAP);

	(void)dev;
	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	*need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = o->bytes, .alignment = 512 };
	return CUDA_SUCCESS;
}
static CUresult give_back(uint64_t address, enum kind kind, CUresult wrong)
{
	struct object *o;

	pthread_mutex_lock(&lock);
	o = object_at(address, kind);
	if (o)
		discard(o);
	pthread_mutex_unlock(&lock);
	return o ? CUDA_SUCCESS : wrong;
}
API CUresult cuArrayDestroy(CUarray array)
{
	return give_back((uint64_t)array, ARRAY, CUDA_ERROR_INVALID_HANDLE);
}
API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	return give_back((uint64_t)array, MIPMAP, CUDA_ERROR_INVALID_HANDLE);
}
API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	CUresult r = begin();

	if (r == CUDA_SUCCESS) {
		*total_bytes = gpu[current()->dev].total;
		*free_bytes = *total_bytes - stub_used(current()->dev);
	}
	return r;
}

/* --- pools: grow by whole granules, shrink when trimmed ----------------------------------------------------------- */

static CUresult from_pool(CUdeviceptr *dptr, size_t bytes, struct object *pool)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t more = 0;
	struct object *o;

	if (capturing) {
		*dptr = UINT64_C(0x600000000000);
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&lock);
	if (pool->used + bytes > pool->bytes)
		more = (pool->used + bytes - pool->bytes + GRANULE - 1) / GRANULE * GRANULE;
	if (!take(pool->dev, more, POOL)) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		pool->bytes += more;
		pool->used += bytes;
		o = make(ASYNC, pool->dev, bytes);
		o->owner = (uint64_t)pool;
		*dptr = address_of(o);
	}
	pthread_mutex_unlock(&lock);
	return r;
}
static bool async_free(CUdeviceptr dptr)
{
	struct object *o, *pool;

	pthread_mutex_lock(&lock);
	o = object_at(dptr, ASYNC);
	if (o) {
		pool = (struct object *)o->owner;
		pool->used -= o->bytes;
		o->kind = FREE;
		if (pool->dead) {
			gpu[pool->dev].used -= o->bytes;
			pool->bytes -= o->bytes;
			if (pool->used == 0)
				pool->kind = FREE;
		}
	}
	pthread_mutex_unlock(&lock);
	return o != NULL;
}
API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	pthread_mutex_lock(&lock);
	if (!gpu[dev].default_pool)
		gpu[dev].default_pool = make(POOL, dev, 0);
	pthread_mutex_unlock(&lock);
	*pool = (CUmemoryPool)gpu[dev].default_pool;
	return CUDA_SUCCESS;
}
API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	if (!gpu[dev].pool)
		return cuDeviceGetDefaultMemPool(pool, dev);
	*pool = (CUmemoryPool)gpu[dev].pool;
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	pthread_mutex_lock(&lock);
	*pool = (CUmemoryPool)make(POOL, props->location.id, 0);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct object *pool = (struct object *)handle;
	uint64_t floor;

	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	floor = (pool->used + GRANULE - 1) / GRANULE * GRANULE;
	if (floor < keep)
		floor = keep;
	if (pool->bytes > floor) {
		gpu[pool->dev].used -= pool->bytes - floor;
		pool->bytes = floor;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct object *pool = (struct object *)handle;

	pthread_mutex_lock(&lock);
	gpu[pool->dev].used -= pool->bytes - pool->used;
	pool->bytes = pool->used;
	pool->dead = true;
	if (pool->used == 0)
		pool->kind = FREE;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value)
{
	struct object *pool = (struct object *)handle;

	if (pool->kind != POOL || pool->dead)
		return CUDA_ERROR_INVALID_VALUE;
	*(uint64_t *)value = which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? pool->bytes : pool->used;
	return CUDA_SUCCESS;
}
API CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	CUmemoryPool pool;
	CUresult r = begin();

	(void)stream;
	if (r != CUDA_SUCCESS)
		return r;
	cuDeviceGetMemPool(&pool, current()->dev);
	return from_pool(dptr, bytes, (struct object *)pool);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)stream;
	return from_pool(dptr, bytes, (struct object *)pool);
}
API CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	if (async_free(dptr))
		return CUDA_SUCCESS;
	return dptr ? give_back(dptr, MEMORY, CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}
API CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
	(void)stream;
	return cuMemFree_v2(dptr);
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	(void)stream;
	*status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}
/* --- VMM: handles are reused at once, as real drivers may ------------------------------------------------------------ */

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                         unsigned long long flags)
{
	struct object *o;
	CUresult r;

	(void)flags;
	if (bytes % GRANULE)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		bytes = 0;
	else if (prop->location.id < 0 || prop->location.id >= devices())
		return CUDA_ERROR_INVALID_DEVICE;
	r = allocate(PHYSICAL, bytes ? prop->location.id : 0, bytes, 0, &o);
	if (r == CUDA_SUCCESS)
		*handle = (uint64_t)o;
	return r;
}
static void unreference(struct object *o)
{
	if (--o->references == 0)
		discard(o);
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct object *o = (struct object *)handle;

	pthread_mutex_lock(&lock);
	unreference(o);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags)
{
	(void)flags;
	(void)offset;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (!mappings[i].bytes) {
			mappings[i] = (struct mapping){ address, bytes, (struct object *)handle };
			mappings[i].physical->references++;
			break;
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && mappings[i].address >= address && mappings[i].address < address + bytes) {
			unreference(mappings[i].physical);
			mappings[i].bytes = 0;
		}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && (uint64_t)address - mappings[i].address < mappings[i].bytes) {
			mappings[i].physical->references++;
			*handle = (uint64_t)mappings[i].physical;
			r = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return r;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	CUresult r = CUDA_ERROR_NOT_FOUND;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		if (mappings[i].bytes && address - mappings[i].address < mappings[i].bytes) {
			*base = mappings[i].address;
			*bytes = mappings[i].bytes;
			r = CUDA_SUCCESS;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

/* --- launching -------------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

API uint64_t stub_busy_ns(int dev)
{
	return __atomic_load_n(&gpu[dev].busy_ns, __ATOMIC_SEQ_CST);
}

/* Takes `gx` microseconds of the device. */
API CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                            unsigned int by, unsigned int bz, unsigned int bytes, CUstream stream, void **params,
                            void **extra)
{
	uint64_t now = now_ns();

	(void)f, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)bytes, (void)stream, (void)params;
	(void)extra;
	__atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
	if (!current())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (gpu[current()->dev].idle_ns < now)
		gpu[current()->dev].idle_ns = now;
	gpu[current()->dev].idle_ns += 1000 * (uint64_t)gx;
	gpu[current()->dev].busy_ns += 1000 * (uint64_t)gx;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

static uint64_t idle_ns(void)
{
	uint64_t idle;

	pthread_mutex_lock(&lock);
	idle = current() ? gpu[current()->dev].idle_ns : 0;
	pthread_mutex_unlock(&lock);
	return idle;
}
static CUresult wait_until(uint64_t end)
{
	uint64_t now = now_ns();

	if (end > now)
		nanosleep(&(struct timespec){ .tv_sec = (time_t)((end - now) / 1000000000u),
		                              .tv_nsec = (long)((end - now) % 1000000000u) },
		          NULL);
	return begin();
}
API CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	return wait_until(idle_ns());
}
API CUresult cuCtxSynchronize(void)
{
	return wait_until(idle_ns());
}

/* Events are never reused and never freed: a handle that outlived its context shows as an error. */
static struct event {
	struct object *context;
	uint64_t at_ns;
} events[1 << 16];
static uint32_t events_made;

static struct event *event_of(CUevent handle)
{
	struct event *e = (struct event *)handle;

	return e >= events && e < events + sizeof(events) / sizeof(events[0]) && e->context &&
	                       e->context->kind == CONTEXT
	               ? e
	               : NULL;
}
API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	uint32_t i = __atomic_fetch_add(&events_made, 1, __ATOMIC_RELAXED);

	(void)flags;
	if (!current() || i >= sizeof(events) / sizeof(events[0]))
		return CUDA_ERROR_INVALID_CONTEXT;
	events[i].context = current();
	*event = (CUevent)&events[i];
	return CUDA_SUCCESS;
}
API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct event *e = event_of(event);
	uint64_t at = idle_ns(), now = now_ns();

	(void)stream;
	if (!e || e->context != current())
		return CUDA_ERROR_INVALID_HANDLE;
	__atomic_store_n(&e->at_ns, at > now ? at : now, __ATOMIC_SEQ_CST);
	return CUDA_SUCCESS;
}
API CUresult cuEventQuery(CUevent event)
{
	struct event *e = event_of(event);

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return __atomic_load_n(&e->at_ns, __ATOMIC_SEQ_CST) <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	struct event *a = event_of(start), *b = event_of(end);

	if (!a || !b)
		return CUDA_ERROR_INVALID_HANDLE;
	*ms = (float)(int64_t)(b->at_ns - a->at_ns) / 1e6f;
	return CUDA_SUCCESS;
}
API CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                 unsigned int by, unsigned int bz, unsigned int bytes, CUstream stream, void **params,
                                 void **extra)
{
	return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
}

/* Eleven arguments of mixed kinds: what a trampoline must carry over untouched. */
API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	return (CUresult)copy->WidthInBytes;
}

/* --- resolving -------------------------------------------------------------------------------------------------------- */

#include "stub_resolve.h"

/* --- a system where GPUs use the host's own memory (HMM, ATS): every address may be moved --------------------------- */

static uint64_t moved;

API uint64_t stub_moved(void)
{
	return moved;
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
	/* addresses of this driver are those of its table */
	if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || !object_at(address, MEMORY))
		return CUDA_ERROR_INVALID_VALUE;
	*(unsigned int *)data = CU_MEMORYTYPE_DEVICE;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)stream;
	moved++;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)flags, (void)stream;
	moved++;
	return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *address, size_t *bytes, size_t count, CUmemLocation *to,
                                     size_t *first, size_t locations, unsigned long long flags, CUstream stream)
{
	(void)address, (void)bytes, (void)to, (void)first, (void)locations, (void)flags, (void)stream;
	moved += count;
	return CUDA_SUCCESS;
}

API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	(void)address, (void)bytes, (void)advice, (void)location;
	moved++;
	return CUDA_SUCCESS;
}

/* --- executable graphs: one length for all, which the test changes, and every call that may change one -------------- */

static unsigned graph_us = 10;

API void stub_set_graph_us(unsigned us)
{
	graph_us = us;
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return cuLaunchKernel((CUfunction)exec, graph_us, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

#define CHANGES(name)                                                                                                  \
	API CUresult name(CUgraphExec exec, const void *what)                                                          \
	{                                                                                                              \
		(void)exec, (void)what;                                                                                \
		return CUDA_SUCCESS;                                                                                   \
	}

CHANGES(cuGraphExecUpdate)
CHANGES(cuGraphExecUpdate_v2)
CHANGES(cuGraphExecKernelNodeSetParams)
CHANGES(cuGraphExecKernelNodeSetParams_v2)
CHANGES(cuGraphExecMemcpyNodeSetParams)
CHANGES(cuGraphExecMemsetNodeSetParams)
CHANGES(cuGraphExecHostNodeSetParams)
CHANGES(cuGraphExecChildGraphNodeSetParams)
CHANGES(cuGraphExecBatchMemOpNodeSetParams)
CHANGES(cuGraphExecNodeSetParams)
CHANGES(cuGraphNodeSetEnabled)
CHANGES(cuGraphExecDestroy)
