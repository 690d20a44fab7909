/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon gives the slot of a process away while its threads are inside driver calls: `move_test MOVES SEED`. In the
 * current slot of the process, the charge is never below the driver's memory in use; when all is freed, it is 0.
 *
 * First a fixed sequence: one allocation is held up in the driver while the slot changes. Then at random: threads
 * allocate, free and launch while the slot changes MOVES times, now to another one, now to the same one emptied.
 *
 * The interposer is linked in, so that the sanitizers see it. The region is the one SLUICE_GRANT_DIR names; this
 * process also acts as the daemon.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "interpose/attach/attach.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "tests/interpose/check.h"

#define HELD 16
#define THREADS 4
#define CONTEXT_BYTES (UINT64_C(16) << 20) /* as in the stub */

static struct sluice_policy *policy;
static uint64_t (*stub_used)(int);
static void (*stub_stall)(int), (*stub_freeze)(int);
static int (*stub_stalled)(void);
static CUcontext primary;
static uint64_t allocations;
static int stop;

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static uint64_t charged_in(uint32_t slot)
{
	return __atomic_load_n(&guest_self()->usage->slot[slot].dev[0].charged_bytes, __ATOMIC_SEQ_CST);
}

/* The daemon's writes into a slot whose owner is dead. */
static void empty(uint32_t slot)
{
	uint64_t *words = (uint64_t *)&guest_self()->usage->slot[slot];

	for (size_t i = 0; i < sizeof(struct sluice_usage_slot) / sizeof(*words); i++)
		__atomic_store_n(&words[i], 0, __ATOMIC_SEQ_CST);
}

/* From now on the slot belongs to another process; or it is free, and empty. */
static void give_away(uint32_t slot, bool to_somebody)
{
	struct sluice_policy_entry entry = { .host_pid = 1 };
	uint64_t generation;

	CHECK_EQUAL(sluice_policy_own_slot(policy, slot, &entry, &generation), 0);
	if (!to_somebody) {
		empty(slot);
		CHECK_EQUAL(sluice_policy_free_slot(policy, slot), 0);
	}
}

/* The other process has ended as well. */
static void take_back(uint32_t slot)
{
	empty(slot);
	CHECK_EQUAL(sluice_policy_free_slot(policy, slot), 0);
}

/* No thread allocates or frees inside the driver meanwhile, so truth and charge belong to one moment. */
static void check_never_below(uint32_t slot)
{
	stub_freeze(1);
	uint64_t used = stub_used(0) - CONTEXT_BYTES, charged = charged_in(slot);

	stub_freeze(0);
	if (charged < used)
		fprintf(stderr, "slot %u: %llu charged, %llu in use\n", slot, (unsigned long long)charged,
		        (unsigned long long)used);
	CHECK(charged >= used);
}

/* --- a fixed sequence -------------------------------------------------------------------------------------------- */

static void *allocate_held_up(void *arg)
{
	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(arg, 64 << 20), CUDA_SUCCESS);
	return NULL;
}

static void one_call_is_held_up(void)
{
	uint32_t first_slot = guest_slot(), second_slot;
	CUdeviceptr first, held_up, last;
	pthread_t thread;

	CHECK_EQUAL(cuMemAlloc_v2(&first, 8 << 20), CUDA_SUCCESS);
	stub_stall(1);
	CHECK_EQUAL(pthread_create(&thread, NULL, allocate_held_up, &held_up), 0);
	while (stub_stalled() == 0)
		nap();
	give_away(first_slot, true);
	CHECK_EQUAL(cuMemAllocAsync(&last, 2 << 20, NULL), CUDA_SUCCESS); /* detects the change, and moves */
	second_slot = guest_slot();
	CHECK(second_slot != first_slot);
	check_never_below(second_slot);
	CHECK_EQUAL(charged_in(second_slot), (8 << 20) + (64 << 20) + (2 << 20));
	stub_stall(0);
	pthread_join(thread, NULL);
	CHECK_EQUAL(charged_in(second_slot), (8 << 20) + (64 << 20) + (2 << 20));
	take_back(first_slot);

	give_away(second_slot, true);
	CHECK_EQUAL(cuMemFree_v2(first), CUDA_SUCCESS); /* detects it, too: the slot's charge is another process's */
	CHECK(guest_slot() != second_slot);
	CHECK_EQUAL(charged_in(guest_slot()), (64 << 20) + (2 << 20));
	CHECK_EQUAL(cuMemFree_v2(held_up), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemFree_v2(last), CUDA_SUCCESS);
	take_back(second_slot);
}

/* --- at random ---------------------------------------------------------------------------------------------------- */

static void *work(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg * 2654435761u + 1;
	CUdeviceptr held[HELD] = { 0 };

	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		CUdeviceptr *p = &held[next(&seed) % HELD];
		uint64_t bytes = 1 + next(&seed) % (UINT64_C(8) << 20);

		if (*p) {
			CHECK_EQUAL(cuMemFree_v2(*p), CUDA_SUCCESS);
			*p = 0;
		} else if ((bytes % 4 ? cuMemAlloc_v2(p, bytes) : cuMemAllocAsync(p, bytes, NULL)) == CUDA_SUCCESS) {
			__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
		} else {
			*p = 0;
		}
		CHECK_EQUAL(cuLaunchKernel((CUfunction)0x77, 5, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
	}
	for (int i = 0; i < HELD; i++)
		CHECK_EQUAL(cuMemFree_v2(held[i]), CUDA_SUCCESS);
	return NULL;
}

/* Wait until a thread of the process has noticed that the slot belongs to another process. */
static void wait_for_move(uint32_t slot, bool to_somebody, uint64_t generation)
{
	const struct sluice_usage_slot *s = &guest_self()->usage->slot[slot];

	if (to_somebody)
		while (guest_slot() == slot)
			nap();
	else /* it may get the same slot again: then its identity is in it */
		while (guest_slot() == slot && __atomic_load_n(&s->generation_seen, __ATOMIC_ACQUIRE) != generation)
			nap();
}

static void threads_work(long moves, uint64_t seed)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(seed + (uint64_t)i)), 0);
	for (long i = 0; i < moves; i++) {
		uint32_t slot = guest_slot();
		bool to_somebody = next(&seed) % 2;

		if (next(&seed) % 2)
			stub_stall(1);
		nap();
		give_away(slot, to_somebody);
		if (next(&seed) % 2)
			nap();
		/* now at the latest a thread allocates or frees again */
		stub_stall(0);
		wait_for_move(slot, to_somebody, policy->dir[slot].generation);
		check_never_below(guest_slot());
		if (to_somebody)
			take_back(slot);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	long moves = argc > 1 ? strtol(argv[1], NULL, 10) : 200;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) * 2 + 1 : 1;
	CUmemoryPool pool;
	void *stub;

	policy = map_policy();
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuCtxSetCurrent(primary), CUDA_SUCCESS);
	stub = dlopen(attach_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
	CHECK(stub);
	stub_used = (uint64_t(*)(int))dlsym(stub, "stub_used");
	stub_stall = (void (*)(int))dlsym(stub, "stub_stall");
	stub_freeze = (void (*)(int))dlsym(stub, "stub_freeze");
	stub_stalled = (int (*)(void))dlsym(stub, "stub_stalled");
	CHECK(stub_used && stub_stall && stub_freeze && stub_stalled);

	one_call_is_held_up();
	threads_work(moves, seed);
	CHECK_EQUAL(driver.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	CHECK_EQUAL(stub_used(0), CONTEXT_BYTES);
	CHECK_EQUAL(charged_in(guest_slot()), 0);
	printf("{\"allocations\": %llu}\n", (unsigned long long)allocations);
	return 0;
}
