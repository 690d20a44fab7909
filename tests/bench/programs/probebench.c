/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of probes in the CPU time of this thread, so that other load on the machine does not matter.
 *
 *   probebench DRIVER SHIM pairs N       for each line of input: N pairs of batches, with our probe and without
 *   probebench DRIVER SHIM pace SECONDS  100,000 launches a second of CPU time; a line per 20 ms slice
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCH 20000
#define PACE_NS 10000.0
#define SLICE_NS 20000000u

typedef int (*launch_fn)(uint64_t *);

static launch_fn probed, bare;
static uint64_t launches;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double batch_ns(launch_fn launch, long calls)
{
	uint64_t began = now_ns(CLOCK_THREAD_CPUTIME_ID);

	for (long i = 0; i < calls; i++)
		launch(&launches);
	return (double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - began) / (double)calls;
}

static void work(long turns)
{
	for (long i = 0; i < turns; i++)
		__asm__ volatile("" ::: "memory");
}

static void pairs(long n)
{
	char line[16];

	printf("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		for (int warm = 0; warm < 3; warm++) {
			batch_ns(probed, 1000);
			batch_ns(bare, 1000);
		}
		printf("{\"pairs\": [");
		for (long i = 0; i < n; i++) {
			double first = batch_ns(i & 1 ? bare : probed, BATCH);
			double second = batch_ns(i & 1 ? probed : bare, BATCH);

			printf("%s[%.4f, %.4f]", i ? ", " : "", i & 1 ? second : first, i & 1 ? first : second);
		}
		printf("]}\n");
	}
}

static void pace(double seconds)
{
	uint64_t began = now_ns(CLOCK_THREAD_CPUTIME_ID);

	work(10000000);
	long turns = (long)(PACE_NS / ((double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - began) / 10000000));
	uint64_t end = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9), at = 0;

	printf("ready\n");
	while (at < end) {
		uint64_t slice = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_THREAD_CPUTIME_ID), before = launches;

		do {
			for (int i = 0; i < 20; i++) {
				work(turns);
				probed(&launches);
			}
			at = now_ns(CLOCK_MONOTONIC);
		} while (at < slice + SLICE_NS);
		printf("%llu %llu %llu %llu\n", (unsigned long long)slice, (unsigned long long)at,
		       (unsigned long long)(now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu),
		       (unsigned long long)(launches - before));
	}
}

int main(int argc, char **argv)
{
	void *driver = argc == 5 ? dlopen(argv[1], RTLD_NOW) : NULL;
	void *shim = driver ? dlopen(argv[2], RTLD_NOW) : NULL;

	if (!shim) {
		fprintf(stderr, "usage: probebench DRIVER SHIM pairs|pace N\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	*(void **)dlsym(shim, "probe_driver") = dlsym(driver, "cuLaunchKernel");
	*(void **)&probed = dlsym(shim, "cuLaunchKernel");
	*(void **)&bare = dlsym(shim, "launch_without_probe");
	if (!strcmp(argv[3], "pairs"))
		pairs(atol(argv[4]));
	else
		pace(atof(argv[4]));
	return 0;
}
