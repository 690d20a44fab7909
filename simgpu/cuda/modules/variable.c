/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The variables of modules and libraries. A variable gets its memory at its first use: one allocation in each context
 * that uses it, with the initial bytes of the image.
 */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/modules/modules.h"

#include "simgpu/cuda/base/call.h"
#include "simgpu/cuda/ranges/ranges.h"

/* A variable of an image in one context. */
struct sim_variable {
	const struct sim_image_variable *facts;
	uint64_t context_id; /* number of that life of the context: its memory ended with it */
	CUdeviceptr address;
	struct sim_variable *next; /* next variable of the module */
};

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr address);
void *sim_host_address(uint64_t device_address);

/* With the lock held. */
static CUresult address_of(struct CUmod_st *module, const struct sim_image_variable *facts, struct CUctx_st *context,
                           CUdeviceptr *ret_address)
{
	struct sim_variable *v = module->variables;

	while (v && !(v->facts == facts && v->context_id == context->id))
		v = v->next;
	if (!v) {
		uint64_t bytes = facts->bytes ? facts->bytes : 1;

		v = calloc(1, sizeof(*v));
		if (!v)
			return CUDA_ERROR_OUT_OF_MEMORY;
		CUresult r = facts->managed ? cuMemAllocManaged(&v->address, bytes, CU_MEM_ATTACH_GLOBAL)
		                            : cuMemAlloc_v2(&v->address, bytes);

		if (r != CUDA_SUCCESS) {
			free(v);
			return r;
		}
		if (facts->initial)
			memcpy(sim_host_address(v->address), facts->initial, facts->bytes);
		v->facts = facts;
		v->context_id = context->id;
		v->next = module->variables;
		module->variables = v;
	}
	*ret_address = v->address;
	return CUDA_SUCCESS;
}

static CUresult find(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name, int managed)
{
	SIM_CALL_CONTEXT(context);
	CUresult r = CUDA_SUCCESS;

	if (!name || (!address && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!SIM_HANDLE(module, SIM_TAG_MODULE))
		return CUDA_ERROR_INVALID_HANDLE;
	const struct sim_image_variable *facts = module->image->variables;

	while (facts && !(strcmp(facts->name, name) == 0 && (managed < 0 || facts->managed == managed)))
		facts = facts->next;
	if (!facts)
		return CUDA_ERROR_NOT_FOUND;
	if (address) {
		sim_module_lock();
		r = address_of(module, facts, context, address);
		sim_module_unlock();
	}
	if (bytes && r == CUDA_SUCCESS)
		*bytes = facts->bytes;
	return r;
}

void sim_module_variables_gone(struct CUmod_st *module)
{
	struct CUctx_st *context = sim_current();

	for (struct sim_variable *v = module->variables, *next; v; v = next) {
		next = v->next;
		if (context && context->id == v->context_id)
			cuMemFree_v2(v->address);
		free(v); /* a variable of another context: its memory ends with that context */
	}
	module->variables = NULL;
}

SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
	return find(address, bytes, module, name, -1);
}

SIM_API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
	return find(address, bytes, (CUmodule)library, name, -1);
}

SIM_API CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
	return find(address, bytes, (CUmodule)library, name, 1);
}
