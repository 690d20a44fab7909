/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: a part of the SMs for a part of a program. Here they are the primary context under another name, with
 * their number of SMs stored for queries; kernels in them take the time that the whole card takes.
 */
#include <stdlib.h>
#include <string.h>

#include "simgpu/cuda/streams/streams.h"

#define TAG UINT32_C(0x47524e31)
#define TAG_DESC UINT32_C(0x47524431)

struct CUdevResourceDesc_st {
	uint32_t tag;
	CUdevResource resource;
	struct CUdevResourceDesc_st *next; /* the API never frees them: listed so that leak checkers find them */
};

struct CUgreenCtx_st {
	uint32_t tag;
	CUcontext context;
	CUdevice device;
	CUdevResource resource;
	unsigned long long id;
};

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxRecordEvent(CUcontext context, CUevent event);
CUresult cuCtxWaitEvent(CUcontext context, CUevent event);

/* Parts consist of 8 SMs, two at a time, from Hopper on; of 4 and then 2 before. */
static CUdevResource all_of(const struct sim_model *model)
{
	CUdevResource r = { .type = CU_DEV_RESOURCE_TYPE_SM };

	r.sm.smCount = model->sm_count;
	r.sm.minSmPartitionSize = model->cc_major >= 9 ? 8 : 4;
	r.sm.smCoscheduledAlignment = model->cc_major >= 9 ? 8 : 2;
	return r;
}

SIM_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
	SIM_CALL();
	struct sim_device *d = sim_device_get(device);

	if (!d)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*resource = all_of(d->model);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type)
{
	SIM_CALL();
	context = context ? context : sim_current();
	if (!SIM_HANDLE(context, SIM_TAG_CONTEXT))
		return CUDA_ERROR_INVALID_CONTEXT;
	return cuDeviceGetDevResource(context->device, resource, type);
}

SIM_API CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                             CUdevResource *rest, unsigned flags, unsigned least)
{
	SIM_CALL();
	if (!groups || !input || *groups == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (input->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	unsigned step = input->sm.smCoscheduledAlignment ? input->sm.smCoscheduledAlignment : 2;
	unsigned smallest = input->sm.minSmPartitionSize ? input->sm.minSmPartitionSize : step;

	if (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING)
		step = smallest = 2;
	least = least < smallest ? smallest : (least + step - 1) / step * step;
	unsigned fit = input->sm.smCount / least, made = result && *groups < fit ? *groups : fit;

	if (fit == 0)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	for (unsigned i = 0; result && i < made; i++) {
		result[i] = *input;
		result[i].sm.smCount = least;
	}
	if (rest) {
		*rest = *input;
		rest->sm.smCount = input->sm.smCount - made * least;
		rest->type = rest->sm.smCount ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
	}
	*groups = made;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned count)
{
	SIM_CALL();
	static struct CUdevResourceDesc_st *made;
	unsigned sms = 0;

	if (!desc || !resources || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		sms += resources[i].sm.smCount;
	}
	struct CUdevResourceDesc_st *d = calloc(1, sizeof(*d));

	if (!d)
		return CUDA_ERROR_OUT_OF_MEMORY;
	d->tag = TAG_DESC;
	d->resource = resources[0];
	d->resource.sm.smCount = sms;
	d->next = __atomic_load_n(&made, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&made, &d->next, d, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	*desc = d;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned flags)
{
	SIM_CALL();
	static unsigned long long made;
	struct sim_device *d = sim_device_get(device);

	if (!d)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!green || !SIM_HANDLE(desc, TAG_DESC) || flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->resource.sm.smCount > d->model->sm_count)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	struct CUgreenCtx_st *g = calloc(1, sizeof(*g));

	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = cuDevicePrimaryCtxRetain(&g->context, device);

	if (r != CUDA_SUCCESS) {
		free(g);
		return r;
	}
	g->tag = TAG;
	g->device = device;
	g->resource = desc->resource;
	g->id = __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) | UINT64_C(1) << 32;
	*green = g;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	SIM_CALL();
	if (!SIM_HANDLE(green, TAG))
		return CUDA_ERROR_INVALID_VALUE;
	CUdevice device = green->device;

	green->tag = 0;
	free(green);
	return cuDevicePrimaryCtxRelease_v2(device);
}

SIM_API CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	SIM_CALL();
	if (!context || !SIM_HANDLE(green, TAG))
		return CUDA_ERROR_INVALID_VALUE;
	*context = green->context;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)
{
	SIM_CALL();
	if (!resource || !SIM_HANDLE(green, TAG))
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*resource = green->resource;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
	SIM_CALL();
	if (!id || !SIM_HANDLE(green, TAG))
		return CUDA_ERROR_INVALID_VALUE;
	*id = green->id;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
	SIM_CALL();
	if (!stream || !SIM_HANDLE(green, TAG) || !(flags & CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = cuCtxPushCurrent_v2(green->context);

	if (r != CUDA_SUCCESS)
		return r;
	r = cuStreamCreateWithPriority(stream, flags, priority);
	cuCtxPopCurrent_v2(NULL);
	if (r == CUDA_SUCCESS)
		(*stream)->green = green;
	return r;
}

SIM_API CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
	SIM_STREAM(s, stream);
	if (!green)
		return CUDA_ERROR_INVALID_VALUE;
	*green = s->green;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event)
{
	SIM_CALL();
	return SIM_HANDLE(green, TAG) ? cuCtxRecordEvent(green->context, event) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event)
{
	SIM_CALL();
	return SIM_HANDLE(green, TAG) ? cuCtxWaitEvent(green->context, event) : CUDA_ERROR_INVALID_VALUE;
}
