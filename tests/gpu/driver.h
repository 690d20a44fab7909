/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver as the programs of tests/gpu use it: opened with dlopen, so that they build without CUDA and take the
 * library that the environment gives them, with the calls that all of them make.
 */
#ifndef TESTS_GPU_DRIVER_H
#define TESTS_GPU_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "nativecommon/cuda_abi.h"

static void *driver_library;

static inline void check(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
		exit(4);
	}
}

/* A driver function; programs of CUDA 13 and older ones request it in this way. */
static inline void *resolve(const char *name)
{
	static CUresult (*get_proc)(const char *, void **, int, uint64_t, CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult status;
	void *function = NULL;

	if (!driver_library) {
		driver_library = dlopen("libcuda.so.1", RTLD_NOW);
		if (!driver_library) {
			fprintf(stderr, "%s\n", dlerror());
			exit(3);
		}
		*(void **)&get_proc = dlsym(driver_library, "cuGetProcAddress_v2");
	}
	if (!get_proc || get_proc(name, &function, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != CUDA_SUCCESS ||
	    !function) {
		fprintf(stderr, "%s not found\n", name);
		exit(3);
	}
	return function;
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t at_ns)
{
	struct timespec t = { .tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
		;
}

/* Starts the driver with the primary context of the first GPU. */
static inline CUdevice start_driver(void)
{
	CUresult (*init)(unsigned) = resolve("cuInit");
	CUresult (*device_get)(CUdevice *, int) = resolve("cuDeviceGet");
	CUresult (*retain)(CUcontext *, CUdevice) = resolve("cuDevicePrimaryCtxRetain");
	CUresult (*set_current)(CUcontext) = resolve("cuCtxSetCurrent");
	CUcontext context;
	CUdevice device;

	check(init(0), "cuInit");
	check(device_get(&device, 0), "cuDeviceGet");
	check(retain(&context, device), "cuDevicePrimaryCtxRetain");
	check(set_current(context), "cuCtxSetCurrent");
	return device;
}

static inline CUfunction load_kernel(const char *image)
{
	CUresult (*load)(CUmodule *, const void *) = resolve("cuModuleLoadData");
	CUresult (*get)(CUfunction *, CUmodule, const char *) = resolve("cuModuleGetFunction");
	CUmodule module;
	CUfunction kernel;

	check(load(&module, image), "cuModuleLoadData");
	check(get(&kernel, module, "sim_busy_ns"), "cuModuleGetFunction");
	return kernel;
}

static inline int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts; the value below which that part of them lies, or 0 without any. */
static inline double quantile(double *values, size_t count, double part)
{
	if (count == 0)
		return 0;
	qsort(values, count, sizeof(*values), compare_doubles);
	size_t at = (size_t)(part * (double)count);

	return values[at < count ? at : count - 1];
}

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              CUstream, void **, void **);

#endif
