/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and libraries: loading an image, and finding kernels in it. variable.c has its variables. */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/images/images.h"
#include "simgpu/cuda/modules/modules.h"

/* `context` NULL: a library. */
static CUresult make(struct CUctx_st *context, const void *code, struct CUmod_st **ret_module)
{
	const struct sim_model *model = context ? sim_model_of(context) : sim_device_get(0)->model;
	struct CUmod_st *m = calloc(1, sizeof(*m));

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->image = sim_image_read(code, sim_architecture(model));
	if (!m->image || !sim_image_runs(m->image, sim_architecture(model))) {
		CUresult r = m->image ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_OUT_OF_MEMORY;

		if (m->image)
			sim_image_free(m->image);
		free(m);
		return r;
	}
	m->tag = SIM_TAG_MODULE;
	m->context = context;
	*ret_module = m;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CALL_CONTEXT(context);
	return make(context, image, module);
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
	if (!module || !path)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size;
	void *bytes = sim_file_bytes(path, &size);
	CUresult r = bytes ? cuModuleLoadData(module, bytes) : CUDA_ERROR_FILE_NOT_FOUND;

	free(bytes);
	return r;
}

SIM_API CUresult cuModuleUnload(CUmodule module)
{
	SIM_CALL();
	if (!SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	sim_module_variables_gone(module);
	for (struct CUfunc_st *f = module->functions, *next; f; f = next) {
		next = f->next;
		f->tag = 0;
		free(f->state);
		free(f);
	}
	sim_image_free(module->image);
	module->tag = 0;
	free(module);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	SIM_CALL();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

static const struct sim_image_kernel *facts_of(const struct CUmod_st *module, const char *name)
{
	const struct sim_image_kernel *k = module->image->kernels;

	while (k && strcmp(k->name, name) != 0)
		k = k->next;
	return k;
}

/* With the lock held; NULL = out of memory. */
static struct CUfunc_st *function_of(struct CUmod_st *module, const char *name)
{
	struct CUfunc_st *f = module->functions;
	size_t length = strlen(name);

	while (f && strcmp(f->name, name) != 0)
		f = f->next;
	if (f || !(f = calloc(1, sizeof(*f) + length + 1)))
		return f;
	f->tag = SIM_TAG_FUNCTION;
	f->module = module;
	f->facts = facts_of(module, name);
	f->kind = strcmp(name, "sim_busy_ns") == 0        ? SIM_KERNEL_BUSY_NS
	          : strcmp(name, "sim_busy_forever") == 0 ? SIM_KERNEL_FOREVER
	                                                  : SIM_KERNEL_OTHER;
	memcpy(f->name, name, length + 1);
	sim_function_attributes(f);
	f->next = module->functions;
	module->functions = f;
	return f;
}

SIM_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	SIM_CALL();
	if (!function || !name || !SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	if (!name[0] || strncmp(name, "missing_", 8) == 0)
		return CUDA_ERROR_NOT_FOUND;
	/* The simulator's own kernels exist in every image, so that a test can choose the duration of its work. */
	if (!module->image->opaque && strncmp(name, "sim_busy_", 9) != 0 && !facts_of(module, name))
		return CUDA_ERROR_NOT_FOUND;
	sim_module_lock();
	*function = function_of(module, name);
	sim_module_unlock();
	return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
	SIM_CALL();
	if (!count || !SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	*count = 0;
	for (const struct sim_image_kernel *k = module->image->kernels; k; k = k->next)
		++*count;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned room, CUmodule module)
{
	SIM_CALL();
	if (!functions || !SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	sim_module_lock();
	for (const struct sim_image_kernel *k = module->image->kernels; k && room > 0; k = k->next, room--)
		*functions++ = function_of(module, k->name);
	sim_module_unlock();
	return CUDA_SUCCESS;
}

/* --- libraries: modules that load without a context, with kernels that are functions in all contexts -------------- */

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
	return make(NULL, code, (struct CUmod_st **)library);
}

SIM_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                                       unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
	if (!library || !path)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size;
	void *bytes = sim_file_bytes(path, &size);
	CUresult r = bytes ? cuLibraryLoadData(library, bytes, jit, jit_values, jit_count, options, values, count)
	                   : CUDA_ERROR_FILE_NOT_FOUND;

	free(bytes);
	return r;
}

SIM_API CUresult cuLibraryUnload(CUlibrary library)
{
	return cuModuleUnload((CUmodule)library);
}

SIM_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	SIM_CALL();
	if (!module || !SIM_HANDLE((CUmodule)library, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	*module = (CUmodule)library;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

SIM_API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
	return cuModuleGetFunctionCount(count, (CUmodule)library);
}

SIM_API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned room, CUlibrary library)
{
	return cuModuleEnumerateFunctions((CUfunction *)kernels, room, (CUmodule)library);
}

SIM_API CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
	SIM_CALL();
	(void)name;
	if (!function || !SIM_HANDLE((CUmodule)library, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_NOT_FOUND; /* functions callable from host and device need a machine with unified memory */
}
