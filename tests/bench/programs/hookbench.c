/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of the hooks: the same calls through the shim and directly into the driver beneath it, in one
 * process, in alternating batches (A B B A), so that a drifting machine speed affects both equally. Prints one JSON
 * object with the nanoseconds per call of every batch. Run inside a grant; SLUICE_BENCH_SHIM and SLUICE_BENCH_DRIVER
 * name the libraries.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nativecommon/cuda_abi.h"
#include "tests/programs/kernel.h"

#define BATCH 500

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              CUstream, void **, void **);

struct side {
	launch_fn launch;
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*info)(size_t *, size_t *);
};

static struct side sides[2]; /* 0 = bare driver, 1 = through the hooks */
static CUresult (*ctx_sync)(void);
static CUresult (*ctx_set)(CUcontext);
static CUcontext context;
static CUfunction kernel;
static const char *mode;
static uint64_t kernel_ns = 1; /* "launch3000": a kernel of 3 us, as short as a card has them */
static int rounds;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what, CUresult result)
{
	fprintf(stderr, "hookbench: %s: %d\n", what, (int)result);
	exit(4);
}

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		die(name, CUDA_ERROR_NOT_FOUND);
	return found;
}

static double batch(const struct side *side)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t ns = kernel_ns, began;
	void *params[] = { &ns };
	unsigned shapes = mode[0] == 'm' ? (unsigned)atoi(mode + strcspn(mode, "0123456789")) : 1;

	began = now_ns();
	if (mode[0] == 'l') {
		for (int i = 0; i < BATCH; i++)
			r |= side->launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
	} else if (mode[0] == 'm') { /* no launch equals the one before it, as in a training step */
		for (unsigned i = 0; i < BATCH; i++)
			r |= side->launch(kernel, 1 + i % shapes, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
	} else if (mode[0] == 'a') {
		for (int i = 0; i < BATCH; i++) {
			CUdeviceptr p;

			r |= side->alloc(&p, 4096);
			r |= side->free(p);
		}
	} else {
		size_t free_bytes, total_bytes;

		for (int i = 0; i < BATCH; i++)
			r |= side->info(&free_bytes, &total_bytes);
	}
	double per_call_ns = (double)(now_ns() - began) / BATCH;

	if (r != CUDA_SUCCESS)
		die(mode, r);
	if (mode[0] == 'l' || mode[0] == 'm')
		ctx_sync(); /* straight to the driver: the queue is empty before the next batch, without being timed */
	return per_call_ns;
}

struct worker {
	pthread_t thread;
	double *ns[2];
};

static void *work(void *argument)
{
	struct worker *w = argument;

	if (ctx_set(context) != CUDA_SUCCESS)
		die("cuCtxSetCurrent", CUDA_ERROR_INVALID_CONTEXT);
	for (int warm = 0; warm < 20; warm++)
		for (int s = 0; s < 2; s++)
			batch(&sides[s]);
	for (int i = 0; i < rounds; i++) {
		int first = i & 1;

		w->ns[first][i] = batch(&sides[first]);
		w->ns[1 - first][i] = batch(&sides[1 - first]);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: hookbench launch[NS]|mixedN|alloc|info ROUNDS THREADS LIVE\n");
		return 2;
	}
	mode = argv[1];
	rounds = atoi(argv[2]);
	if (mode[0] == 'l' && mode[strcspn(mode, "0123456789")])
		kernel_ns = strtoull(mode + strcspn(mode, "0123456789"), NULL, 10);
	int threads = atoi(argv[3]), live = atoi(argv[4]);
	const char *paths[2] = { getenv("SLUICE_BENCH_DRIVER"), getenv("SLUICE_BENCH_SHIM") };
	void *library[2];

	for (int s = 0; s < 2; s++) {
		library[s] = paths[s] ? dlopen(paths[s], RTLD_NOW) : NULL;
		if (!library[s]) {
			fprintf(stderr, "hookbench: %s\n",
			        paths[s] ? dlerror() : "SLUICE_BENCH_SHIM, SLUICE_BENCH_DRIVER?");
			return 3;
		}
		*(void **)&sides[s].launch = symbol(library[s], "cuLaunchKernel");
		*(void **)&sides[s].alloc = symbol(library[s], "cuMemAlloc_v2");
		*(void **)&sides[s].free = symbol(library[s], "cuMemFree_v2");
		*(void **)&sides[s].info = symbol(library[s], "cuMemGetInfo_v2");
	}
	CUresult (*init)(unsigned), (*retain)(CUcontext *, CUdevice), (*load)(CUmodule *, const void *);
	CUresult (*get)(CUfunction *, CUmodule, const char *);
	CUmodule module;
	CUresult r;

	*(void **)&init = symbol(library[1], "cuInit");
	*(void **)&retain = symbol(library[1], "cuDevicePrimaryCtxRetain");
	*(void **)&ctx_set = symbol(library[1], "cuCtxSetCurrent");
	*(void **)&load = symbol(library[1], "cuModuleLoadData");
	*(void **)&get = symbol(library[1], "cuModuleGetFunction");
	*(void **)&ctx_sync = symbol(library[0], "cuCtxSynchronize");
	if ((r = init(0)) || (r = retain(&context, 0)) || (r = ctx_set(context)) || (r = load(&module, kernel_image)) ||
	    (r = get(&kernel, module, "sim_busy_ns")))
		die("start", r);
	for (int i = 0; i < live; i++) {
		CUdeviceptr p;

		if ((r = sides[1].alloc(&p, 4096)))
			die("live allocations", r);
	}
	struct worker *workers = calloc((size_t)threads, sizeof(*workers));

	for (int t = 0; t < threads; t++) {
		for (int s = 0; s < 2; s++)
			workers[t].ns[s] = calloc((size_t)rounds, sizeof(double));
		pthread_create(&workers[t].thread, NULL, work, &workers[t]);
	}
	for (int t = 0; t < threads; t++)
		pthread_join(workers[t].thread, NULL);
	for (int s = 0; s < 2; s++) {
		printf("%s\"%s\": [", s ? ", " : "{", s ? "hooked_ns" : "bare_ns");
		for (int t = 0; t < threads; t++)
			for (int i = 0; i < rounds; i++)
				printf("%s%.3f", t || i ? ", " : "", workers[t].ns[s][i]);
		printf("]");
	}
	printf("}\n");
	return 0;
}
