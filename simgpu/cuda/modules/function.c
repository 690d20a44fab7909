/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of functions and kernels, their duration, and how many of their blocks fit an SM. */
#include "simgpu/cuda/modules/modules.h"

#include <string.h>

#include "simgpu/cuda/base/call.h"

#define SHARED_DEFAULT 49152 /* per block, without opting in for more */
#define REGISTERS_OF_SM 65536
#define REGISTERS_GUESSED 32

/* The current device, or the first one where there is no context yet. */
static const struct sim_model *model_here(void)
{
	struct CUctx_st *context = sim_current();

	return context ? sim_model_of(context) : sim_device_get(0)->model;
}

void sim_function_attributes(struct CUfunc_st *f)
{
	const struct sim_image_kernel *k = f->facts;
	const struct sim_image *image = f->module->image;
	uint32_t device = sim_architecture(model_here());
	uint32_t binary = image->architecture && !image->ptx ? image->architecture : device;
	uint32_t shared = k ? k->shared_bytes : 0;

	f->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = k && k->threads_most ? (int)k->threads_most : 1024;
	f->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = (int)shared;
	f->attribute[CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES] = k ? (int)k->const_bytes : 0;
	f->attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = k ? (int)k->local_bytes : 0;
	f->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = k && k->registers ? (int)k->registers : REGISTERS_GUESSED;
	f->attribute[CU_FUNC_ATTRIBUTE_PTX_VERSION] = (int)(image->architecture ? image->architecture : device);
	f->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = (int)binary;
	f->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] =
		shared < SHARED_DEFAULT ? (int)(SHARED_DEFAULT - shared) : 0;
	f->attribute[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
}

uint64_t sim_kernel_ns(const struct CUfunc_st *function, const struct sim_model *model, uint64_t blocks,
                       uint64_t threads, void **params)
{
	if (function->kind == SIM_KERNEL_FOREVER)
		return SIM_FOREVER;
	if (function->kind == SIM_KERNEL_BUSY_NS && params && params[0]) {
		uint64_t ns;

		memcpy(&ns, params[0], sizeof(ns));
		return ns;
	}
	/* Two microseconds, and ten for every full wave of blocks over the SMs (2,048 threads each). */
	uint64_t resident = (uint64_t)model->sm_count * (model->threads_per_sm / (threads ? threads : 1));
	uint64_t waves = resident ? (blocks + resident - 1) / resident : blocks;

	return 2000 + waves * 10000;
}

SIM_API CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	SIM_CALL();
	if (!module || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = function->module;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetName(const char **name, CUfunction function)
{
	SIM_CALL();
	if (!name || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = function->name;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
	SIM_CALL();
	if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*value = function->attribute[attribute];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	SIM_CALL();
	if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
		return CUDA_ERROR_INVALID_VALUE; /* a fact of the code, which cannot be set */
	int room = (int)model_here()->shared_optin_bytes - function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];

	if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value > room))
		return CUDA_ERROR_INVALID_VALUE;
	function->attribute[attribute] = value;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
	SIM_CALL();
	(void)config;
	return SIM_HANDLE(function, SIM_TAG_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
	SIM_CALL();
	if (!offset || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	if (!function->facts || index >= function->facts->param_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = function->facts->param[index].offset;
	if (bytes)
		*bytes = function->facts->param[index].bytes;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
	SIM_CALL();
	if (!state || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncLoad(CUfunction function)
{
	SIM_CALL();
	return SIM_HANDLE(function, SIM_TAG_FUNCTION) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* --- kernels of libraries ----------------------------------------------------------------------------------------- */

SIM_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	SIM_CALL();
	if (!function || !SIM_HANDLE((CUfunction)kernel, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*function = (CUfunction)kernel;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	return cuFuncGetModule((CUmodule *)library, (CUfunction)kernel);
}

SIM_API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return cuFuncGetName(name, (CUfunction)kernel);
}

SIM_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
	return cuFuncGetParamInfo((CUfunction)kernel, index, offset, bytes);
}

SIM_API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}

SIM_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return cuFuncSetAttribute((CUfunction)kernel, attribute, value);
}

SIM_API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device)
{
	SIM_CALL();
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return cuFuncSetCacheConfig((CUfunction)kernel, config);
}

/* --- occupancy ---------------------------------------------------------------------------------------------------- */

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Warps count whole, registers are allocated 256 at a time per warp, shared memory as requested. */
static uint32_t blocks_of_sm(const struct sim_model *m, const struct CUfunc_st *f, uint32_t threads, size_t dynamic)
{
	uint32_t warps = (threads + 31) / 32;
	uint32_t registers = ((uint32_t)f->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] * 32 + 255) / 256 * 256 * warps;
	size_t shared = (size_t)f->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] + dynamic;
	uint32_t blocks = least(m->blocks_per_sm, m->threads_per_sm / (warps * 32));

	if (threads > (uint32_t)f->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] || shared > m->shared_optin_bytes)
		return 0;
	blocks = registers ? least(blocks, REGISTERS_OF_SM / registers) : blocks;
	return shared ? least(blocks, (uint32_t)(m->shared_per_sm_bytes / shared)) : blocks;
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                                      size_t shared, unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	if (!blocks || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE ||
	    !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = (int)blocks_of_sm(sim_model_of(context), function, (uint32_t)threads, shared);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                             size_t shared)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

/* The largest of the blocks that fill an SM best. */
SIM_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                           CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                           unsigned flags)
{
	SIM_CALL_CONTEXT(context);
	const struct sim_model *m = sim_model_of(context);
	uint32_t best_threads = 0;

	if (!grid || !block || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	int most = function->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];

	*grid = *block = 0;
	if (limit > 0 && limit < most)
		most = limit;
	for (int threads = (most + 31) / 32 * 32; threads > 0; threads -= 32) {
		int width = threads < most ? threads : most;
		uint32_t blocks = blocks_of_sm(m, function, (uint32_t)width, shared_of ? shared_of(width) : shared);

		if (blocks * (uint32_t)width > best_threads) {
			best_threads = blocks * (uint32_t)width;
			*block = width;
			*grid = (int)(blocks * m->sm_count);
		}
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                  CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}

SIM_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads)
{
	SIM_CALL_CONTEXT(context);
	const struct sim_model *m = sim_model_of(context);

	if (!bytes || blocks <= 0 || threads <= 0 || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	size_t each = m->shared_per_sm_bytes / (uint32_t)blocks;
	size_t own = (size_t)function->attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];

	each = each < m->shared_optin_bytes ? each : m->shared_optin_bytes;
	*bytes = each > own ? each - own : 0;
	return CUDA_SUCCESS;
}

/* A cluster's blocks run side by side, 8 at most, 16 where the kernel allows the non-portable size. */
SIM_API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config)
{
	SIM_CALL_CONTEXT(context);
	if (!size || !config || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_model_of(context)->cc_major < 9)
		return CUDA_ERROR_NOT_SUPPORTED;
	*size = function->attribute[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] ? 16 : 8;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
	SIM_CALL_CONTEXT(context);
	const struct sim_model *m = sim_model_of(context);
	uint32_t blocks_each = 1;

	if (!clusters || !config || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	if (m->cc_major < 9)
		return CUDA_ERROR_NOT_SUPPORTED;
	for (unsigned i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			blocks_each = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
			              config->attrs[i].value.clusterDim.z;
	uint32_t blocks = blocks_of_sm(m, function, config->blockDimX * config->blockDimY * config->blockDimZ,
	                               config->sharedMemBytes);

	*clusters = blocks_each ? (int)(blocks * m->sm_count / blocks_each) : 0;
	return CUDA_SUCCESS;
}
