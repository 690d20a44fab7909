/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doors through which kernels reach the GPU (graphs have theirs in graph.c). Each door has the same steps: the
 * driver lacks it, the launch is charged already, the slow path. The gate itself is throttle.c.
 */
#include "interpose/compute/door.h"
#include "interpose/compute/throttle.h"
#include "interpose/driver/driver.h"

#define SHAPE(gx, gy, gz, bx, by, bz, bytes) { .grid = { gx, gy, gz }, .block = { bx, by, bz }, .shared_bytes = bytes }

/*
 * The doors that frameworks use most have two halves. The first half checks whether the launch is the expected one and
 * jumps to the driver: it saves no register and leaves the arguments in place. Everything else is in the second half.
 */
#define COLD __attribute__((noinline, cold)) static CUresult

COLD cuLaunchKernel_other(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned bytes, CUstream stream, void **params, void **extra)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	if (!driver.cuLaunchKernel)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, stream,
	                           driver.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra));
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned bytes, CUstream stream, void **params, void **extra)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	/* no launch is expected before the driver is loaded */
	if (throttle_expected(THROTTLE_LAUNCH, f, shape))
		return driver.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
	return cuLaunchKernel_other(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
}

COLD cuLaunchKernel_ptsz_other(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned bytes, CUstream stream, void **params, void **extra)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	if (!driver.cuLaunchKernel_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	return RARELY_THROUGH_GATE(f, &shape, own_stream(stream),
	                           driver.cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned bytes, CUstream stream, void **params, void **extra)
{
	struct cost_shape shape = SHAPE(gx, gy, gz, bx, by, bz, bytes);

	/* no launch is expected before the driver is loaded */
	if (throttle_expected(THROTTLE_LAUNCH, f, shape))
		return driver.cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
	return cuLaunchKernel_ptsz_other(f, gx, gy, gz, bx, by, bz, bytes, stream, params, extra);
}

COLD cuLaunchKernelEx_other(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!driver.cuLaunchKernelEx)
		return CUDA_ERROR_NOT_FOUND;
	if (!config) /* the driver reports the error */
		return driver.cuLaunchKernelEx(config, f, params, extra);
	struct cost_shape shape = SHAPE(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
	                                config->blockDimY, config->blockDimZ, config->sharedMemBytes);

	return RARELY_THROUGH_GATE(f, &shape, config->hStream, driver.cuLaunchKernelEx(config, f, params, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (config && driver.cuLaunchKernelEx &&
	    throttle_expected(THROTTLE_LAUNCH, f,
	                      (struct cost_shape)SHAPE(config->gridDimX, config->gridDimY, config->gridDimZ,
	                                               config->blockDimX, config->blockDimY, config->blockDimZ,
	                                               config->sharedMemBytes)))
		return driver.cuLaunchKernelEx(config, f, params, extra);
	return cuLaunchKernelEx_other(config, f, params, extra);
}

COLD cuLaunchKernelEx_ptsz_other(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (!driver.cuLaunchKernelEx_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	if (!config) /* the driver reports the error */
		return driver.cuLaunchKernelEx_ptsz(config, f, params, extra);
	struct cost_shape shape = SHAPE(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
	                                config->blockDimY, config->blockDimZ, config->sharedMemBytes);

	return RARELY_THROUGH_GATE(f, &shape, own_stream(config->hStream),
	                           driver.cuLaunchKernelEx_ptsz(config, f, params, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	if (config && driver.cuLaunchKernelEx_ptsz &&
	    throttle_expected(THROTTLE_LAUNCH, f,
	                      (struct cost_shape)SHAPE(config->gridDimX, config->gridDimY, config->gridDimZ,
	                                               config->blockDimX, config->blockDimY, config->blockDimZ,
	                                               config->sharedMemBytes)))
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
