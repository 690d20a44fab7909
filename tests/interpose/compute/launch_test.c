/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads launch through the gate while limits and turns change under them: `launch_test THREADS LAUNCHES`. They wait,
 * create and destroy contexts, switch between GPUs and unload modules in between. Afterwards only the threads' credit
 * is in flight, every launch is counted, and the charged time is about the busy time of the stub's GPUs.
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
#include "interpose/compute/throttle.h"
#include "interpose/driver/driver.h"
#include "interpose/tenant/guest.h"
#include "tests/interpose/check.h"

#define DEVICES 2

static struct sluice_policy *policy;
static CUcontext primary[DEVICES];
static long launches;
static int stop;

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void launch(uint64_t *seed)
{
	static const unsigned lengths_us[] = { 10, 20, 50 };
	unsigned length_us = lengths_us[next(seed) % 3];
	CUstream stream = (CUstream)(next(seed) % 3);

	CHECK_EQUAL(cuLaunchKernel((CUfunction)0x77, length_us, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), CUDA_SUCCESS);
}

static void *work(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg * 2654435761u + 1;
	CUcontext own, popped;

	CHECK_EQUAL(cuCtxSetCurrent(primary[(uintptr_t)arg % DEVICES]), CUDA_SUCCESS);
	for (long i = 0; i < launches; i++) {
		launch(&seed);
		switch (next(&seed) % 256) {
		case 0:
			CHECK_EQUAL(cuStreamSynchronize(NULL), CUDA_SUCCESS);
			break;
		case 1:
			CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
			break;
		case 2:
			CHECK_EQUAL(cuCtxSetCurrent(primary[next(&seed) % DEVICES]), CUDA_SUCCESS);
			break;
		case 3: /* a separate context, destroyed with work in flight */
			if (cuCtxCreate_v2(&own, 0, (CUdevice)(next(&seed) % DEVICES)) != CUDA_SUCCESS)
				break;
			for (int n = 0; n < 8 && i < launches - 1; n++, i++)
				launch(&seed);
			CHECK_EQUAL(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
			CHECK_EQUAL(cuCtxDestroy_v2(own), CUDA_SUCCESS);
			break;
		case 4:
			throttle_forget_all(); /* the effect of unloading a module */
			break;
		}
	}
	CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	return NULL;
}

/* The writes that the daemon makes within a second, in a millisecond. */
static void *plan(void *arg)
{
	uint64_t seed = 99;

	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		uint32_t device = (uint32_t)(next(&seed) % DEVICES);
		struct sluice_policy_device d = policy->dev[device];

		d.share_ppm = 300000 + (uint32_t)(next(&seed) % 700000);
		d.turn_mode = next(&seed) % 4 ? SLUICE_TURN_CAP : SLUICE_TURN_LEASE;
		d.lease_origin_ns = now_ns();
		d.lease_period_ns = 2000000;
		d.lease_quantum_ns = 1000000;
		d.active_grants = 1; /* the truth: a plan with other grants makes a sample theirs in part */
		d.contention_epoch += next(&seed) % 8 == 0;
		sluice_policy_heartbeat(policy, now_ns());
		CHECK_EQUAL(sluice_policy_set_limits(policy, device, &d), 0);
		CHECK_EQUAL(sluice_policy_set_turn(policy, device, &d, next(&seed) % 2), 0);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 4;
	uint64_t (*stub_launches)(void), (*stub_busy_ns)(int);
	pthread_t t[16], planner;
	CUdeviceptr p;
	void *stub;

	launches = argc > 2 ? strtol(argv[2], NULL, 10) : 5000;
	policy = map_policy();
	CHECK_EQUAL(cuInit(0), CUDA_SUCCESS);
	CHECK_EQUAL(cuMemAlloc_v2(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
	for (int i = 0; i < DEVICES; i++)
		CHECK_EQUAL(cuDevicePrimaryCtxRetain(&primary[i], i), CUDA_SUCCESS);
	stub = dlopen(attach_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
	CHECK(stub);
	stub_launches = (uint64_t(*)(void))dlsym(stub, "stub_launches");
	stub_busy_ns = (uint64_t(*)(int))dlsym(stub, "stub_busy_ns");
	CHECK(stub_launches && stub_busy_ns);

	CHECK_EQUAL(pthread_create(&planner, NULL, plan, NULL), 0);
	for (int i = 0; i < threads; i++)
		CHECK_EQUAL(pthread_create(&t[i], NULL, work, (void *)(uintptr_t)(i + 1)), 0);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	pthread_join(planner, NULL);
	for (int i = 0; i < DEVICES; i++) { /* work of other threads that was not settled yet */
		CHECK_EQUAL(cuCtxSetCurrent(primary[i]), CUDA_SUCCESS);
		CHECK_EQUAL(cuLaunchKernel((CUfunction)0x78, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
		CHECK_EQUAL(cuCtxSynchronize(), CUDA_SUCCESS);
	}
	CHECK_EQUAL(stub_launches(), (uint64_t)threads * (uint64_t)launches + DEVICES);
	printf("{\"launches\": %llu, \"busy_ns\": [%llu, %llu]}\n", (unsigned long long)stub_launches(),
	       (unsigned long long)stub_busy_ns(0), (unsigned long long)stub_busy_ns(1));
	return 0;
}
