/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random program of all kinds of allocation, run through the interposer over the stub driver: `accounting_test STEPS
 * SEED THREADS`. After every step the grant's charge equals the driver's memory in use, to the byte (except for
 * contexts, because the stub has no NVML that reports them). Then threads share the pool: the driver never hands out
 * more than the limit, not even for a moment.
 *
 * The interposer is linked in, so that the sanitizers see it. The region is the one SLUICE_GRANT_DIR names.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "interpose/attach/attach.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "tests/interpose/check.h"

#define HELD 64
#define CONTEXT_BYTES (UINT64_C(16) << 20) /* as in the stub */
#define STEP (UINT64_C(2) << 20)

enum kind { NOTHING, PLAIN, ARRAY, MIPMAP, ASYNC, HANDLE, MAPPING, POOL, CONTEXT };

struct held {
	enum kind kind;
	uint64_t value, bytes;
	void *context;
};

static uint64_t (*stub_used)(int), (*stub_peak)(int);
static void (*stub_forget_peak)(int);
static uint64_t refused;
static CUcontext primary;

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

/* Success or out-of-memory; anything else is a bug in the test or the interposer. */
static bool ok(CUresult r)
{
	CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
	if (r != CUDA_SUCCESS)
		__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
	return r == CUDA_SUCCESS;
}

static void make(struct held *h, uint64_t *seed, uint64_t address, const struct held *other)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = { .Width = 1 + next(seed) % 2000,
		                         .Height = next(seed) % 500,
		                         .Depth = next(seed) % 20,
		                         .Format = CU_AD_FORMAT_FLOAT,
		                         .NumChannels = 2 };
	CUDA_ARRAY_DESCRIPTOR flat = { desc.Width, desc.Height, CU_AD_FORMAT_FLOAT, 4 };
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		                     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	CUmemPoolProps pool = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	uint64_t bytes = 1 + next(seed) % (UINT64_C(40) << 20), value = 0;
	size_t pitch;

	h->kind = NOTHING;
	switch (next(seed) % 11) {
	case 0:
	case 1:
		if (ok(cuMemAlloc_v2((CUdeviceptr *)&value, bytes)))
			h->kind = PLAIN;
		break;
	case 2:
		if (ok(cuMemAllocPitch_v2((CUdeviceptr *)&value, &pitch, 1 + bytes % 3000, 1 + bytes % 7000, 4)))
			h->kind = PLAIN;
		break;
	case 3:
		if (ok(cuMemAllocManaged((CUdeviceptr *)&value, bytes, CU_MEM_ATTACH_GLOBAL)))
			h->kind = PLAIN;
		break;
	case 4:
		if (ok(bytes % 2 ? cuArray3DCreate_v2((CUarray *)&value, &desc)
		                 : cuArrayCreate_v2((CUarray *)&value, &flat)))
			h->kind = ARRAY;
		break;
	case 5:
		if (ok(cuMipmappedArrayCreate((CUmipmappedArray *)&value, &desc, 3)))
			h->kind = MIPMAP;
		break;
	case 6:
		if (ok(other->kind == POOL
		               ? cuMemAllocFromPoolAsync((CUdeviceptr *)&value, bytes, (CUmemoryPool)other->value, NULL)
		               : cuMemAllocAsync((CUdeviceptr *)&value, bytes, NULL)))
			h->kind = ASYNC;
		break;
	case 7:
		bytes = (1 + bytes % 10) * STEP;
		if (ok(cuMemCreate((CUmemGenericAllocationHandle *)&value, bytes, &prop, 0)))
			h->kind = HANDLE;
		break;
	case 8:
		if (other->kind == HANDLE) {
			CHECK_EQUAL(cuMemMap(address, other->bytes, 0, other->value, 0), CUDA_SUCCESS);
			value = address;
			bytes = other->bytes;
			h->kind = MAPPING;
		} else if (other->kind == MAPPING) { /* a second handle to memory that is mapped */
			CHECK_EQUAL(cuMemRetainAllocationHandle((CUmemGenericAllocationHandle *)&value,
			                                        (void *)(other->value + STEP / 2)),
			            CUDA_SUCCESS);
			bytes = other->bytes;
			h->kind = HANDLE;
		}
		break;
	case 9:
		if (next(seed) % 4 == 0 && ok(cuMemPoolCreate((CUmemoryPool *)&value, &pool)))
			h->kind = POOL;
		break;
	case 10:
		if (next(seed) % 4 == 0 && ok(cuCtxCreate_v2((CUcontext *)&value, 0, 0))) {
			CUcontext popped;

			CHECK_EQUAL(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
			h->kind = CONTEXT;
		}
		break;
	}
	h->value = value;
	h->bytes = bytes;
}

static void drop(struct held *h, uint64_t *seed)
{
	switch (h->kind) {
	case PLAIN:
		CHECK_EQUAL(next(seed) % 4 ? cuMemFree_v2(h->value) : cuMemFreeAsync(h->value, NULL), CUDA_SUCCESS);
		break;
	case ASYNC:
		CHECK_EQUAL(next(seed) % 4 ? cuMemFreeAsync(h->value, NULL) : cuMemFree_v2(h->value), CUDA_SUCCESS);
		break;
	case ARRAY:
		CHECK_EQUAL(cuArrayDestroy((CUarray)h->value), CUDA_SUCCESS);
		break;
	case MIPMAP:
		CHECK_EQUAL(cuMipmappedArrayDestroy((CUmipmappedArray)h->value), CUDA_SUCCESS);
		break;
	case HANDLE:
		CHECK_EQUAL(cuMemRelease(h->value), CUDA_SUCCESS);
		break;
	case MAPPING:
		CHECK_EQUAL(cuMemUnmap(h->value, h->bytes), CUDA_SUCCESS);
		break;
	case POOL:
		CHECK_EQUAL(cuMemPoolDestroy((CUmemoryPool)h->value), CUDA_SUCCESS);
		break;
	case CONTEXT: { /* with an allocation in it, which ends with it */
		CUcontext popped;
		CUdeviceptr p;

		CHECK_EQUAL(cuCtxPushCurrent_v2((CUcontext)h->value), CUDA_SUCCESS);
		ok(cuMemAlloc_v2(&p, 12345));
		CHECK_EQUAL(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
		CHECK_EQUAL(cuCtxDestroy_v2((CUcontext)h->value), CUDA_SUCCESS);
		break;
	}
	case NOTHING:
		break;
	}
	h->kind = NOTHING;
}

static uint64_t charged(void)
{
	return sluice_memory_charged(guest_self()->policy, guest_self()->usage, 0);
}

static void one_thread(uint64_t seed, long steps)
{
	struct held held[HELD] = { 0 };
	uint64_t contexts, limit = guest_memory_limit(0);

	for (long step = 0; step < steps; step++) {
		uint64_t i = next(&seed) % HELD;

		if (held[i].kind)
			drop(&held[i], &seed);
		else
			make(&held[i], &seed, UINT64_C(0x500000000000) + (i << 30), &held[next(&seed) % HELD]);
		if (step % 64 == 0)
			CHECK_EQUAL(cuMemFree_v2(0x1234), CUDA_ERROR_INVALID_VALUE); /* an address never allocated */
		contexts = 1;
		for (int j = 0; j < HELD; j++)
			contexts += held[j].kind == CONTEXT;
		CHECK_EQUAL(charged(), stub_used(0) - contexts * CONTEXT_BYTES);
		CHECK(charged() <= limit);
	}
	for (int i = 0; i < HELD; i++)
		if (held[i].kind != POOL)
			drop(&held[i], &seed);
	for (int i = 0; i < HELD; i++)
		drop(&held[i], &seed);
}

/* Several threads, plain and stream-ordered memory: exact again when they are done, never over the limit meanwhile. */
static void *many(void *arg)
{
	uint64_t seed = *(uint64_t *)arg;
	struct held held[HELD] = { 0 };

	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	for (int step = 0; step < 4000; step++) {
		struct held *h = &held[next(&seed) % HELD];
		uint64_t bytes = 1 + next(&seed) % (UINT64_C(20) << 20), value = 0;

		if (h->kind) {
			drop(h, &seed);
			continue;
		}
		if (next(&seed) % 3) {
			if (ok(cuMemAlloc_v2((CUdeviceptr *)&value, bytes)))
				h->kind = PLAIN;
		} else if (ok(cuMemAllocAsync((CUdeviceptr *)&value, bytes, NULL))) {
			h->kind = ASYNC;
		}
		h->value = value;
	}
	for (int i = 0; i < HELD; i++)
		drop(&held[i], &seed);
	return NULL;
}

int main(int argc, char **argv)
{
	long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) * 2 + 1 : 1, seeds[8];
	int threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 4;
	CUdeviceptr foreign;
	CUmemoryPool pool;
	pthread_t t[8];
	void *stub;

	CHECK_EQUAL(cuMemAlloc_v2(&foreign, 1), CUDA_ERROR_NOT_INITIALIZED); /* loads the driver and calls it */
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&foreign, 1), CUDA_ERROR_INVALID_CONTEXT);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	stub = dlopen(attach_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
	CHECK(stub);
	stub_used = (uint64_t(*)(int))dlsym(stub, "stub_used");
	stub_peak = (uint64_t(*)(int))dlsym(stub, "stub_peak");
	stub_forget_peak = (void (*)(int))dlsym(stub, "stub_forget_peak");
	CHECK(stub_used && stub_peak && stub_forget_peak);

	one_thread(seed, steps);
	CHECK_EQUAL(cuMemPoolTrimTo(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(driver.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(charged(), 0);
	CHECK_EQUAL(stub_used(0), CONTEXT_BYTES);
	stub_forget_peak(
		0); /* sizes of arrays and pitches are estimates until they are corrected; these threads make none */
	for (int i = 0; i < threads; i++) {
		seeds[i] = seed + 1000 + (uint64_t)i;
		CHECK_EQUAL(pthread_create(&t[i], NULL, many, &seeds[i]), 0);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	CHECK_EQUAL(charged(), stub_used(0) - CONTEXT_BYTES);
	CHECK(stub_peak(0) <= guest_memory_limit(0));
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(charged(), 0);
	CHECK_EQUAL(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
	printf("{\"refused\": %llu, \"charged\": %llu, \"peak\": %llu, \"limit\": %llu, \"contexts\": %llu}\n",
	       (unsigned long long)refused, (unsigned long long)charged(), (unsigned long long)stub_peak(0),
	       (unsigned long long)guest_memory_limit(0), (unsigned long long)CONTEXT_BYTES);
	return 0;
}
