/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, functions, and the doors through which kernels are launched. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/sim/object.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static CUresult module_make(CUmodule *module)
{
	SIM_CALL_CONTEXT(context);
	struct CUmod_st *m = calloc(1, sizeof(*m));

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->tag = SIM_TAG_MODULE;
	m->context = context;
	*module = m;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	return module_make(module);
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                                    void **values)
{
	(void)count;
	(void)options;
	(void)values;
	return cuModuleLoadData(module, image);
}

SIM_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	return cuModuleLoadData(module, image);
}

SIM_API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	FILE *file = path ? fopen(path, "rb") : NULL;

	if (!module || !path)
		return CUDA_ERROR_INVALID_VALUE;
	if (!file)
		return CUDA_ERROR_FILE_NOT_FOUND;
	fclose(file);
	return module_make(module);
}

SIM_API CUresult cuModuleUnload(CUmodule module)
{
	SIM_CALL();
	if (!SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	for (struct CUfunc_st *f = module->functions, *next; f; f = next) {
		next = f->next;
		f->tag = 0;
		free(f);
	}
	module->tag = 0;
	free(module);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	SIM_CALL();
	if (!function || !name || !SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	if (!name[0] || strncmp(name, "missing_", 8) == 0 || strlen(name) >= sizeof(module->functions->name))
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&mutex);
	struct CUfunc_st *f = module->functions;

	while (f && strcmp(f->name, name) != 0)
		f = f->next;
	if (!f && (f = calloc(1, sizeof(*f)))) {
		f->tag = SIM_TAG_FUNCTION;
		f->module = module;
		f->kind = strcmp(name, "sim_busy_ns") == 0        ? SIM_KERNEL_BUSY_NS
		          : strcmp(name, "sim_busy_forever") == 0 ? SIM_KERNEL_FOREVER
		                                                  : SIM_KERNEL_OTHER;
		memcpy(f->name, name, strlen(name) + 1);
		f->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
		f->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
		f->attribute[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 80;
		f->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 80;
		f->next = module->functions;
		module->functions = f;
	}
	pthread_mutex_unlock(&mutex);
	*function = f;
	return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
	SIM_CALL();
	(void)address;
	(void)bytes;
	(void)name;
	return SIM_HANDLE(module, SIM_TAG_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	SIM_CALL();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

/* --- libraries: a module that needs no context to be loaded, kernels that are functions everywhere ---------------- */

SIM_API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                                   unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
	SIM_CALL();
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUmod_st *m = calloc(1, sizeof(*m));

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->tag = SIM_TAG_MODULE;
	*library = (CUlibrary)m;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryUnload(CUlibrary library)
{
	return cuModuleUnload((CUmodule)library);
}

SIM_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	SIM_CALL();
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = (CUmodule)library;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

SIM_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	SIM_CALL();
	if (!function || !SIM_HANDLE((CUfunction)kernel, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_HANDLE;
	*function = (CUfunction)kernel;
	return CUDA_SUCCESS;
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
	if (!value || (unsigned)attribute >= 32 || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*value = function->attribute[attribute];
	return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
	SIM_CALL();
	if ((unsigned)attribute >= 32 || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
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

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                             size_t shared)
{
	SIM_CALL_CONTEXT(context);
	(void)shared;
	if (!blocks || threads <= 0 || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = (int)sim_model_of(context)->threads_per_sm / threads;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads,
                                                                      size_t shared, unsigned flags)
{
	(void)flags;
	return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

SIM_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                                  CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
	SIM_CALL_CONTEXT(context);
	(void)shared_of;
	(void)shared;
	if (!grid || !block || !SIM_HANDLE(function, SIM_TAG_FUNCTION))
		return CUDA_ERROR_INVALID_VALUE;
	*block = limit > 0 && limit < 1024 ? limit : 1024;
	*grid = (int)(sim_model_of(context)->sm_count * (sim_model_of(context)->threads_per_sm / (uint32_t)*block));
	return CUDA_SUCCESS;
}

/* --- launches ------------------------------------------------------------------------------------------------------ */

static inline CUresult launch(struct CUctx_st *context, CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                              unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
	struct CUstream_st *s = sim_stream(context, stream);
	uint64_t threads = (uint64_t)bx * by * bz;

	if (!SIM_HANDLE(f, SIM_TAG_FUNCTION) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (gx == 0 || gy == 0 || gz == 0 || threads == 0 || threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (f->module->context && f->module->context != context)
		return CUDA_ERROR_INVALID_CONTEXT;
	uint64_t ns = sim_kernel_ns(f, sim_model_of(context), (uint64_t)gx * gy * gz, threads, params);

	if (s->session || sim_capture_forbids()) {
		struct sim_node_params node = { .type = CU_GRAPH_NODE_TYPE_KERNEL,
			                        .duration_ns = ns,
			                        .kernel = { .func = f,
			                                    .gridDimX = gx,
			                                    .gridDimY = gy,
			                                    .gridDimZ = gz,
			                                    .blockDimX = bx,
			                                    .blockDimY = by,
			                                    .blockDimZ = bz,
			                                    .sharedMemBytes = shared } };
		CUresult error;
		enum sim_capture captured = sim_capture_or_run(s, &node, &error);

		if (captured != SIM_RUN)
			return captured == SIM_CAPTURED ? CUDA_SUCCESS : error;
	}
	s->last = sim_submit(context, SIM_OP_WORK, ns, 0);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
	SIM_CALL_CONTEXT(context);
	(void)extra;
	return launch(context, f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	SIM_CALL_CONTEXT(context);
	(void)extra;
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(context, f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
	              c->sharedMemBytes, c->hStream, params);
}

SIM_API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
	SIM_CALL_CONTEXT(context);
	uint64_t resident = (uint64_t)sim_model_of(context)->sm_count * (sim_model_of(context)->threads_per_sm / 32);

	if ((uint64_t)gx * gy * gz > resident)
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	return launch(context, f, gx, gy, gz, bx, by, bz, shared, stream, params);
}

SIM_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	SIM_CALL();
	(void)flags;
	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		struct CUstream_st *s = list[i].hStream;

		if (!SIM_HANDLE(s, SIM_TAG_STREAM))
			return CUDA_ERROR_INVALID_HANDLE;
		CUresult r = launch(s->context, list[i].function, list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ,
		                    list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ, list[i].sharedMemBytes, s,
		                    list[i].kernelParams);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return launch(context, f, (unsigned)width, (unsigned)height, 1, 256, 1, 1, 0, stream, NULL);
}

SIM_API CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	return cuLaunchGridAsync(f, width, height, NULL);
}

SIM_API CUresult cuLaunch(CUfunction f)
{
	return cuLaunchGridAsync(f, 1, 1, NULL);
}
