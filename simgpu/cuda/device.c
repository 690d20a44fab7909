/* SPDX-License-Identifier: Apache-2.0 */
/* Queries about the driver and its devices that need no context. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "simgpu/cuda/base/call.h"

SIM_API CUresult cuInit(unsigned flags)
{
	CUresult r = sim_enter_call(__func__);

	if (r != CUDA_SUCCESS)
		return r;
	if (sim_knob_number("version_skew", 0))
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	return flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)sim_process_start();
}

SIM_API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = (int)sim_knob_number("cuda_version", 13000);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int *count)
{
	SIM_CALL();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_process()->device_count;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	SIM_CALL();
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

#define DEVICE(d, handle)                                                                                              \
	SIM_CALL();                                                                                                    \
	struct sim_device *d = sim_device_get(handle);                                                                 \
	if (!d)                                                                                                        \
	return CUDA_ERROR_INVALID_DEVICE

SIM_API CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	DEVICE(d, device);
	if (!name || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)bytes, "%s", d->model->name);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	DEVICE(d, device);
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, d->gpu->uuid, 16);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return cuDeviceGetUuid(uuid, device);
}

SIM_API CUresult cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice device)
{
	DEVICE(d, device);
	(void)d;
	(void)luid;
	(void)mask;
	return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	DEVICE(d, device);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = d->model->memory_bytes;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
	DEVICE(d, device);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = d->model->memory_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)d->model->memory_bytes;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	DEVICE(d, device);
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = (int)d->model->cc_major;
	*minor = (int)d->model->cc_minor;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device)
{
	DEVICE(d, device);
	if (!id || bytes <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, (size_t)bytes, "0000:%02X:00.0", d->gpu->pci_bus);
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
	SIM_CALL();
	char full[24];

	if (!device || !id)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < sim_process()->device_count; i++) {
		/* 00000000:10:00.0, 0000:10:00.0 and 10:00.0 name the same device */
		snprintf(full, sizeof(full), "00000000:%02X:00.0", sim_process()->device[i].gpu->pci_bus);
		if (strcasecmp(id, full) == 0 || strcasecmp(id, full + 4) == 0 || strcasecmp(id, full + 9) == 0) {
			*device = i;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* Attributes with the same value for every model. Unlisted ones are 0, as for features that a card lacks. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} common[] = {
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152 },
	{ CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536 },
	{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
	{ CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536 },
	{ CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512 },
	{ CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32 },
	{ CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1 },
	{ CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3 },
	{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
	{ CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1 },
	{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1 },
	{ CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512 },
	{ CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
	{ CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072 },
	{ CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536 },
};

SIM_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	DEVICE(d, device);
	const struct sim_model *m = d->model;

	if (!value || (int)attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	const struct {
		CUdevice_attribute attribute;
		uint32_t value;
	} own[] = {
		{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, m->sm_count },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, m->cc_major },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, m->cc_minor },
		{ CU_DEVICE_ATTRIBUTE_CLOCK_RATE, m->sm_clock_mhz * 1000 },
		{ CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, m->memory_clock_mhz * 1000 },
		{ CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, m->bus_width_bits },
		{ CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, m->l2_bytes },
		{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, m->threads_per_sm },
		{ CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, m->blocks_per_sm },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, m->shared_per_sm_bytes },
		{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, m->shared_optin_bytes },
		{ CU_DEVICE_ATTRIBUTE_ECC_ENABLED, m->ecc },
		{ CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, m->cc_major >= 9 },
		{ CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, m->cc_major >= 9 },
		{ CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, m->cc_major >= 9 },
		{ CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, m->cc_major >= 9 ? 4 : 1 },
		{ CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, m->cc_major >= 8 ? m->l2_bytes / 8 * 5 : 0 },
		{ CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, m->cc_major >= 8 ? 128 << 20 : 0 },
		/* double precision runs at half the rate on data-centre cards, at a 64th on consumer cards */
		{ CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, m->nvlink ? 2 : 64 },
		{ CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d->gpu->pci_bus },
	};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		if (own[i].attribute == attribute) {
			*value = (int)own[i].value;
			return CUDA_SUCCESS;
		}
	}
	*value = 0;
	for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++)
		if (common[i].attribute == attribute)
			*value = common[i].value;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
	SIM_CALL();
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(a) || !sim_device_get(b))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = a != b;
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice a, CUdevice b)
{
	SIM_CALL();
	if (!value || a == b || !sim_device_get(a) || !sim_device_get(b))
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
	return CUDA_SUCCESS;
}

struct error_text {
	CUresult code;
	const char *name;
};

#define ERROR(code) { code, #code }
static const struct error_text errors[] = {
	ERROR(CUDA_SUCCESS),
	ERROR(CUDA_ERROR_INVALID_VALUE),
	ERROR(CUDA_ERROR_OUT_OF_MEMORY),
	ERROR(CUDA_ERROR_NOT_INITIALIZED),
	ERROR(CUDA_ERROR_DEINITIALIZED),
	ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE),
	ERROR(CUDA_ERROR_NO_DEVICE),
	ERROR(CUDA_ERROR_INVALID_DEVICE),
	ERROR(CUDA_ERROR_INVALID_IMAGE),
	ERROR(CUDA_ERROR_INVALID_CONTEXT),
	ERROR(CUDA_ERROR_ALREADY_MAPPED),
	ERROR(CUDA_ERROR_NOT_MAPPED),
	ERROR(CUDA_ERROR_INVALID_SOURCE),
	ERROR(CUDA_ERROR_FILE_NOT_FOUND),
	ERROR(CUDA_ERROR_OPERATING_SYSTEM),
	ERROR(CUDA_ERROR_INVALID_HANDLE),
	ERROR(CUDA_ERROR_ILLEGAL_STATE),
	ERROR(CUDA_ERROR_NOT_FOUND),
	ERROR(CUDA_ERROR_NOT_READY),
	ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
	ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
	ERROR(CUDA_ERROR_LAUNCH_TIMEOUT),
	ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE),
	ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED),
	ERROR(CUDA_ERROR_LAUNCH_FAILED),
	ERROR(CUDA_ERROR_NOT_PERMITTED),
	ERROR(CUDA_ERROR_NOT_SUPPORTED),
	ERROR(CUDA_ERROR_SYSTEM_NOT_READY),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
	ERROR(CUDA_ERROR_CAPTURED_EVENT),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
	ERROR(CUDA_ERROR_UNKNOWN),
};

static const char *error_name(CUresult error)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error)
			return errors[i].name;
	return NULL;
}

SIM_API CUresult cuGetErrorName(CUresult error, const char **name)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = error_name(error);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuGetErrorString(CUresult error, const char **text)
{
	return cuGetErrorName(error, text); /* the name is as informative as a description */
}

SIM_API CUresult cuProfilerStart(void)
{
	SIM_CALL();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuProfilerStop(void)
{
	SIM_CALL();
	return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned channels,
                                                    CUdevice device)
{
	SIM_CALL();
	(void)format;
	if (!width || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_get(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*width = (size_t)1 << 28;
	return CUDA_SUCCESS;
}
