/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doors through which kernels reach the GPU (graphs have theirs in graph.c). Each door has the same steps: the
 * driver lacks it, the launch is charged already, the slow path. The gate itself is throttle.c.
 */
#include <assert.h>
#include <stddef.h>

#include "interpose/compute/door.h"
#include "interpose/compute/throttle.h"
#include "interpose/driver/driver.h"

#define SHAPE(gx, gy, gz, bx, by, bz, bytes) { .grid = { gx, gy, gz }, .block = { bx, by, bz }, .shared_bytes = bytes }

/*
 * The doors that frameworks use most have two halves. The first half checks whether the launch is the expected one and
 * jumps to the driver: it saves no register and leaves the arguments in place. Everything else is in the second half.
 */
#define COLD __attribute__((noinline, cold)) static CUresult

/*
 * The arguments of cuLaunchKernel. On x86-64 those for which no register is left are one structure: the calling
 * convention puts it in the same place, and gcc leaves a structure there, where it would load each argument and store it
 * again before the jump.
 */
#if defined(__x86_64__)
struct launch_rest {
	_Alignas(8) unsigned block_z;
	_Alignas(8) unsigned bytes;
	CUstream stream;
	void **params;
	void **extra;
};

static_assert(sizeof(struct launch_rest) == 40, "a place of eight bytes for each of five arguments");

#define LAUNCH_PARAMETERS                                                                                              \
	CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, struct launch_rest rest
#define LAUNCH_ARGUMENTS f, gx, gy, gz, bx, by, rest
#define REST(field) rest.field
#else
#define LAUNCH_PARAMETERS                                                                                              \
	CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned block_z,               \
		unsigned bytes, CUstream stream, void **params, void **extra
#define LAUNCH_ARGUMENTS f, gx, gy, gz, bx, by, block_z, bytes, stream, params, extra
#define REST(field) field
#endif

#define IS_EXPECTED                                                                                                    \
	throttle_expected(THROTTLE_LAUNCH, f, (uint32_t[]){ gx, gy, gz }, (uint32_t[]){ bx, by }, &REST(block_z),      \
	                  &REST(bytes))
#define LAUNCH_SHAPE SHAPE(gx, gy, gz, bx, by, REST(block_z), REST(bytes))
#define IN_DRIVER(name) ((CUresult(*)(LAUNCH_PARAMETERS))(void (*)(void))driver.name)(LAUNCH_ARGUMENTS)

/* These are the exported symbols; their C names differ because driver.h declares the arguments one by one. */
__attribute__((visibility("default"))) CUresult launch_kernel(LAUNCH_PARAMETERS) __asm__("cuLaunchKernel");
__attribute__((visibility("default"))) CUresult launch_kernel_ptsz(LAUNCH_PARAMETERS) __asm__("cuLaunchKernel_ptsz");

COLD launch_kernel_other(LAUNCH_PARAMETERS)
{
	struct cost_shape shape = LAUNCH_SHAPE;

	if (!driver.cuLaunchKernel)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, REST(stream), IN_DRIVER(cuLaunchKernel));
}

CUresult launch_kernel(LAUNCH_PARAMETERS)
{
	/* no launch is expected before the driver is loaded */
	if (IS_EXPECTED)
		return IN_DRIVER(cuLaunchKernel);
	return launch_kernel_other(LAUNCH_ARGUMENTS);
}

COLD launch_kernel_ptsz_other(LAUNCH_PARAMETERS)
{
	struct cost_shape shape = LAUNCH_SHAPE;

	if (!driver.cuLaunchKernel_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, own_stream(REST(stream)), IN_DRIVER(cuLaunchKernel_ptsz));
}

CUresult launch_kernel_ptsz(LAUNCH_PARAMETERS)
{
	/* no launch is expected before the driver is loaded */
	if (IS_EXPECTED)
		return IN_DRIVER(cuLaunchKernel_ptsz);
	return launch_kernel_ptsz_other(LAUNCH_ARGUMENTS);
}

static_assert(offsetof(CUlaunchConfig, gridDimX) == offsetof(struct cost_shape, grid) &&
                      offsetof(CUlaunchConfig, blockDimX) == offsetof(struct cost_shape, block) &&
                      offsetof(CUlaunchConfig, sharedMemBytes) == offsetof(struct cost_shape, shared_bytes),
              "a launch's configuration begins with its shape");

static inline const struct cost_shape *shape_of(const CUlaunchConfig *config)
{
	return (const struct cost_shape *)config;
}

__attribute__((always_inline)) static inline bool is_expected(CUfunction f, const struct cost_shape *shape)
{
	return throttle_expected(THROTTLE_LAUNCH, f, shape->grid, shape->block, &shape->block[2], &shape->shared_bytes);
}

COLD cuLaunchKernelEx_other(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!driver.cuLaunchKernelEx)
		return CUDA_ERROR_NOT_FOUND;
	if (!config) /* the driver reports the error */
		return driver.cuLaunchKernelEx(config, f, params, extra);
	return RARELY_THROUGH_GATE(f, shape_of(config), config->hStream,
	                           driver.cuLaunchKernelEx(config, f, params, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (config && driver.cuLaunchKernelEx && is_expected(f, shape_of(config)))
		return driver.cuLaunchKernelEx(config, f, params, extra);
	return cuLaunchKernelEx_other(config, f, params, extra);
}

COLD cuLaunchKernelEx_ptsz_other(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!driver.cuLaunchKernelEx_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	if (!config) /* the driver reports the error */
		return driver.cuLaunchKernelEx_ptsz(config, f, params, extra);
	return RARELY_THROUGH_GATE(f, shape_of(config), own_stream(config->hStream),
	                           driver.cuLaunchKernelEx_ptsz(config, f, params, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (config && driver.cuLaunchKernelEx_ptsz && is_expected(f, shape_of(config)))
		return driver.cuLaunchKernelEx_ptsz(config, f, params, extra);
	return cuLaunchKernelEx_ptsz_other(config, f, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned bytes, CUstream stream, void **params)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	if (!driver.cuLaunchCooperativeKernel)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, stream,
	                           driver.cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, bytes, stream, params));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned bytes, CUstream stream, void **params)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	if (!driver.cuLaunchCooperativeKernel_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(
		f, &shape, own_stream(stream),
		driver.cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, bytes, stream, params));
}

/* One kernel per device. The first one's stream stands for the whole launch: the driver starts all or none, so the
 * longest wait applies to all. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	if (!driver.cuLaunchCooperativeKernelMultiDevice)
		return CUDA_ERROR_NOT_FOUND;
	if (!list || count == 0)
		return driver.cuLaunchCooperativeKernelMultiDevice(list, count, flags);
	struct cost_shape shape = SHAPE(list[0].gridDimX, list[0].gridDimY, list[0].gridDimZ, list[0].blockDimX,
	                                list[0].blockDimY, list[0].blockDimZ, list[0].sharedMemBytes);

	return RARELY_THROUGH_GATE(list[0].function, &shape, list[0].hStream,
	                           driver.cuLaunchCooperativeKernelMultiDevice(list, count, flags));
}

/* Before CUDA 4 the block shape was set on the function. The interposer does not know it, so all blocks share one
 * estimate. */
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	struct cost_shape shape = SHAPE((uint32_t)width, (uint32_t)height, 1, 0, 0, 0, 0);

	if (!driver.cuLaunchGridAsync)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, stream, driver.cuLaunchGridAsync(f, width, height, stream));
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	struct cost_shape shape = SHAPE((uint32_t)width, (uint32_t)height, 1, 0, 0, 0, 0);

	if (!driver.cuLaunchGrid)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, NULL, driver.cuLaunchGrid(f, width, height));
}

CUresult cuLaunch(CUfunction f)
{
	struct cost_shape shape = SHAPE(1, 1, 1, 0, 0, 0, 0);

	if (!driver.cuLaunch)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, NULL, driver.cuLaunch(f));
}

/* --- handles that the driver may reuse ------------------------------------------------------------------------- */

CUresult cuModuleUnload(CUmodule module)
{
	if (!driver.cuModuleUnload)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = driver.cuModuleUnload(module);

	throttle_forget_all();
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	if (!driver.cuLibraryUnload)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = driver.cuLibraryUnload(library);

	throttle_forget_all();
	return result;
}
