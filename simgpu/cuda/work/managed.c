/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: here it is always on its device, so a prefetch takes time and moves nothing, and advice has no
 * effect. */
#include <string.h>

#include "simgpu/cuda/base/queue.h"
#include "simgpu/cuda/memory/memory.h"
#include "simgpu/cuda/streams/streams.h"
#include "simgpu/cuda/work/transfer.h"

/* The flavours of a per-thread default stream. */
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

static bool location_exists(CUmemLocation location)
{
	switch (location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return sim_device_get(location.id) != NULL;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return true;
	default:
		return false;
	}
}

static CUmemLocation location_of(CUdevice device)
{
	if (device == CU_DEVICE_CPU)
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
	return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
}

static bool managed(CUdeviceptr address, size_t bytes)
{
	struct sim_block block;

	sim_memory_lock();
	bool is = bytes && sim_block_at(address, &block) && block.range->kind == SIM_RANGE_MANAGED &&
	          bytes <= block.base + block.bytes - address;

	sim_memory_unlock();
	return is;
}

static CUresult prefetch(struct CUctx_st *context, CUdeviceptr address, size_t bytes, CUmemLocation to, CUstream handle)
{
	struct CUstream_st *stream = sim_stream(context, handle);

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!location_exists(to))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!managed(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->session)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (sim_held(stream))
		return sim_hold_work(stream, bytes / SIM_LINK_BYTES_PER_NS);
	stream->last = sim_submit(stream->context, SIM_OP_COPY, bytes / SIM_LINK_BYTES_PER_NS, 0);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return prefetch(context, address, bytes, location_of(to), stream);
}

SIM_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned flags,
                                       CUstream stream)
{
	SIM_CALL_CONTEXT(context);
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(context, address, bytes, to, stream);
}

static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
	    !managed(address, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	/* Two of the six kinds of advice have no location and ignore it. */
	if (advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
	    advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION && !location_exists(location))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return advise(address, bytes, advice, location_of(device));
}

SIM_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	SIM_CALL_CONTEXT(context);
	(void)context;
	return advise(address, bytes, advice, location);
}

/* Advice is not stored: every query answers as for a range without advice. */
SIM_API CUresult cuMemRangeGetAttribute(void *data, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                        size_t count)
{
	SIM_CALL();
	const int nowhere = -2; /* CU_DEVICE_INVALID */

	if (!data || bytes == 0 || count == 0 || !managed(address, 1))
		return CUDA_ERROR_INVALID_VALUE;
	memset(data, 0, bytes);
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: /* CU_MEM_LOCATION_TYPE_INVALID */
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		return bytes == sizeof(int) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		if (bytes % sizeof(int))
			return CUDA_ERROR_INVALID_VALUE;
		for (size_t i = 0; i < bytes / sizeof(int); i++)
			memcpy((char *)data + i * sizeof(int), &nowhere, sizeof(int));
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

SIM_API CUresult cuMemRangeGetAttributes(void **data, size_t *bytes, CUmem_range_attribute *attributes, size_t count,
                                         CUdeviceptr address, size_t range_bytes)
{
	SIM_CALL();
	if (!data || !bytes || !attributes || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		CUresult r = cuMemRangeGetAttribute(data[i], bytes[i], attributes[i], address, range_bytes);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

/* Managed memory is accessible from everywhere, always. */
SIM_API CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags)
{
	SIM_STREAM(s, stream);
	struct sim_block block;

	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	(void)s;
	(void)bytes;
	sim_memory_lock();
	bool managed = sim_block_at(address, &block) && block.range->kind == SIM_RANGE_MANAGED;

	sim_memory_unlock();
	return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags)
{
	return cuStreamAttachMemAsync(OWN(stream), address, bytes, flags);
}
