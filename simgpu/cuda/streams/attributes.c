/* SPDX-License-Identifier: Apache-2.0 */
/* Stream attributes, which are stored and have no effect here. */
#include <string.h>

#include "simgpu/cuda/streams/streams.h"

/* Index at which a stream stores an attribute; -1: an attribute of launches only. */
static int slot_of(CUstreamAttrID id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return 0;
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		return 1;
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
		return 2;
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return 3;
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		return SIM_STREAM_ATTRIBUTES; /* fixed when the stream is created */
	default:
		return -1;
	}
}

SIM_API CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value)
{
	SIM_STREAM(s, stream);
	int slot = slot_of(id);

	if (!value || slot < 0)
		return CUDA_ERROR_INVALID_VALUE;
	memset(value, 0, sizeof(*value));
	if (slot == SIM_STREAM_ATTRIBUTES)
		value->priority = s->priority;
	else
		*value = s->attribute[slot];
	if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY && !value->syncPolicy)
		value->syncPolicy = CU_SYNC_POLICY_AUTO;
	if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP && !value->memSyncDomainMap.remote)
		value->memSyncDomainMap.remote = 1;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value)
{
	SIM_STREAM(s, stream);
	int slot = slot_of(id);

	if (!value || slot < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (slot == SIM_STREAM_ATTRIBUTES)
		s->priority = value->priority;
	else
		s->attribute[slot] = *value;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
	SIM_STREAM(source, from);
	struct CUstream_st *target = sim_stream(context_, to);

	if (!target)
		return CUDA_ERROR_INVALID_HANDLE;
	memcpy(target->attribute, source->attribute, sizeof(target->attribute));
	return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
	SIM_STREAM(s, stream);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = s->context->device;
	return CUDA_SUCCESS;
}

/* The flavours of a per-thread default stream. */
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

SIM_API CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value)
{
	return cuStreamGetAttribute(OWN(stream), id, value);
}

SIM_API CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value)
{
	return cuStreamSetAttribute(OWN(stream), id, value);
}

SIM_API CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from)
{
	return cuStreamCopyAttributes(OWN(to), OWN(from));
}

SIM_API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device)
{
	return cuStreamGetDevice(OWN(stream), device);
}
